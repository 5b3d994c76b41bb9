"""Softmax maps block by block: some queries against all the keys they see, in buffers that the next block overwrites.

Whatever needs complete rows (the difference of two maps, sums over columns) is computed while a block is in its
buffers, so memory stays linear in the number of keys.

Each call takes several heads together, one map at a time. PyTorch then gives every thread the same heads in the batched
product, the softmax and the later steps, so that scores stay in the cache of the core that computed them.

Legend: B batch, G key groups (value heads), R query heads per group, S maps per head (2 in differential attention, else
1), K keys per group (S, or 1 if all maps share one), N queries, M keys, d, dv widths; U pairs of batch row and group in
a work item, n queries in a block, m keys that a block sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.shapes import product_dtype, statistics_dtype

QUERY_ROWS = 128
"""Rows of scores (queries times heads that share a key) in one block; doubled beyond ``FEW_KEYS`` keys."""
FEW_KEYS = 2048
"""Beyond this number of keys, a larger block saves more in sums over blocks than it wastes above the diagonal."""
SCORES_IN_CACHE = 1 << 21
"""Largest number of scores per map in a work item of several pairs: 8 MiB in fp32, so that both maps stay in the
last-level cache. An item of a single pair may have more.
"""


def view_as(buffer: Tensor, *shape: int) -> Tensor:
    """The beginning of a flat buffer, in this shape."""
    return buffer[: math.prod(shape)].view(shape)


class BlockLayout:
    """Divides one call into work items (which keys and values) and blocks (which queries), and owns the buffers."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        mask: Tensor | None,
        *,
        is_causal: bool,
        sliding_window: int,
        scale: float,
        products: torch.dtype | None = None,
    ) -> None:
        """Query (B, G, R, S, N, d), key (B, G, K, M, d), value (B, G, M, dv), mask (1|B, 1|G R, 1|N, M).

        ``value`` is None if only the maps are needed. ``sliding_window`` 0 means no window; a window implies causality.
        ``products`` is the dtype of products and maps; None means the fastest for the query's dtype.
        """
        self.batch, self.all_groups, self.repeats, self.streams, queries, _ = query.shape
        self.key_maps, self.keys_length = key.shape[2:4]
        self.value_width = 0 if value is None else value.shape[-1]
        self.scale = scale
        self.dtype = statistics_dtype(query.dtype)
        self.products = products or product_dtype(query)
        self.device = query.device
        self.query, self.key, self.value = query, key, value
        # (1|B, 1|G, 1|R, 1|N, M)
        self.mask = mask if mask is None else self.group(mask) if mask.shape[1] > 1 else mask.unsqueeze(1)

        rows = QUERY_ROWS if self.keys_length <= FEW_KEYS else 2 * QUERY_ROWS
        length = max(1, min(queries, rows // self.repeats))
        self.most_rows = length * self.repeats
        offset = self.keys_length - queries  # the last query is aligned with the last key
        is_causal = is_causal or sliding_window > 0
        self.edges: dict[tuple[int, int, int, bool], Edge] = {}
        self.blocks = [
            self._block(start, min(start + length, queries), offset, is_causal, sliding_window)
            for start in range(0, queries, length)
        ]
        self.widest = max((block.keys.stop - block.keys.start for block in self.blocks), default=0)
        fitting = SCORES_IN_CACHE // max(1, self.most_rows * self.widest)
        self.most_pairs = min(max(1, fitting), self.batch * self.all_groups)
        # Only a mask, or queries before the first key, can leave a row without any key.
        self.may_be_empty = mask is not None or (offset < 0 and is_causal)
        self.buffers: dict[str, Tensor] = {}
        self.scores = [self.row_buffer(f"scores {index}", self.widest) for index in range(self.streams)]

    def group(self, tensor: Tensor) -> Tensor:
        """(B, G R, ...) as (B, G, R, ...)."""
        return tensor.unflatten(1, (self.all_groups, self.repeats))

    def row_buffer(self, name: str, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """A buffer of ``width`` numbers for each row of the largest block; dtype None means that of products."""
        return self._buffer(name, self.most_pairs * self.most_rows * width, dtype or self.products)

    def key_buffer(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """A buffer of ``width`` numbers for each key of the largest work item."""
        return self._buffer(name, self.most_pairs * self.keys_length * width, dtype)

    def _buffer(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        if name not in self.buffers:
            self.buffers[name] = torch.empty(count, dtype=dtype, device=self.device)
        return self.buffers[name]

    def contiguous_rows(self, name: str, tensor: Tensor) -> Tensor:
        """(b, g, M, w) as (U, M, w), copied only if products need another dtype or memory order."""
        pairs = tensor.flatten(0, 1)
        if pairs.dtype == self.products and pairs.stride(1) == pairs.shape[2] and tensor.stride(3) == 1:
            return pairs
        buffer = self.key_buffer(name, tensor.shape[3], self.products)
        return view_as(buffer, *pairs.shape).copy_(pairs)

    def _block(self, start: int, stop: int, offset: int, is_causal: bool, window: int) -> QueryBlock:
        position = start + offset  # of the first query, counted in keys
        last = min(self.keys_length, stop + offset) if is_causal else self.keys_length
        first = max(0, position - window + 1) if window else 0
        if last <= first:
            return QueryBlock(slice(start, stop), slice(first, first), None, None)
        after = before = None
        edge = max(first, position + 1)
        if is_causal and edge < last:
            edge = first if 2 * (last - edge) > last - first else edge  # whole matrices are hidden in one call
            after = self._edge(stop - start, last - edge, position + 1 - edge, hides_after=True)
        edge = min(last, stop + offset - window)
        if window and edge > first:
            edge = last if 2 * (edge - first) > last - first else edge
            before = self._edge(stop - start, edge - first, position - window + 1 - first, hides_after=False)
        return QueryBlock(slice(start, stop), slice(first, last), after, before)

    def _edge(self, rows: int, columns: int, first: int, *, hides_after: bool) -> Edge:
        """The hidden entries of (rows, columns): column ≥ ``first`` + row, or column < ``first`` + row."""
        name = (rows, columns, first, hides_after)
        if name not in self.edges:
            ones = torch.ones(rows, columns, dtype=torch.bool, device=self.device)
            hidden = ones.triu_(first) if hides_after else ones.tril_(first - 1)
            bound = torch.full(hidden.shape, float("inf"), dtype=self.products, device=self.device)
            bound.masked_fill_(hidden, float("-inf"))
            self.edges[name] = Edge(bound, first, hides_after)
        return self.edges[name]

    def work_items(self) -> Iterator[WorkItem]:
        """As many pairs of batch row and key group at a time as fit their scores of a block in the cache."""
        pairs, groups = self.most_pairs, self.all_groups
        if pairs >= groups:
            step = pairs // groups
            spans = [(slice(b, min(b + step, self.batch)), slice(0, groups)) for b in range(0, self.batch, step)]
        else:
            spans = [
                (slice(b, b + 1), slice(g, min(g + pairs, groups)))
                for b in range(self.batch)
                for g in range(0, groups, pairs)
            ]
        for batches, groups_here in spans:
            yield WorkItem(self, batches, groups_here)


@dataclass(frozen=True)
class Edge:
    """The columns of a block in which causality or a window hides keys from some queries; all, where these are most."""

    bound: Tensor  # the largest score allowed there: -inf where hidden, else inf
    first: int
    hides_after: bool

    def hide(self, scores: Tensor) -> None:
        """Write -inf into the hidden part of scores (..., rows, columns), whatever their values.

        This takes two passes; the first replaces NaN and infinities, which a minimum would keep, by zeros. Both are
        vectorised, unlike ``masked_fill_`` with a broadcast mask.
        """
        # A batch of matrices is changed in place only if it is contiguous; otherwise it would be copied.
        for matrices in [scores] if scores.is_contiguous() else scores.view(-1, *scores.shape[-2:]):
            if self.hides_after:
                matrices.tril_(self.first - 1)
            else:
                matrices.triu_(self.first)
        torch.minimum(scores, self.bound, out=scores)


@dataclass(frozen=True)
class QueryBlock:
    """Some queries, the keys that any of them can see, and the edges that hide keys from some of them."""

    queries: slice
    keys: slice
    after: Edge | None  # the last keys, hidden from the first queries
    before: Edge | None  # the first keys, outside the window of the last queries

    @property
    def sees_no_key(self) -> bool:
        return self.keys.stop == self.keys.start


class WorkItem:
    """Some batch rows and key groups: their queries, keys and values, which all blocks of the layout use in turn."""

    def __init__(self, layout: BlockLayout, batches: slice, groups: slice) -> None:
        self.layout, self.batches, self.groups = layout, batches, groups
        self.queries = layout.query[batches, groups]  # (b, g, R, S, N, d)
        keys = layout.key[batches, groups]  # (b, g, K, M, d)
        self.keys = [layout.contiguous_rows(f"key {index}", keys[:, :, index]) for index in range(layout.key_maps)]
        self.count = self.queries.shape[0] * self.queries.shape[1]  # U
        if layout.value is not None:
            self.values = layout.contiguous_rows(
                "value", layout.value[batches, groups]
            )  # (U, M, dv); each key (U, M, d)
        mask = layout.mask
        if mask is not None:
            mask = mask[batches] if mask.shape[0] > 1 else mask
            mask = mask[:, groups] if mask.shape[1] > 1 else mask
        self.mask = mask  # (1|b, 1|g, 1|R, 1|N, M)
        self.hidden = slice(0, layout.keys_length)  # the range of keys that the mask hides from some query
        if mask is not None and mask.shape[3] == 1:  # padding is at an end, so most blocks have none
            columns = (~mask).flatten(0, 3).any(0).nonzero()[:, 0]
            self.hidden = slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else slice(0, 0)

    def rows(self, index: int, block: QueryBlock) -> Tensor:
        """The block's queries of one map, (U, R n, d)."""
        rows = self.queries[:, :, :, index, block.queries]  # (b, g, R, n, d)
        return rows.reshape(self.count, -1, rows.shape[-1]).to(self.layout.products)

    def per_query(self, values: Tensor, block: QueryBlock) -> Tensor:
        """Values of each query (b, N) as a row for each head of the block's queries, (U R, 1, n)."""
        batches, groups, repeats = self.queries.shape[:3]
        part = values[:, None, None, block.queries].expand(-1, groups, repeats, -1)
        return part.reshape(batches * groups * repeats, 1, -1)

    def scores(self, index: int, block: QueryBlock) -> Tensor:
        """Scaled scores (U, R n, m) of one map in the layout's buffer; -inf where a query may not attend."""
        rows = self.rows(index, block)
        keys = self.keys[index % self.layout.key_maps][:, block.keys]
        scores = view_as(self.layout.scores[index], *rows.shape[:2], keys.shape[1])
        scores.baddbmm_(rows, keys.transpose(1, 2), beta=0, alpha=self.layout.scale)
        self._hide(scores, block)
        return scores

    def softmax(self, scores: Tensor) -> Tensor:
        """The map (U, R n, m), written over its scores; a row that sees no key becomes zeros."""
        empty = scores.amax(dim=-1, keepdim=True) == float("-inf") if self.layout.may_be_empty else None
        torch.softmax(scores, dim=-1, out=scores)
        return scores if empty is None else scores.masked_fill_(empty, 0.0)

    def maps(self, block: QueryBlock) -> list[Tensor]:
        """All maps (U, R n, m) of the block's queries, in buffers that the next block overwrites."""
        return [self.softmax(self.scores(index, block)) for index in range(self.layout.streams)]

    def _hide(self, scores: Tensor, block: QueryBlock) -> None:
        """Write -inf where a query may not attend: above the diagonal, before the window, outside the mask."""
        pairs, rows, keys = scores.shape
        by_query = scores.view(pairs, self.layout.repeats, rows // self.layout.repeats, keys)  # (U, R, n, m)
        if block.after is not None:
            block.after.hide(by_query[..., -block.after.bound.shape[1] :])
        if block.before is not None:
            block.before.hide(by_query[..., : block.before.bound.shape[1]])
        first, last = max(block.keys.start, self.hidden.start), min(block.keys.stop, self.hidden.stop)
        if self.mask is not None and first < last:
            mask = self.mask[:, :, :, block.queries] if self.mask.shape[3] > 1 else self.mask
            by_head = by_query.unflatten(0, self.queries.shape[:2])  # (b, g, R, n, m)
            by_head = by_head[..., first - block.keys.start : last - block.keys.start]
            by_head.masked_fill_(~mask[..., first:last], float("-inf"))
