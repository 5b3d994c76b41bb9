"""Repetition: counted by hand, on a model that always writes the same token, and through the command."""

import json

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.lab.measures.repetition.measure import repeated, repeated_share, repetition
from support.models import save, small_llama


@pytest.mark.parametrize(("tokens", "n", "share"), [
    ([1, 2, 3, 4], 1, 0.0), ([1, 1, 1, 1], 1, 0.75), ([1, 2, 1, 2, 1], 2, 0.5), ([1, 2, 3, 1], 4, 0.0), ([1], 2, None),
])  # fmt: skip
def test_the_share_is_that_of_sequences_that_came_before(tokens, n, share):
    assert repeated_share(tokens, n) == share


def test_texts_that_are_too_short_for_a_sequence_do_not_count():
    found = repeated("text", [[1, 1, 1, 1, 1], [1, 2], []])
    assert found.shares == pytest.approx({"1": 0.8 / 2, "2": 0.75 / 2, "3": 2 / 3, "4": 0.5})
    assert (found.texts, found.tokens, found.interval) == (3, pytest.approx(7 / 3), None)


def test_a_model_that_writes_one_token_repeats_it(tiny_model):
    model = tiny_model("differential")
    ids = torch.randint(3, 61, (11, 21))
    with torch.no_grad():
        model.lm_head.weight.zero_()
    own, text = repetition(model, ids).rows
    assert (own.of, own.texts, own.tokens) == ("model", 11, 11)
    assert own.shares == {str(n): pytest.approx(1 - 1 / (12 - n)) for n in (1, 2, 3, 4)}
    assert text.shares["4"] == 0.0 < text.shares["1"]
    with pytest.raises(InputError, match="have 7 tokens; 8 or more"):
        repetition(model, ids[:, :7])


@pytest.mark.slow
def test_the_command_measures_a_model_and_resumes(antiphase, text_tokenizer, book, tmp_path):
    folder = save(small_llama(text_tokenizer), text_tokenizer, tmp_path / "model")
    words = f"evaluate repetition {folder} --data {book} --length 24 --samples 9 --output {tmp_path / 'out'}"
    code, out, err = antiphase(words)
    assert code == 0, err
    rows = json.loads((tmp_path / "out/record.json").read_text())["values"]["rows"]
    assert [(row["of"], row["texts"]) for row in rows] == [("model", 9), ("text", 9)]
    assert "Repeated sequences" in out
    assert antiphase(words, "--resume")[0] == 0
