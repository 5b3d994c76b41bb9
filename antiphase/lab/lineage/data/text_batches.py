"""Tokenized texts of different lengths in padded batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antiphase.base.randomness import keyed_generator
from antiphase.ops.shapes import IGNORED_TARGET

WINDOW = 20
"""Number of batches whose texts are sorted by length together: little padding, and still a random order."""


@dataclass(frozen=True)
class EncodedTexts:
    """Texts as token ids."""

    ids: list[list[int]]
    pad_id: int

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Ids and mask (1 at real tokens) of some texts, both (B, N), padded on the right; N is at least 1."""
        longest = max(1, *(len(self.ids[row]) for row in rows))
        ids = torch.full((len(rows), longest), self.pad_id)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for place, row in enumerate(rows):
            length = len(self.ids[row])
            ids[place, :length] = torch.tensor(self.ids[row], dtype=torch.long)
            mask[place, :length] = 1
        return ids, mask

    def labels(self, rows: Sequence[int]) -> Tensor:
        """Ids of some texts, (B, N), with ``IGNORED_TARGET`` at padding."""
        ids, mask = self.batch(rows)
        return ids.masked_fill(mask == 0, IGNORED_TARGET)


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> EncodedTexts:
    """Encode texts without truncation."""
    pad = tokenizer.pad_token_id
    return EncodedTexts(tokenizer(list(texts), verbose=False)["input_ids"], 0 if pad is None else pad)


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of unknown words; None for byte-level tokenizers, which know every word and name the end token instead."""
    number = tokenizer.unk_token_id
    return None if number in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) else number


def unknown_words(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The parts of a text that the tokenizer does not know, so that a model cannot tell them apart."""
    unknown = unknown_id(tokenizer)
    if unknown is None or not tokenizer.is_fast:
        return []
    found = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
    places = zip(found["input_ids"], found["offset_mapping"], strict=True)
    return list(dict.fromkeys(text[start:end] for number, (start, end) in places if number == unknown))


def shuffled_batches(texts: EncodedTexts, size: int, *key: object) -> list[list[int]]:
    """Rows of each batch of an epoch, in random order given ``key``; the texts of a batch have similar lengths."""
    generator = keyed_generator(*key)
    order = torch.randperm(len(texts), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), size * WINDOW):
        window = sorted(order[start : start + size * WINDOW], key=lambda row: len(texts.ids[row]))
        batches += [window[first : first + size] for first in range(0, len(window), size)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def sorted_batches(texts: EncodedTexts, tokens: int) -> Iterator[list[int]]:
    """All rows, longest first, in batches of at most ``tokens`` tokens including padding."""
    order = sorted(range(len(texts)), key=lambda row: -len(texts.ids[row]))
    start = 0
    while start < len(order):
        count = max(1, tokens // max(1, len(texts.ids[order[start]])))
        yield order[start : start + count]
        start += count
