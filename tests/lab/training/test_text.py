"""Training on a person's own text."""

import random
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.base.errors import InputError, Interrupted
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.studies.tune.measure import tune
from antiphase.lab.text.prepare import check_held_out, prepare

WORDS = ["harbour", "boat", "gull", "wall", "water", "storm", "noon", "market", "voice", "bread", "morning", "pier"]
SIZES = (
    "data.sequence_length=160", "data.needles=2", "data.queries=1", "data.needle_share=0.5", "training.steps=4",
    "data.validation_share=0.2",
)  # fmt: skip


def sentences(count, seed):
    draw = random.Random(seed)
    return " ".join(f"The {' '.join(draw.choices(WORDS, k=6))}." for _ in range(count)) + "\n"


@pytest.fixture
def text_settings(tiny_preset, tmp_path):
    """Settings of a run on a generated text, with validation text of its own or without."""
    (tmp_path / "text.txt").write_text(sentences(900, 1))
    (tmp_path / "held-out.txt").write_text(sentences(120, 2))

    def build(*overrides, validation=False):
        data, held_out = str(tmp_path / "text.txt"), [str(tmp_path / "held-out.txt")] if validation else []
        return load_preset(str(tiny_preset), [*SIZES, *overrides], data=[data], validation=held_out).run

    return build


@pytest.mark.parametrize("validation", [False, True])
def test_run_on_text_trains_and_its_folder_loads(tmp_path, text_settings, validation):
    record = train_run(text_settings(validation=validation), tmp_path / "run", resume=False)
    assert [point["step"] for point in record.values["curve"]] == [0, 4]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    text = "The harbour remembers 4821 — ünïcode too."
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert model(**tokenizer(text, return_tensors="pt")).logits.shape[-1] == len(tokenizer) == model.config.vocab_size


def test_held_out_share_is_not_trained_on_and_given_text_is_measured_on(tmp_path, text_settings):
    share = prepare(text_settings().data, tmp_path / "a")
    given = prepare(text_settings(validation=True).data, tmp_path / "a")
    blocks = len(given.training_text)
    assert len(share.training_text) + len(share.validation_text) == blocks
    assert len(share.validation_text) == round(0.2 * blocks)
    assert share.training_text.tokens.tolist() == given.training_text.tokens[: 160 * len(share.training_text)].tolist()
    text = given.tokenizer.decode(given.validation_text.tokens)
    assert text == (tmp_path / "held-out.txt").read_text()


@pytest.mark.parametrize("place", ["text.txt", "", "link.txt", "copies/another name.txt", "copies"])
def test_text_that_is_trained_on_is_not_held_out_under_any_name(tmp_path, text_settings, place):
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies/another name.txt").write_bytes((tmp_path / "text.txt").read_bytes())
    (tmp_path / "copies/of the same size.txt").write_bytes((tmp_path / "text.txt").read_bytes()[::-1])
    (tmp_path / "link.txt").symlink_to(tmp_path / "text.txt")
    data = replace(text_settings().data, validation=[str(tmp_path / place)])
    with pytest.raises(InputError, match=r"^--validation .*: text that is trained on is not held out"):
        prepare(data, tmp_path / "cache")
    prepare(replace(data, validation=[str(tmp_path / "copies/of the same size.txt")]), tmp_path / "cache")


@pytest.mark.parametrize(("held_out", "is_other"), [("owner/name@train", False), ("owner/name@test", True)])
def test_the_split_that_is_trained_on_is_not_held_out_however_it_is_written(held_out, is_other):
    with nullcontext() if is_other else pytest.raises(InputError, match="text that is trained on is not held out"):
        check_held_out(["owner/name"], [held_out])


@pytest.mark.slow
def test_tokens_are_made_once_and_resumed_runs_read_them(tmp_path, text_settings):
    said = []
    train_run(text_settings(), tmp_path / "run", resume=False, say=said.append)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run-tokens").glob("*.tokens")}
    assert len(kept) == 1
    assert any("training a tokenizer" in message for message in said)
    again = []
    train_run(text_settings(), tmp_path / "run", resume=True, say=again.append)
    assert not any("training a tokenizer" in message for message in again)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run-tokens").glob("*.tokens")} == kept


@pytest.mark.parametrize("changed", ["text.txt", pytest.param("held-out.txt", marks=pytest.mark.slow)])
def test_a_run_does_not_go_on_with_other_text(tmp_path, text_settings, changed):
    settings = text_settings(validation=True)
    train_run(settings, tmp_path / "run", resume=False)
    train_run(settings, tmp_path / "run", resume=True)
    (tmp_path / changed).write_text(sentences(900, 7))
    with pytest.raises(InputError, match="run began with other text: what data or validation names"):
        train_run(settings, tmp_path / "run", resume=True)


def test_the_held_out_part_is_measured_only_while_its_text_is_the_same(tmp_path, text_settings):
    train_run(text_settings(), tmp_path / "run", resume=False)
    request = settings_of("perplexity", name=str(tmp_path / "run"), samples=2)
    evaluate(request, tmp_path / "before")
    text = (tmp_path / "text.txt").read_text()
    (tmp_path / "text.txt").write_text(text[: len(text) * 3 // 4])  # the new last fifth was trained on
    with pytest.raises(InputError, match="has changed since, so its held-out part is unknown; give held-out"):
        evaluate(request, tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_a_study_begun_without_a_setting_of_today_goes_on_with_its_default(tmp_path, tiny_preset, monkeypatch):
    def stopped(*arguments, **options):
        raise Interrupted("stopped")

    monkeypatch.setattr("antiphase.lab.studies.grid.run_jobs", stopped)
    preset = load_preset(str(tiny_preset))
    with pytest.raises(Interrupted):
        compare(preset, tmp_path / "study")
    path = tmp_path / "study" / "compare.yaml"
    text = path.read_text()
    assert "  queries: []\n" in text
    path.write_text(text.replace("    queries: []\n", ""))
    with pytest.raises(Interrupted):
        compare(preset, tmp_path / "study", resume=True)
    path.write_text("a: [")
    with pytest.raises(InputError, match=r"compare.yaml: this is not valid YAML"):
        compare(preset, tmp_path / "study", resume=True)


@pytest.mark.parametrize("study", [partial(tune, learning_rates=[1e-3]), pytest.param(compare, marks=pytest.mark.slow)])
def test_a_study_does_not_go_on_with_other_text(tmp_path, tiny_preset, text_settings, monkeypatch, study):
    def stopped(*arguments, **options):
        raise Interrupted("stopped")

    monkeypatch.setattr("antiphase.lab.studies.grid.run_jobs", stopped)
    paths = text_settings().data.paths
    preset = load_preset(str(tiny_preset), [*SIZES, "compare.threshold=0.75"], data=paths)
    for resume in (False, True):
        with pytest.raises(Interrupted):
            study(preset, output=tmp_path / "study", resume=resume)
    (tmp_path / "text.txt").write_text(sentences(900, 7))
    with pytest.raises(InputError, match="study began with other text"):
        study(preset, output=tmp_path / "study", resume=True)


@pytest.mark.slow
def test_own_tokenizer_is_used(tmp_path, text_settings):
    train_run(text_settings(), tmp_path / "first", resume=False)
    settings = text_settings(f"data.tokenizer={tmp_path / 'first'}")
    train_run(settings, tmp_path / "second", resume=False)
    first, second = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("first", "second"))
    assert first.get_vocab() == second.get_vocab()


@pytest.mark.slow
def test_sizes_that_fit_only_short_cities_are_refused_before_training(tmp_path, text_settings):
    with pytest.raises(InputError, match=r"data\.sequence_length \(10\) is too short .* up to (\d+) tokens") as caught:
        prepare(text_settings("data.sequence_length=10").data, tmp_path / "a")
    longest = int(re.search(r"up to (\d+)", str(caught.value))[1])
    with pytest.raises(InputError, match="is too short"):
        prepare(text_settings(f"data.sequence_length={longest - 1}").data, tmp_path / "a")
    task = prepare(text_settings(f"data.sequence_length={longest}").data, tmp_path / "a").task()
    assert task.sample(300, torch.Generator().manual_seed(0)).input_ids.shape == (300, longest)
