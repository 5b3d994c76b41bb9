"""Training batches as a pure function of seed, step and length of the retrieval sequences: any step can be recomputed,
in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy
import torch
from torch import Tensor

from antiphase.base.errors import InputError, named
from antiphase.base.randomness import KeyedPermutation, keyed_generator
from antiphase.lab.settings.presets import SMALLEST_WEIGHT, rows_by_share
from antiphase.lab.text.label_mapping import LabelMapping
from antiphase.lab.text.packing import PackedTokens
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from antiphase.ops.shapes import IGNORED_TARGET

SHORTEST_PERIOD = 4
"""Shortest period, in tokens, of a repeated random sequence."""


@dataclass(frozen=True)
class Batch:
    """Sequences and their prediction targets."""

    input_ids: Tensor
    """(B, L) int64."""
    labels: Tensor
    """(B, L) int64: the token itself if it counts in the loss, else -100."""
    pages: Tensor | None = None
    """(B,) int64: number of equally long pages of each row, which do not see each other; None means one page each."""


class Stream(Protocol):
    """A source of batches."""

    def batch(self, step: int, page_length: int | None = None) -> Batch:
        """The batch of a 0-based step; equal arguments give equal batches.

        Args:
            page_length: tokens of a retrieval sequence, of which a row holds several; None means those of a row.
        """
        ...


class SyntheticStream:
    """Retrieval sequences and repeated random sequences. Random filler is noise, so only predictable tokens count."""

    def __init__(self, task: RetrievalTask, *, batch_size: int, needle_share: float, key: tuple[object, ...]) -> None:
        self.task, self.batch_size, self.key = task, batch_size, key
        self.needle_rows = rows_by_share(batch_size, {"needle_share": needle_share})["needle_share"]

    def batch(self, step: int, page_length: int | None = None) -> Batch:
        generator = keyed_generator(*self.key, step)
        task, pages = _in_pages(self.task, page_length)
        parts = []
        if self.needle_rows:
            sampled = task.sample(self.needle_rows * pages, generator)
            parts.append(_rows_of(Batch(sampled.input_ids, sampled.labels()), pages))
        if self.needle_rows < self.batch_size:
            language = task.language
            assert isinstance(language, SymbolLanguage)
            words = torch.arange(len(language.special_tokens), len(language.words))
            repeated = _repeated((self.batch_size - self.needle_rows) * pages, task, words, generator)
            parts.append(_rows_of(repeated, pages))
        return _join(parts)


class TextStream:
    """Shuffled blocks of packed text, with shares of retrieval sequences, in-context labels and repeated tokens.

    With a long share, that part of the text rows comes from blocks inside one document and the rest from all others;
    both kinds are shuffled and repeated separately. With weights, each source has its share of the text rows.
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
        weights: Sequence[float] = (),
        order: Literal["permutation", "keyed"] = "permutation",
        answers_only: bool = False,
    ) -> None:
        """
        Args:
            labels: generates the sequences of ``label_share``.
            words: token ids from which the sequences of ``repeat_share`` are drawn.
            long_share: share of the text rows from inside one document; None means no distinction.
            end: the token between documents; required with ``long_share``.
            weights: share of each source of ``packed`` in the text rows; none means that all are one text.
            order: how blocks are shuffled, as ``data.order``.
            answers_only: whether only the answers of retrieval sequences count in the loss.

        Raises:
            InputError: no document is as long as a sequence, or a source of a mixture is shorter.
        """
        self.packed, self.task, self.key, self.labels, self.words = packed, task, key, labels, words
        self.answers_only = answers_only
        shares = {"needle_share": needle_share, "label_share": label_share, "repeat_share": repeat_share}
        self.needle_rows, self.label_rows, self.repeat_rows, self.text_rows = rows_by_share(batch_size, shares).values()
        self._kinds: list[_Rows] = []
        if weights:
            self._kinds = [_Mixture(packed, weights, self.text_rows, key, order)]
        elif long_share is None:
            self._kinds = [_Rows(_Blocks(range(len(packed)), (*key, "order"), order).block, self.text_rows)]
        else:
            assert end is not None
            self._kinds = _by_length(packed, end, round(long_share * self.text_rows), self.text_rows, key, order)

    def batch(self, step: int, page_length: int | None = None) -> Batch:
        parts = []
        task, pages = _in_pages(self.task, page_length)
        if self.text_rows:
            chosen = [block for kind in self._kinds for block in kind.of_step(step)]
            blocks = torch.stack([self.packed.block(index) for index in chosen])
            parts.append(Batch(blocks, blocks))
        if self.needle_rows:
            sampled = task.sample(self.needle_rows * pages, keyed_generator(*self.key, "needles", step))
            labels = sampled.labels() if self.answers_only else sampled.text_labels()
            parts.append(_rows_of(Batch(sampled.input_ids, labels), pages))
        if self.label_rows:
            assert self.labels is not None
            ids = self.labels.sample(self.label_rows, keyed_generator(*self.key, "labels", step))
            parts.append(Batch(ids, ids))
        if self.repeat_rows:
            assert self.words is not None
            generator = keyed_generator(*self.key, "repeated", step)
            parts.append(_rows_of(_repeated(self.repeat_rows * pages, task, self.words, generator), pages))
        self.packed.release()
        return _join(parts)


class _Blocks:
    """Some blocks, shuffled again after each pass."""

    def __init__(self, blocks: Sequence[int] | numpy.ndarray, key: tuple[object, ...], order: str) -> None:
        self.blocks, self.key, self.order = blocks, key, order
        self._epoch = -1
        self._places: Tensor | KeyedPermutation = torch.empty(0, dtype=torch.int64)

    def block(self, index: int) -> int:
        """The block that is shown as number ``index`` of all passes."""
        epoch, place = divmod(index, len(self.blocks))
        if epoch != self._epoch:
            self._epoch = epoch
            if self.order == "keyed":
                self._places = KeyedPermutation(len(self.blocks), *self.key, epoch)
            else:
                self._places = torch.randperm(len(self.blocks), generator=keyed_generator(*self.key, epoch))
        return int(self.blocks[int(self._places[place])])


class _Rows:
    """The same number of rows in each step, from blocks by their number."""

    def __init__(self, block: Callable[[int], int], rows: int) -> None:
        self.block, self.rows = block, rows

    def of_step(self, step: int) -> list[int]:
        """Indices of the step's blocks."""
        return [self.block(index) for index in range(step * self.rows, (step + 1) * self.rows)]


def _by_length(
    packed: PackedTokens, end: int, long_rows: int, rows: int, key: tuple[object, ...], order: str
) -> list[_Rows]:
    """Rows from inside one document, and rows from all other blocks.

    Raises:
        InputError: no document is as long as a sequence.
    """
    inside = packed.without(end)
    if not len(inside):
        raise InputError(
            f"data.long_share: no document has {packed.sequence_length} tokens without a break; remove "
            "data.long_share or lower data.sequence_length"
        )
    is_outside = numpy.ones(len(packed), dtype=bool)
    is_outside[inside] = False
    outside = numpy.flatnonzero(is_outside)
    if not len(outside):
        long_rows = rows
    return [
        _Rows(_Blocks(inside, (*key, "long", "order"), order).block, long_rows),
        _Rows(_Blocks(outside, (*key, "order"), order).block, rows - long_rows),
    ]


class _Mixture(_Rows):
    """Rows of several sources by weight: spread evenly over a cycle of ``CYCLE`` rows, which repeats.

    Each source has its own order and its own passes. Spreading the sources evenly, as Megatron-LM's blended datasets
    do, keeps every batch within one row per source of its share; a fixed cycle makes it a function of the row's number.
    """

    CYCLE = round(1 / SMALLEST_WEIGHT)

    def __init__(
        self, packed: PackedTokens, weights: Sequence[float], rows: int, key: tuple[object, ...], order: str
    ) -> None:
        super().__init__(self._block, rows)
        self.sources = []
        for source in range(len(weights)):
            blocks = packed.blocks_of(source)
            if not len(blocks):
                raise InputError(
                    f"{named(packed.field)} number {source + 1} holds less than one block of data.sequence_length="
                    f"{packed.sequence_length}; give more text, or leave it and its number of data.weights out"
                )
            self.sources.append(_Blocks(blocks, (*key, "source", source, "order"), order))
        shares = {str(source): weight for source, weight in enumerate(weights)}
        self.counts = [rows_by_share(self.CYCLE, shares)[name] for name in shares]
        places = [(numpy.arange(count) + 0.5) / count for count in self.counts]
        sources = numpy.repeat(numpy.arange(len(weights)), self.counts)
        in_order = numpy.argsort(numpy.concatenate(places), kind="stable")
        self._source = sources[in_order]  # (CYCLE,) the source of each row
        self._number = numpy.concatenate([numpy.arange(count) for count in self.counts])[in_order]

    def _block(self, index: int) -> int:
        cycle, place = divmod(index, len(self._source))
        source = int(self._source[place])
        return self.sources[source].block(cycle * self.counts[source] + int(self._number[place]))


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
    labels[:, : len(opening)] = IGNORED_TARGET
    labels[:, len(opening) :][places < periods] = IGNORED_TARGET
    return Batch(ids, labels)


def drawn_periods(count: int, length: int, generator: torch.Generator) -> Tensor:
    """(count, 1) int64: random periods in tokens of ``count`` sequences, at most half their length.

    With a single period, attending at a fixed distance would suffice, and nothing would have to be found by content.
    """
    longest = max(1, length // 2)
    return torch.randint(min(SHORTEST_PERIOD, longest), longest + 1, (count, 1), generator=generator)


def _in_pages(task: RetrievalTask, page_length: int | None) -> tuple[RetrievalTask, int]:
    """The task in pages of a length, and how many of them fill a row."""
    if page_length in (None, task.sequence_length):
        return task, 1
    return task.of_length(page_length), task.sequence_length // page_length


def _rows_of(batch: Batch, pages: int) -> Batch:
    """Rows of so many sequences each, of which nothing predicts the first token."""
    if pages == 1:
        return batch
    labels = batch.labels.clone()
    labels[:, 0] = IGNORED_TARGET
    rows = len(labels) // pages
    return Batch(batch.input_ids.view(rows, -1), labels.view(rows, -1), torch.full((rows,), pages))


def _join(parts: list[Batch]) -> Batch:
    pages = None
    if any(part.pages is not None for part in parts):
        pages = torch.cat(
            [torch.ones(len(part.labels), dtype=torch.int64) if part.pages is None else part.pages for part in parts]
        )
    return Batch(torch.cat([part.input_ids for part in parts]), torch.cat([part.labels for part in parts]), pages)
