"""Training batches as a pure function of seed and step: any step can be recomputed, in any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphase.config import rows_by_share
from antiphase.data.label_mapping import LabelMapping
from antiphase.data.packing import PackedTokens
from antiphase.data.retrieval import IGNORED_LABEL, RetrievalTask, SymbolLanguage
from antiphase.errors import InputError
from antiphase.randomness import keyed_generator

SHORTEST_PERIOD = 4
"""Shortest period, in tokens, of a repeated random sequence."""


@dataclass(frozen=True)
class Batch:
    """Sequences and their prediction targets."""

    input_ids: Tensor
    """(B, L) int64."""
    labels: Tensor
    """(B, L) int64: the token itself if it counts in the loss, else -100."""


class Stream(Protocol):
    """A source of batches."""

    def batch(self, step: int) -> Batch:
        """The batch of a 0-based step; equal arguments give equal batches."""
        ...


class SyntheticStream:
    """Retrieval sequences and repeated random sequences. Random filler is noise, so only predictable tokens count."""

    def __init__(self, task: RetrievalTask, *, batch_size: int, needle_share: float, key: tuple[object, ...]) -> None:
        self.task, self.batch_size, self.key = task, batch_size, key
        self.needle_rows = rows_by_share(batch_size, {"needle_share": needle_share})["needle_share"]

    def batch(self, step: int) -> Batch:
        generator = keyed_generator(*self.key, step)
        parts = []
        if self.needle_rows:
            sampled = self.task.sample(self.needle_rows, generator)
            parts.append(Batch(sampled.input_ids, sampled.labels()))
        if self.needle_rows < self.batch_size:
            language = self.task.language
            assert isinstance(language, SymbolLanguage)
            words = torch.arange(len(language.special_tokens), len(language.words))
            parts.append(_repeated(self.batch_size - self.needle_rows, self.task, words, generator))
        return _join(parts)


class TextStream:
    """Shuffled blocks of packed text, with shares of retrieval sequences, in-context labels and repeated tokens.

    With a long share, that part of the text rows comes from blocks inside one document and the rest from all others;
    both kinds are shuffled and repeated separately.
    """

    def __init__(
        self,
        packed: PackedTokens,
        task: RetrievalTask,
        *,
        batch_size: int,
        needle_share: float,
        key: tuple[object, ...],
        labels: LabelMapping | None = None,
        label_share: float = 0.0,
        words: Tensor | None = None,
        repeat_share: float = 0.0,
        long_share: float | None = None,
        end: int | None = None,
    ) -> None:
        """
        Args:
            labels: generates the sequences of ``label_share``.
            words: token ids from which the sequences of ``repeat_share`` are drawn.
            long_share: share of the text rows from inside one document; None means no distinction.
            end: the token between documents; required with ``long_share``.

        Raises:
            InputError: no document is as long as a sequence.
        """
        self.packed, self.task, self.key, self.labels, self.words = packed, task, key, labels, words
        shares = {"needle_share": needle_share, "label_share": label_share, "repeat_share": repeat_share}
        self.needle_rows, self.label_rows, self.repeat_rows, self.text_rows = rows_by_share(batch_size, shares).values()
        every = torch.arange(len(packed))
        if long_share is None:
            self._kinds = [_Blocks(every, self.text_rows, (*key, "order"))]
            return
        assert end is not None
        inside = torch.from_numpy(packed.without(end))
        if not len(inside):
            raise InputError(
                f"data.long_share: no document has {packed.sequence_length} tokens without a break; remove "
                "data.long_share or lower data.sequence_length"
            )
        outside = every[~torch.isin(every, inside)]
        long_rows = round(long_share * self.text_rows) if len(outside) else self.text_rows
        self._kinds = [
            _Blocks(inside, long_rows, (*key, "long", "order")),
            _Blocks(outside, self.text_rows - long_rows, (*key, "order")),
        ]

    def batch(self, step: int) -> Batch:
        parts = []
        if self.text_rows:
            chosen = [block for kind in self._kinds for block in kind.of_step(step)]
            blocks = torch.stack([self.packed.block(index) for index in chosen])
            parts.append(Batch(blocks, blocks))
        if self.needle_rows:
            sampled = self.task.sample(self.needle_rows, keyed_generator(*self.key, "needles", step))
            parts.append(Batch(sampled.input_ids, sampled.text_labels()))
        if self.label_rows:
            assert self.labels is not None
            ids = self.labels.sample(self.label_rows, keyed_generator(*self.key, "labels", step))
            parts.append(Batch(ids, ids))
        if self.repeat_rows:
            assert self.words is not None
            generator = keyed_generator(*self.key, "repeated", step)
            parts.append(_repeated(self.repeat_rows, self.task, self.words, generator))
        return _join(parts)


class _Blocks:
    """Some blocks, shuffled again after each pass, with the same number of them in each step."""

    def __init__(self, blocks: Tensor, rows: int, key: tuple[object, ...]) -> None:
        self.blocks, self.rows, self.key = blocks, rows, key
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def of_step(self, step: int) -> list[int]:
        """Indices of the step's blocks."""
        return [self._block(index) for index in range(step * self.rows, (step + 1) * self.rows)]

    def _block(self, index: int) -> int:
        epoch, place = divmod(index, len(self.blocks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self.blocks), generator=keyed_generator(*self.key, epoch))
        return int(self.blocks[self._order[place]])


def _repeated(count: int, task: RetrievalTask, words: Tensor, generator: torch.Generator) -> Batch:
    """Sequences that repeat random tokens from ``words``; tokens count in the loss from their second occurrence.

    Every word is copied equally often, so that all of them remain distinguishable in tied embeddings.
    """
    opening = torch.tensor(task.language.opening(), dtype=torch.int64)
    length = task.sequence_length - len(opening)
    periods = drawn_periods(count, length, generator)
    random = words[torch.randint(len(words), (count, max(1, length // 2)), generator=generator)]
    places = torch.arange(length).expand(count, -1)
    ids = torch.cat([opening.expand(count, -1), random.gather(1, places % periods)], dim=1)
    labels = ids.clone()
    labels[:, : len(opening)] = IGNORED_LABEL
    labels[:, len(opening) :][places < periods] = IGNORED_LABEL
    return Batch(ids, labels)


def drawn_periods(count: int, length: int, generator: torch.Generator) -> Tensor:
    """(count, 1) int64: random periods in tokens of ``count`` sequences, at most half their length.

    With a single period, attending at a fixed distance would suffice, and nothing would have to be found by content.
    """
    longest = max(1, length // 2)
    return torch.randint(min(SHORTEST_PERIOD, longest), longest + 1, (count, 1), generator=generator)


def _join(parts: list[Batch]) -> Batch:
    return Batch(torch.cat([part.input_ids for part in parts]), torch.cat([part.labels for part in parts]))
