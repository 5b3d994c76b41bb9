"""A trained model that reads longer contexts: what is kept, what changes, and what transformers loads afterwards."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.extend.measure import extension, raised_base
from antiphase.lab.studies.started import overrides_from
from antiphase.lab.studies.training_run import train_run
from support.records import values


@pytest.fixture
def trained(tmp_path, tiny_preset):
    """A differential model of sequences of 25 tokens."""
    train_run(load_preset(str(tiny_preset)).run, tmp_path / "trained", resume=False)
    return str(tmp_path / "trained")


def test_the_extension_starts_from_the_weights_and_reads_further(tmp_path, trained):
    run = extension(trained, length=60, rope_theta=50_000.0, overrides=["training.steps=3"])
    record = train_run(run, tmp_path / "longer", resume=False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "longer")
    assert model.config.max_position_embeddings == 60
    assert model.config.rope_parameters["rope_theta"] == 50_000.0
    with torch.no_grad():
        logits = model(input_ids=torch.full((1, 60), 5)).logits
    assert logits.isfinite().all()
    before = values(Path(trained))
    assert record.values["parameters"] == before["parameters"]
    assert record.values["curve"][0]["loss"] < before["curve"][0]["loss"] - 0.02  # of fresh weights


def test_at_the_same_base_it_is_the_same_function_before_it_is_trained(tmp_path, trained):
    old = AutoModelForCausalLM.from_pretrained(trained)
    base = old.config.rope_parameters["rope_theta"]
    run = extension(trained, length=50, rope_theta=base, overrides=["training.steps=1", "training.learning_rate=1e-12"])
    train_run(run, tmp_path / "longer", resume=False)
    new = AutoModelForCausalLM.from_pretrained(tmp_path / "longer")
    ids = torch.randint(0, old.config.vocab_size, (2, 25))
    with torch.no_grad():
        torch.testing.assert_close(new(input_ids=ids).logits, old(input_ids=ids).logits, atol=1e-5, rtol=0)


def test_a_folder_may_have_any_name(tmp_path, tiny_preset):
    model = str(tmp_path / "größer 🙂")
    train_run(load_preset(str(tiny_preset)).run, Path(model), resume=False)
    assert extension(model, length=50).training.start_from == model
    overrides = [*overrides_from(model, field="model"), "data.tokenizer=null"]
    assert load_preset(str(tiny_preset), overrides).run.training.start_from == model


def test_the_base_is_raised_for_the_channels_that_positions_rotate(tmp_path, tiny_preset):
    half = ["model.partial_rotary_factor=0.5", "model.head_dim=8", "training.steps=2", "training.warmup_steps=1"]
    train_run(load_preset(str(tiny_preset), half).run, tmp_path / "trained", resume=False)
    run = extension(str(tmp_path / "trained"), length=75)
    assert run.model.rope_theta == raised_base(theta=10000.0, width=4, ratio=3.0)
    assert run.model.partial_rotary_factor == 0.5


def test_unset_fields_keep_the_models_own_values(trained):
    run, own = extension(trained, length=75), load_preset(f"{trained}/run.yaml").run
    assert run.training.steps == 2  # a tenth
    assert run.training.batch_size == 2  # 6 × 25 tokens in sequences of 75
    assert run.training.warmup_steps == 1
    assert run.training.learning_rate == own.training.learning_rate
    assert run.model.attention_type == own.model.attention_type
    assert run.model.rope_theta == raised_base(theta=10000.0, width=4, ratio=3.0) == 90_000.0


@pytest.mark.slow
def test_stages_of_length_end_and_shares_of_long_documents_stay_as_trained(tmp_path, tiny_preset, book, generated_text):
    changes = ["data.sequence_length=210", "data.lengths=[105, 210]", "data.long_share=0.5", "data.needles=2",
               "data.queries=1", "training.steps=1", "data.needle_share=0.5"]  # fmt: skip
    other = tmp_path / "held-out.txt"
    other.write_text(generated_text[:9000], encoding="utf-8")
    given, model = {"data": [book], "validation": [str(other)]}, str(tmp_path / "trained")
    train_run(load_preset(str(tiny_preset), changes, **given).run, tmp_path / "trained", resume=False)
    run = extension(model, length=420, overrides=["training.batch_size=8"])
    assert (list(run.data.lengths), run.data.long_share) == ([], 0.5)
    less = extension(model, length=420, long_share=0.25, overrides=["training.batch_size=8"])
    assert less.data.long_share == 0.25


def test_the_raised_base_turns_the_slowest_channel_as_far_in_the_whole_context():
    width, ratio, theta = 64, 16.0, 10_000.0
    slowest = theta ** -((width - 2) / width)
    raised = raised_base(theta=theta, width=width, ratio=ratio) ** -((width - 2) / width)
    assert ratio * raised == pytest.approx(slowest, rel=1e-4)
    assert math.isclose(raised_base(theta=theta, width=width, ratio=1.0), theta)


@pytest.mark.slow
def test_a_run_on_text_goes_on_with_its_tokenizer_and_more_of_long_documents(
    tmp_path, tiny_preset, book, generated_text
):
    changes = ["data.sequence_length=140", "data.needles=2", "data.queries=1", "training.steps=2"]
    train_run(load_preset(str(tiny_preset), changes, data=[book]).run, tmp_path / "text", resume=False)
    held_out = tmp_path / "held-out.txt"
    held_out.write_text(generated_text[:9000], encoding="utf-8")
    model = str(tmp_path / "text")
    for data in ([], [book]):
        with pytest.raises(InputError, match=r"--validation is missing: .*text held out a share of its own text"):
            extension(model, length=240, data=data)
    with pytest.raises(InputError, match=r"data\.long_share \(0\.1\) gives no sequence from inside one document"):
        extension(model, length=240, validation=[str(held_out)], long_share=0.1)
    overrides = ["training.steps=1", "training.batch_size=6"]
    run = extension(model, length=240, validation=[str(held_out)], long_share=0.5, overrides=overrides)
    assert run.data.tokenizer == model
    assert run.data.paths == [book]
    assert run.data.long_share == 0.5
    train_run(run, tmp_path / "longer", resume=False)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "longer").config.max_position_embeddings == 240


def test_unsuitable_models_are_refused(tmp_path, trained, book):
    for words, pattern in (
        ({"length": 25}, "--length 25 must be more than the 25 positions"),
        ({"length": 60, "overrides": ["data.sequence_length=50"]}, "--length 60 sets data.sequence_length"),
        (
            {"length": 60, "data": [book]},
            "--data cannot be used: .*trained has only the vocabulary of the synthetic task",
        ),
        ({"length": 60, "long_share": 1.5}, "data.long_share must lie between 0 and 1"),
        ({"length": 60, "rope_theta": -1.0}, "model.rope_theta must be above 0"),
    ):
        with pytest.raises(InputError, match=pattern):
            extension(trained, **words)
    with pytest.raises(InputError, match="model nowhere is not a finished run"):
        extension("nowhere", length=60)


def test_another_base_at_the_same_length_is_another_model(tmp_path, tiny_preset, trained):
    """Only a longer model may turn its positions at another speed: elsewhere it is a mistake in the settings."""
    changes = [f"training.start_from={trained}", "model.rope_theta=50000"]
    with pytest.raises(InputError, match="its rope_parameters is"):
        train_run(load_preset(str(tiny_preset), changes).run, tmp_path / "other", resume=False)


def test_a_model_with_dex_is_not_annealed_anew(tmp_path, tiny_preset):
    """The trained function is that at the end of annealing; an extension has fewer steps than that took."""
    dex = ["model.attention_type=softmax", "model.dex_heads=[[0],[1]]", "model.dex_steps=20", "training.steps=20"]
    train_run(load_preset(str(tiny_preset), dex).run, tmp_path / "trained", resume=False)
    old = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    base = old.config.rope_parameters["rope_theta"]
    run = extension(str(tmp_path / "trained"), length=50, rope_theta=base, overrides=["training.learning_rate=1e-12"])
    train_run(run, tmp_path / "longer", resume=False)
    new = AutoModelForCausalLM.from_pretrained(tmp_path / "longer")
    ids = torch.randint(0, old.config.vocab_size, (2, 25))
    with torch.no_grad():
        torch.testing.assert_close(new(input_ids=ids).logits, old(input_ids=ids).logits, atol=1e-5, rtol=0)
