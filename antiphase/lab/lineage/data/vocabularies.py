"""Tokenizers other than byte-level BPE: words, characters and unigram pieces.

A word is defined for all scripts as the first of these that matches:

- a Han character;
- a run of Hiragana, or of Katakana (``ー`` included);
- in Thai, Lao, Khmer and Burmese, which are also written without spaces, a letter with its marks;
- an apostrophe followed by one or two letters, as in ``'s`` and ``'ll``, if no letter precedes it;
- a run of letters, marks and digits, with single apostrophes and hyphens inside it (``don't``, ``well-known``) and
  with points and commas between digits (``1,000.5``);
- any other character except white space, with its marks.

Japanese and Chinese words are not looked up in a dictionary: each Han character is a word, as in BERT.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from antiphase.base.errors import InputError
from antiphase.lab.text.pieces import pieces
from antiphase.lab.text.tokenization import PAD, TRAINING_PIECE, check_vocabulary, train_tokenizer
from antiphase.models.sources.tokenizers import load_tokenizer

UNKNOWN = "<|unknown|>"
SPECIAL = (PAD, UNKNOWN)

_WITHOUT_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_LETTER = rf"[\p{{L}}\p{{M}}\p{{N}}&&[^{_WITHOUT_SPACES}]]"
WORD = "|".join((
    r"\p{Han}\p{M}*",
    r"[\p{Hiragana}ー]+",
    r"[\p{Katakana}ー]+",
    r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*",
    r"['’]\p{L}{1,2}(?![\p{L}\p{M}\p{N}])",
    rf"{_LETTER}+(?:(?:['’‐-]|(?<=\p{{N}})[.,](?=\p{{N}})){_LETTER}+)*",
    r"[^\s]\p{M}*",
))  # fmt: skip
"""The rule as a regular expression of the tokenizers library (Oniguruma)."""
_WORDS = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each word of ``text``."""
    return [span for _, span in _WORDS.pre_tokenize_str(text)]


def train_words(texts: Iterable[str], vocabulary_size: int, *, least_count: int = 1) -> PreTrainedTokenizerFast:
    """A tokenizer whose pieces are the most common words of ``texts``, in lower case; others are ``<|unknown|>``.

    Args:
        texts: read once.
        vocabulary_size: largest number of entries, including ``<|pad|>`` and ``<|unknown|>``.
        least_count: smallest number of occurrences of a known word. With 2, a model learns about unknown words from
            those that occur once.

    Raises:
        InputError: ``vocabulary_size`` is too small or too large.
    """
    backend = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    backend.pre_tokenizer = _WORDS
    return _trained(backend, trainers.WordLevelTrainer, texts, vocabulary_size, min_frequency=least_count)


def train_characters(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose pieces are characters (code points after NFC), including white space. See ``train_words``."""
    backend = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")  # m: line breaks too, in Oniguruma
    backend.decoder = decoders.Fuse()
    return _trained(backend, trainers.WordLevelTrainer, texts, vocabulary_size)


def train_unigram(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A unigram tokenizer, which uses the most likely segmentation of a text (Kudo 2018, 1804.10959).

    A space belongs to the following piece, as ``▁``. See ``train_words``; all characters of ``texts`` must fit in the
    vocabulary.
    """
    kept = list(texts)
    letters = {letter for text in kept for letter in unicodedata.normalize("NFC", text)} - {" "} | {"▁"}
    if vocabulary_size < len(letters) + len(SPECIAL):
        raise InputError(
            f"--vocabulary must be at least {len(letters) + len(SPECIAL)} for unigram pieces: the text has "
            f"{len(letters)} different characters; got {vocabulary_size}"
        )
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\n\r\t]+"), "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first"),
    ])  # fmt: skip
    backend.decoder = decoders.Metaspace()
    tokenizer = _trained(backend, trainers.UnigramTrainer, kept, vocabulary_size, unk_token=UNKNOWN)
    tokenizer.backend_tokenizer.model = _in_order(tokenizer.backend_tokenizer)
    return tokenizer


def _in_order(backend: Tokenizer) -> Any:
    """Sort entries with equal scores alphabetically, because the trainer's order depends on its threads."""
    scores = json.loads(backend.to_str())["model"]["vocab"][len(SPECIAL) :]
    ordered = sorted(((piece, round(score, 3)) for piece, score in scores), key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*((piece, 0.0) for piece in SPECIAL), *ordered], unk_id=SPECIAL.index(UNKNOWN))


def _trained(
    backend: Tokenizer, trainer: Callable[..., Any], texts: Iterable[str], vocabulary_size: int, **options: Any
) -> PreTrainedTokenizerFast:
    least = len(SPECIAL) + 1
    if vocabulary_size < least:
        raise InputError(f"--vocabulary must be at least {least}, got {vocabulary_size}")
    check_vocabulary(vocabulary_size)
    parts = (piece for text in texts for piece in pieces(text, TRAINING_PIECE))
    chosen = trainer(vocab_size=vocabulary_size, special_tokens=list(SPECIAL), show_progress=False, **options)
    backend.train_from_iterator(parts, chosen)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, unk_token=UNKNOWN, clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


TOKENIZERS: dict[str, Callable[[Iterable[str], int], PreTrainedTokenizerFast]] = {
    "words": train_words,
    "characters": train_characters,
    "bpe": train_tokenizer,
    "unigram": train_unigram,
}
"""Training function by kind of tokenizer; takes texts and the number of entries."""


def content_of_own(name: str | None, *, field: str = "tokenizer") -> str | None:
    """The vocabulary and special tokens of a folder or Hub name; None for tokenizers that are trained here."""
    if name is None or name in TOKENIZERS:
        return None
    tokenizer = load_tokenizer(name, field=field)
    return f"{tokenizer.backend_tokenizer.to_str()} {tokenizer.special_tokens_map}"
