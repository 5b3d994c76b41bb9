"""What a run held out is the same text at every length."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from tokenizers.processors import TemplateProcessing

from antiphase.base.errors import InputError
from antiphase.lab.measures.held_out import data_for, tell_of_training_text
from antiphase.lab.measures.probe import ProbeSettings
from antiphase.lab.measures.probe import measure as probe
from antiphase.lab.measures.settings import TextSettings
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.tokenization import PAGE_OPENING
from antiphase.models.checkpoints import convert

TRAINED = 210


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_preset_text):
    """A run on text of which it held out a share, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.yaml").write_text(tiny_preset_text, encoding="utf-8")
    book = folder / "book.txt"
    book.write_text(" ".join(f"line {number} of a book about the sea" for number in range(4000)), encoding="utf-8")
    changes = [f"data.sequence_length={TRAINED}", "data.needles=2", "data.queries=1", "training.steps=1"]
    settings = load_preset(str(folder / "tiny.yaml"), changes, data=[str(book)]).run
    train_run(settings, folder / "run", resume=False)
    return settings, folder / "run"


def held_out(folder, tmp_path, length):
    asked = TextSettings(name=str(folder), length=length)
    return data_for(load_model(str(folder)), asked, tmp_path / "out", lambda message: None)


@pytest.mark.parametrize(
    "length", [149, *(pytest.param(length, marks=pytest.mark.slow) for length in (37, 64, 199, 307, None))]
)
def test_no_length_measures_what_was_trained_on(tmp_path, run, length):
    settings, folder = run
    own = prepare(settings.data, tmp_path / "cache").validation_text
    data = held_out(folder, tmp_path, length)
    numpy.testing.assert_array_equal(data.validation_text.tokens, own.tokens)
    blocks = data.validation(10_000).input_ids
    assert blocks.shape == (len(own.tokens) // (length or TRAINED), length or TRAINED)
    numpy.testing.assert_array_equal(blocks.flatten(), own.tokens[: blocks.numel()])


def test_more_than_was_held_out_is_refused(tmp_path, run):
    with pytest.raises(
        InputError, match=r"^--length 99999 is longer than the \d+ tokens that .*run held out; shorten it"
    ):
        held_out(run[1], tmp_path, 99999)


def test_windows_begin_as_the_tokenizer_of_another_model_opens_texts(tmp_path, tiny_model, text_tokenizer, book):
    plain, opening = copy.deepcopy(text_tokenizer), copy.deepcopy(text_tokenizer)
    for one in (plain, opening):
        del one.init_kwargs[PAGE_OPENING]  # of models that were not trained here
    end = text_tokenizer.eos_token
    opening.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} {end} $A {end}", special_tokens=[(end, text_tokenizer.eos_token_id)]
    )
    text = text_tokenizer((tmp_path / book).read_text())["input_ids"]
    for name, tokenizer, before in (("plain", plain, 0), ("opening", opening, 2)):
        tiny_model("softmax", vocab_size=len(text_tokenizer)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        loaded = load_model(str(tmp_path / name))
        asked = TextSettings(name=str(tmp_path / name), paths=[str(tmp_path / book)], length=32)
        windows = data_for(loaded, asked, tmp_path / "out", lambda message: None).validation(10_000).input_ids
        of_text = windows[:, before:]
        assert windows[:, :before].tolist() == [[text_tokenizer.eos_token_id] * before] * len(windows)
        assert of_text.flatten().tolist() == text[: of_text.numel()]
        assert windows.shape == (len(text) // (32 - before), 32)
        probed = probe.prepare(loaded, ProbeSettings(name=name, paths=asked.paths, length=32), tmp_path / "p", print)
        assert probed.tolist()[0] == windows.tolist()[0]
    with pytest.raises(InputError, match="--length 2 has no room for text; raise it"):
        data_for(loaded, replace(asked, length=2), tmp_path / "out", lambda message: None)


def test_text_that_was_trained_on_is_called_so(tmp_path, run):
    settings, folder = run
    (book,) = settings.data.paths
    (tmp_path / "copy.txt").write_bytes(Path(book).read_bytes())
    (tmp_path / "other.txt").write_text("Another text about the sea. " * 400)
    loaded = load_model(str(folder))
    for path, told in ((book, True), (str(tmp_path / "copy.txt"), True), (str(tmp_path / "other.txt"), False)):
        said = []
        data_for(loaded, TextSettings(name=str(folder), paths=[path], length=64), tmp_path / "out", said.append)
        assert any("this measures text that was trained on" in message for message in said) is told
    convert(str(folder), tmp_path / "rounded", dtype="bfloat16")
    tell_of_training_text(str(tmp_path / "rounded"), replace(settings.data, paths=[], validation=[book]), said.append)
    assert "this measures text that was trained on" in said[-1]


def test_text_that_a_compared_model_was_trained_on_is_called_so(tmp_path, run):
    settings, folder = run
    own = settings.data
    (tmp_path / "other.txt").write_text("Another text about the sea. " * 400)
    other = str(tmp_path / "other.txt")
    for measured, told in (
        (replace(own, paths=[], validation=own.paths), True), (replace(own, paths=[], validation=[other]), False),
        (own, False), (replace(own, validation_share=0.3), True), (replace(own, paths=[other]), False),
    ):  # fmt: skip
        said = []
        tell_of_training_text(str(folder), measured, said.append)
        assert any("this measures text that was trained on" in message for message in said) is told
