"""Word, character and unigram tokenizers: the rule of words, exact decoding, the same tokenizer each time."""

import pytest
from transformers import AutoTokenizer

from antiphase.base.errors import InputError
from antiphase.lab.lineage.data.vocabularies import (
    TOKENIZERS,
    UNKNOWN,
    train_characters,
    train_unigram,
    train_words,
    word_spans,
)

TEXTS = ["a man in a house", "the man saw a house", "日本の家 東京タワー", "two\tthings\nin 1,000 lines"]


@pytest.mark.parametrize(("text", "words"), [
    ("I don't know (yet).", ["I", "don't", "know", "(", "yet", ")", "."]),
    ("it 's well-known , is n't it", ["it", "'s", "well-known", ",", "is", "n't", "it"]),
    ("cost $1,000.50, or 2.", ["cost", "$", "1,000.50", ",", "or", "2", "."]),
    ("'quoted' words", ["'", "quoted", "'", "words"]),
    ("今日は東京タワーへ行きました。", ["今", "日", "は", "東", "京", "タワー", "へ", "行", "きました", "。"]),
    ("我爱Python3中文", ["我", "爱", "Python3", "中", "文"]), ("ดีวัน", ["ดี", "วั", "น"]),
    ("e\u0301te\u0301\u00a0nai\u0308f", ["e\u0301te\u0301", "nai\u0308f"]),
    ("one\u0085two\x00", ["one", "two", "\x00"]), ("", []), (" \n", []),
])  # fmt: skip
def test_what_counts_as_a_word(text, words):
    assert [text[begin:end] for begin, end in word_spans(text)] == words


def test_words_are_lower_case_and_strange_ones_unknown():
    tokenizer = train_words(TEXTS, 100)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("The MAN flies")["input_ids"])
    assert pieces == ["the", "man", UNKNOWN]
    assert tokenizer.pad_token_id == 0


def test_rare_words_are_unknown_where_a_least_count_is_asked_for():
    tokenizer = train_words(TEXTS, 100, least_count=2)
    assert set(tokenizer.get_vocab()) == {"<|pad|>", UNKNOWN, "a", "man", "in", "house"}


def test_vocabulary_keeps_the_commonest():
    assert set(train_words(TEXTS, 3).get_vocab()) == {"<|pad|>", UNKNOWN, "a"}


@pytest.mark.parametrize("train", [train_characters, train_unigram])
def test_decoding_gives_the_text_back(train):
    tokenizer = train(TEXTS, 200)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_equal_texts_give_equal_tokenizers_that_load_again(kind, tmp_path):
    first, second = (TOKENIZERS[kind](TEXTS * 3, 300) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    first.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "a man saw 日本 and 家"
    assert loaded(text)["input_ids"] == first(text)["input_ids"]
    assert loaded.pad_token_id == first.pad_token_id


def test_common_strings_become_unigram_pieces():
    tokenizer = train_unigram(["walking talking walked talked"] * 20, 30)
    assert len(tokenizer("walked")["input_ids"]) < 4
    assert tokenizer.convert_ids_to_tokens(tokenizer("x")["input_ids"])[-1] == UNKNOWN


@pytest.mark.parametrize("kind", ["words", "characters", "unigram"])
def test_a_vocabulary_that_is_too_small_is_refused(kind):
    with pytest.raises(InputError, match="--vocabulary must be at least"):
        TOKENIZERS[kind](TEXTS, 2)
