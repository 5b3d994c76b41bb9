"""Translate from the command line on tiny pairs: records, models that load, alignment, resumption, refusals."""

import json
import random
import shutil

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.lineage.commands.translate import measure as study
from antiphase.lab.lineage.commands.translate.measure import TranslateSettings, reported_alignment
from antiphase.lab.lineage.data.generated_language import generated_pairs
from antiphase.lab.lineage.results import AlignmentAccuracy
from antiphase.lab.lineage.translators import TRANSLATORS
from antiphase.lab.text.tokenization import train_tokenizer as train_bpe
from support.records import values

TINY = "--set hidden_size=8 --set num_hidden_layers=1 --set epochs=1"
MADE = f"--samples 12 --test-samples 5 {TINY}"


def reversal(count):
    """Sentences of one to three out of six words, and the same words of the other side backwards."""
    draw = random.Random(count)
    for _ in range(count):
        words = draw.sample("abcdef", draw.randint(1, 3))
        yield " ".join(words), " ".join(word.upper() + word for word in reversed(words))


@pytest.fixture(autouse=True)
def _files(tmp_path):
    for name, count in (("train.tsv", 40), ("test.tsv", 7)):
        (tmp_path / name).write_text("".join(f"{source}\t{target}\n" for source, target in reversal(count)))


def test_generated_pairs_from_command_to_page(antiphase, tmp_path, monkeypatch):
    assert antiphase(f"translate {MADE} --seeds 3 --output r")[0] == 0
    found = values(tmp_path / "r")
    assert [(one["model"], one["seed"], one["folder"]) for one in found["runs"]] == [
        ("transformer", 3, "transformer-seed3"), ("differential", 3, "differential-seed3"),
    ]  # fmt: skip
    assert found["data"] == {
        "generated": True, "split": "generated", "training_samples": 12, "test_samples": 5, "test_sources_in_train": 0,
    }  # fmt: skip
    by_name = {row["system"]: row for row in found["baselines"]}
    test = generated_pairs(5, "test")
    same = sum(
        pair.source.split()[n] == pair.source.split()[place] for pair in test for n, place in enumerate(pair.alignment)
    )
    tokens = sum(len(pair.alignment) + 1 for pair in test)
    ends_in_place = len(test)  # both sides are equally long
    assert by_name["word for word"]["tokens_in_place"] == pytest.approx((same + ends_in_place) / tokens)
    assert by_name["copy of the source"]["tokens_in_place"] == pytest.approx(ends_in_place / tokens)
    assert [row["exact_match"] for row in by_name.values()] == [0, 0, 0]
    record = Record.load(tmp_path / "r")
    example = found["example"]
    assert example["target"][-1] == "<|end|>"
    for name, heads in (("transformer", 4), ("differential", 2)):
        shape = (1, heads, len(example["target"]), len(example["source"]))
        assert record.arrays[f"alignment.{name}"].shape == shape
        one = next(one for one in found["runs"] if one["model"] == name)
        assert one["alignment"]["words"] == sum(len(pair.alignment) for pair in test)
        assert one["untrained"]["alignment"]["words"] == one["alignment"]["words"]
        assert one["untrained"]["loss"] != one["loss"]
        assert len(one["curve"]) == 1
    page = (tmp_path / "r" / "report.html").read_text()
    for words in ("Translation", "Runs of translators", "Alignment by head", "Training of the translators"):
        assert words in page


@pytest.mark.slow
def test_each_run_loads_and_writes_what_the_record_says(antiphase, tmp_path):
    """The folder's model and tokenizer, by transformers alone, give the recorded score; `look` shows the alignment."""
    words = "translate --train train.tsv --test test.tsv --models transformer --set epochs=40 --set batch_size=8"
    assert antiphase(f"{words} --set warmup_steps=5 --set hidden_size=16 --set num_hidden_layers=1 --output r")[0] == 0
    (one,) = values(tmp_path / "r")["runs"]
    assert one["alignment"] is None
    assert one["ended"] == 1
    assert one["exact"] >= 3  # it can do more than end
    folder = tmp_path / "r" / "transformer-seed0"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    right = 0
    for line in (tmp_path / "test.tsv").read_text().splitlines():
        source, target = line.split("\t")
        written = model.generate(**tokenizer(source, return_tensors="pt"))[0]
        assert written[-1] == tokenizer.eos_token_id
        right += tokenizer.decode(written, skip_special_tokens=True) == target.lower()
    assert right == one["exact"]
    code, _, err = antiphase("look r/transformer-seed0 --text a --target aa --output looked")
    assert code == 0, err
    looked = values(tmp_path / "looked")
    assert looked["maps"][0]["queries"] == "target"
    assert Record.load(tmp_path / "looked").arrays["positions"].shape == (50, 128)  # sinusoidal ones
    assert looked["runs"] == [{"arm": "transformer", "seed": 0, "curve": one["curve"]}]


@pytest.mark.slow
def test_a_tenth_is_held_out_by_the_seed_and_overlap_is_counted(antiphase, tmp_path):
    assert antiphase(f"translate --train train.tsv --models transformer --seeds 0,1 {TINY} --output r")[0] == 0
    found = values(tmp_path / "r")
    assert found["data"]["split"] == "held-out tenth"
    assert found["data"]["training_samples"] + found["data"]["test_samples"] == 40
    assert found["data"]["test_sources_in_train"] == 0
    trained = next(row for row in found["models"] if row["trained"])
    assert trained["interval"][0] < trained["interval"][1]  # both seeds agree; their few pairs do not settle it
    assert trained["exact_match"] == sum(one["exact_match"] for one in found["runs"]) / 2
    assert antiphase(f"translate --train train.tsv --test train.tsv --models transformer {TINY} --output s")[0] == 0
    assert values(tmp_path / "s")["data"]["test_sources_in_train"] == 40
    assert "word for word" not in [row["system"] for row in values(tmp_path / "s")["baselines"]]


@pytest.mark.parametrize("tokenizer", ["characters", "bpe", "unigram"])
def test_other_pieces_stop_at_the_end_too(antiphase, tmp_path, tokenizer):
    words = f"translate --train train.tsv --models differential_v2 --tokenizer {tokenizer} --vocabulary 300 {TINY}"
    code, _, err = antiphase(f"{words} --output r")
    assert code == 0, err
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "r" / "differential_v2-seed0")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "r" / "differential_v2-seed0")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id is not None
    assert tokenizer.pad_token_id not in (tokenizer.eos_token_id, tokenizer.bos_token_id)


@pytest.mark.slow
def test_a_stopped_study_goes_on_and_trains_nothing_twice(stopped_and_gone_on_with, refused, tmp_path):
    words = f"translate --models transformer --seeds 0,1 {MADE}"
    stopped_and_gone_on_with(words, study, "train_translator", after=1, kept="transformer-seed0/model.safetensors")
    arrays = [Record.load(tmp_path / name).arrays["alignment.transformer"] for name in ("cut", "whole")]
    assert (arrays[0] == arrays[1]).all()
    refused(r"other settings \(settings\)", f"{words} --output cut --resume --set epochs=2")


@pytest.mark.slow
def test_a_run_of_another_study_is_not_taken_over(antiphase, refused, tmp_path):
    words = f"translate --train train.tsv --models transformer {TINY}"
    assert antiphase(f"{words} --output r")[0] == 0
    (tmp_path / "fewer.tsv").write_text("".join((tmp_path / "train.tsv").read_text().splitlines(keepends=True)[1:]))
    for change, named in (
        (f"{words} --tokenizer characters", "tokenizer"),
        (words.replace("train.tsv", "fewer.tsv"), "train, content"),
    ):
        assert antiphase(f"{change} --output other")[0] == 0
        for path in (tmp_path / "r" / "transformer-seed0").iterdir():
            path.write_bytes((tmp_path / "other" / "transformer-seed0" / path.name).read_bytes())
        refused(rf"transformer-seed0 holds a run .* \({named}", f"{words} --output r --resume")
        shutil.rmtree(tmp_path / "other")


@pytest.mark.slow
def test_other_pairs_or_another_tokenizer_do_not_continue(antiphase, refused, tmp_path):
    train_bpe(["a b c d e f Aa Bb Cc Dd Ee Ff"], 300).save_pretrained(tmp_path / "pieces")
    words = f"translate --train train.tsv --test test.tsv --models transformer --tokenizer pieces {TINY} --output r"
    assert antiphase(words)[0] == 0
    assert antiphase(f"{words} --resume")[0] == 0
    lines = {name: (tmp_path / name).read_text().splitlines(keepends=True) for name in ("train.tsv", "test.tsv")}
    (tmp_path / "train.tsv").write_text("".join(lines["train.tsv"][:-1]))
    (tmp_path / "test.tsv").write_text("".join([lines["train.tsv"][-1], *lines["test.tsv"]]))  # the same pairs in all
    refused("the pairs or the tokenizer have changed", f"{words} --resume")
    for name, content in lines.items():
        (tmp_path / name).write_text("".join(content))
    assert antiphase(f"{words} --resume")[0] == 0
    train_bpe(["a b c"], 280).save_pretrained(tmp_path / "pieces")
    refused("the pairs or the tokenizer have changed", f"{words} --resume")


def test_a_tokenizer_that_names_its_end_unknown_knows_every_word(antiphase, tmp_path):
    """As GPT-2's does; and one that ends texts by itself ends a copy once."""
    tokenizer = study.train_words(["a b"], 4)
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    assert study.unknown_id(tokenizer) == tokenizer.unk_token_id
    tokenizer.unk_token = tokenizer.eos_token
    assert study.unknown_id(tokenizer) is None
    assert study.with_end([4, 9], 9) == study.with_end([4], 9) == [4, 9]


def accuracies(**fields):
    return AlignmentAccuracy(words=9, chance=0.1, same_place=0.2, **fields)


def test_layer_and_head_are_those_that_are_best_on_other_pairs():
    found = reported_alignment(
        accuracies(layers=[0.2, 0.4], heads=[[0.1, 0.9], [0.3, 0.2]]),
        accuracies(layers=[0.8, 0.5], heads=[[0.7, 0.6], [0.95, 0.2]]),
    )
    assert (found.layer, found.mean_of_heads) == (1, 0.5)
    assert (found.head, found.best_head) == ([0, 1], 0.6)


def test_the_models_differ_in_their_attention_alone():
    sizes = [{**model.sizes, "attention_type": None} for model in TRANSLATORS.values()]
    assert sizes[0] == sizes[1] == sizes[2]
    assert len({model.training for model in TRANSLATORS.values()}) == 1


@pytest.mark.slow
def test_five_epochs_of_the_defaults_teach_what_cannot_be_known_by_heart(antiphase, tmp_path):
    assert antiphase("translate --models differential --set epochs=5 --test-samples 100 --output r")[0] == 0
    (one,) = values(tmp_path / "r")["runs"]
    assert one["exact_match"] > 0.5
    assert one["untrained"]["exact_match"] == 0
    assert one["alignment"]["mean_of_heads"] > 0.5


def test_a_text_without_a_token_is_refused_by_its_line(tmp_path):
    """Words of a tokenizer from elsewhere may leave nothing of a text."""
    tokenizer = study.train_words(["a b"], 4)
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    pairs = [study.Pair("there, line 1", "a", "b"), study.Pair("there, line 2", "a", "\u3000")]
    worker = study.TranslateRuns(TranslateSettings(), torch.device("cpu"), tmp_path)
    tokenizer.bos_token = tokenizer.eos_token
    model = TRANSLATORS["transformer"].build(tokenizer, seed=0)
    with pytest.raises(InputError, match="there, line 2: the target has no token"):
        worker.encode(tokenizer, pairs, model, "transformer")


@pytest.mark.slow
@pytest.mark.essential
def test_what_it_writes_is_shown_and_predicted(antiphase, refused, tmp_path):
    """The record's first outputs are as often right as it says, and predict writes the same."""
    words = "translate --train train.tsv --test test.tsv --models transformer --set epochs=30 --set batch_size=8"
    assert antiphase(f"{words} --set hidden_size=32 --set learning_rate=0.02 --output r")[0] == 0
    for run in values(tmp_path / "r")["runs"]:
        pairs = [tuple(line.split("\t")) for line in (tmp_path / "test.tsv").read_text().splitlines()]
        assert [(one["text"], one["right"]) for one in run["shown"]] == pairs
        assert sum(one["right"].lower() == one["output"] for one in run["shown"]) == run["exact"] > 0
        (tmp_path / "new.txt").write_text("".join(f"{one['text']}\n" for one in run["shown"]))
        code, out, _ = antiphase(f"predict r/{run['folder']} --json --file new.txt")
        assert code == 0
        written = [{"text": one["text"], "unknown": [], "translation": one["output"]} for one in run["shown"]]
        assert [json.loads(line) for line in out.splitlines()] == written
    assert "Translation" in antiphase(f"predict r/{run['folder']} --text", ["a b"])[1]
    page = (tmp_path / "r" / "report.html").read_text()
    assert "The first 7 held out, seed 0." in page
    refused(f"holds no model .*, such as r/{run['folder']}", "predict r --text", ["a b"])
    long = "the text has 200 tokens, more than the 128 positions"
    refused(long, f"predict r/{run['folder']} --text", ["a " * 200])
