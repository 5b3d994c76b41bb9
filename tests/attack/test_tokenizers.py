"""Tokenizers of strangers: those that load and then fail, and those that ask for more than there is."""

import json

import pytest

from antiphase.base.errors import InputError
from antiphase.models.sources.tokenizers import load_tokenizer

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
PADDING = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a", "pad_to_multiple_of": None}
BROKEN = {
    "words without an unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}},
    "pieces without an unknown token": {
        "model": {
            "type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    },
    "unigrams without an unknown token": {"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}},
    "an unknown token that is no token": {"model": {**BPE, "unk_token": "<unk>"}},
    "a prefix longer than its words": {"model": {**BPE, "continuing_subword_prefix": "abc"}},
}  # fmt: skip
ENDLESS = {
    "padding": {"model": BPE, "padding": {**PADDING, "strategy": {"Fixed": 10**12}}},
    "multiples": {"model": BPE, "padding": {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 10**12}},
}


@pytest.fixture
def folder(tmp_path):
    def write(config, tokenizer=None):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if tokenizer is not None:
            plain = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
            (tmp_path / "tokenizer.json").write_text(
                json.dumps({"version": "1.0", "added_tokens": [], **plain, **tokenizer})
            )
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", BROKEN)
def test_a_tokenizer_that_fails_on_a_text_is_refused_when_it_is_loaded(folder, name):
    path = folder({"tokenizer_class": "PreTrainedTokenizerFast"}, BROKEN[name])
    with pytest.raises(InputError, match=r"^tokenizer \S+: (its tokenizer cannot encode a text|no tokenizer could)"):
        load_tokenizer(path, field="tokenizer")


@pytest.mark.parametrize("name", ENDLESS)
def test_a_tokenizer_that_pads_without_end_is_refused(folder, name):
    path = folder({"tokenizer_class": "PreTrainedTokenizerFast"}, ENDLESS[name])
    with pytest.raises(InputError, match=r"tokenizer\.json: \w+ must be at most 16777216, got 1000000000000; save"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("kind", "field"), [("ByT5Tokenizer", "extra_ids"), ("T5Tokenizer", "extra_ids"), ("PegasusTokenizer", "offset")]
)
def test_a_tokenizer_of_endless_special_tokens_is_refused(folder, kind, field):
    path = folder({"tokenizer_class": kind, field: 10**12, "model_max_length": 10**30})
    with pytest.raises(InputError, match=rf"config\.json: {field} must be at most 16777216, got 1000000000000"):
        load_tokenizer(path)
