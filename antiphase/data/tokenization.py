"""Tokenizers: train a byte-level BPE, cut long documents where it changes no token."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from antiphase.errors import InputError

END = "<|endoftext|>"
PAD = "<|pad|>"
SMALLEST_VOCABULARY = 256 + 2
TRAINING_PIECE = 1 << 16
"""Characters handed to the trainer at a time."""

# One white space between two characters that are none: byte-level and word tokenizers break before it anyway
CUT = re.compile(r"(?<=\S)(?=\s\S)")
CUT_TRIES = 16


def train_tokenizer(texts: Iterable[str], vocabulary_size: int, *, digits: int = 1) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on ``texts``; equal texts give an equal tokenizer.

    A token holds no more than ``digits`` digits, counted from the left of a number. With 1, every digit is a token of
    its own, so numbers of equal width have equally many tokens; with more, a space may join the first of them, and
    they have where the texts hold every group of digits often enough. Decoding gives back any text exactly.
    ``<|endoftext|>`` starts and ends sequences, ``<|pad|>`` fills them on the left; written in a text they count as
    these tokens too.

    Args:
        texts: documents; read once, cut into pieces, so memory does not grow with their length.
        vocabulary_size: entries, both special tokens included, at least 258. Little text may give fewer.

    Raises:
        InputError: ``vocabulary_size`` is too small.
    """
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"data.vocabulary_size must be at least {SMALLEST_VOCABULARY} (256 bytes and 2 special tokens), "
            f"got {vocabulary_size}"
        )
    backend = Tokenizer(models.BPE())
    # Digits first: the pattern of ByteLevel alone would join runs of digits, and a space to the first of them
    numbers = (
        pre_tokenizers.Digits(individual_digits=True)
        if digits == 1
        else pre_tokenizers.Split(Regex(rf" ?\d{{1,{digits}}}"), "isolated")
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence([numbers, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Texts that mark their documents with <|endoftext|> must not spend merges on its letters
    parts = (part for text in texts for part in text.split(END))
    backend.train_from_iterator((piece for part in parts for piece in pieces(part, TRAINING_PIECE)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        bos_token=END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def pieces(text: str, size: int, unchanged: Callable[[str, int], bool] | None = None) -> Iterator[str]:
    """Consecutive pieces of ``text``, cut before single white space; joined they are ``text``.

    Args:
        size: characters of a piece; a little more where the next white space is far.
        unchanged: says of a text and a position whether cutting there changes no token; where no such
            position is found near, the piece grows. None: any cut will do, and text without white space is cut at
            ``size``.
    """
    start = 0
    position = size
    while position < len(text):
        found = _cut(text, position, size, unchanged)
        if found is None:
            position += size
            continue
        yield text[start:found]
        start, position = found, found + size
    if start < len(text):
        yield text[start:]


def _cut(text: str, position: int, size: int, unchanged: Callable[[str, int], bool] | None) -> int | None:
    """A place to cut in the ``size`` characters from ``position`` on, or None."""
    for tried, match in enumerate(CUT.finditer(text, position, position + size + 2)):
        if unchanged is None or unchanged(text, match.start()):
            return match.start()
        if tried + 1 == CUT_TRIES:
            return None
    rest_is_short = position + size >= len(text)
    return position if unchanged is None and not rest_is_short else None
