"""A tokenizer that was saved with the sampling of its training is refused: no two readings would be equal."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from antiphase.base.errors import InputError
from antiphase.lab.scoring.loading import wrap_model
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.models.sources.tokenizers import check_fixed, load_tokenizer
from support.models import small_llama

WORDS = ["the quick brown fox jumps over the lazy dog"] * 20


@pytest.fixture
def folder(tmp_path):
    train_tokenizer(WORDS, 300).save_pretrained(tmp_path)
    return tmp_path


def with_dropout(folder, value):
    path = folder / "tokenizer.json"
    tree = json.loads(path.read_text())
    tree["model"]["dropout"] = value
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize("value", [1.0, 0.5, 1e-6])
def test_dropout_of_merges_is_refused_however_rare(folder, value):
    with_dropout(folder, value)
    with pytest.raises(
        InputError, match=r"^model .*draws the tokens of a text at random \(its dropout is set\).* null"
    ):
        load_tokenizer(str(folder), field="model")


@pytest.mark.parametrize("value", [None, 0.0])
def test_without_dropout_it_is_read(folder, value):
    with_dropout(folder, value)
    assert load_tokenizer(str(folder))("fox")["input_ids"]


class Sampling:
    """A tokenizer of sentencepiece, or of a library of which nothing is known."""

    def __init__(self, *, known):
        self.calls = 0
        if known:
            self.sp_model_kwargs = {"enable_sampling": True, "alpha": 0.1}

    def __call__(self, text):
        self.calls += not hasattr(self, "sp_model_kwargs")
        return {"input_ids": [self.calls]}


@pytest.mark.parametrize(
    ("known", "said"), [(True, "its enable_sampling"), (False, "repeated readings of a text differ")]
)
def test_sampling_of_other_libraries_is_refused(known, said):
    with pytest.raises(InputError, match=said):
        check_fixed(Sampling(known=known), "MODEL x")


def test_a_tokenizer_in_memory_is_looked_at_too(folder):
    with_dropout(folder, 0.5)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    with pytest.raises(InputError, match="its dropout"):
        wrap_model(small_llama(tokenizer, num_hidden_layers=1), tokenizer)
