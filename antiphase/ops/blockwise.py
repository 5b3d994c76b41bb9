"""Subtract first: differential attention over blocks of queries, memory linear in the number of keys.

A block of queries meets all its keys at once, so both softmaxes are finished before the values are touched; the two
maps are subtracted in place and multiplied by V once. That costs 4d multiply-adds for each pair of query and key, as
much as softmax attention of equal size, where two ordinary attention calls cost 6d. The backward pass recomputes the
maps block by block and is written by hand for q, k, v and λ.

Several heads go through each call together, one map at a time: PyTorch then hands every thread the same heads in the
batched product, the softmax and the subtraction, so that scores stay in the cache of the core that made them. One head
at a time, or both maps in one call, sends half of them from core to core.

Legend: B batch, H heads, G value heads, R = H / G heads a value head, N queries, M keys, d, dv widths; U units (pairs
of batch row and value head) that are worked on together, n queries of a block, m keys that a block sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.shapes import check_tensors, statistics_dtype

QUERY_ROWS = 128
"""Rows of scores (queries times heads that share a value) in one block; twice as many beyond ``FEW_KEYS`` keys."""
FEW_KEYS = 2048
"""With more keys, what a larger block wastes above the diagonal is less than it saves in sums over blocks."""
SCORES_IN_CACHE = 1 << 21
"""Scores of one map that a block may hold: 8 MiB in fp32, so that both maps stay in the last-level cache."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    sliding_window: int,
    scale: float,
) -> Tensor:
    """Output (B, H, N, dv), stored as (B, N, H, dv) so that the layer's reshape costs nothing.

    ``lam`` (1|B, 1|H, 1|N) in the statistics dtype and ``mask`` (1|B, 1|H, 1|N, M) come checked from ``shapes``;
    ``sliding_window`` 0 means none. Statistics and accumulation are fp32 (fp64 for fp64).
    """
    plan = _Plan(query, key, value, lam, mask, is_causal, sliding_window, scale)
    out = _empty_output(query, key, value)
    grouped_out = plan.group(out)
    result = plan.new_buffer(plan.value_width)
    for unit in plan.units():
        unit_out = grouped_out[unit.batches, unit.groups]
        for block in plan.blocks:
            rows = unit_out[:, :, :, block.queries]  # (b, g, R, n, dv)
            if block.is_blind:
                rows.zero_()
                continue
            first, second = unit.softmax_maps(block)
            difference = first.addcmul_(second, unit.lam_column(block), value=-1)
            product = _shaped(result, *first.shape[:2], plan.value_width)
            rows.copy_(torch.bmm(difference, unit.values[:, block.keys], out=product).view(rows.shape))
    return out


blockwise_attention = torch.library.custom_op("antiphase::blockwise_attention", attend, mutates_args=())


@blockwise_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    sliding_window: int,
    scale: float,
) -> Tensor:
    return _empty_output(query, key, value)


def _empty_output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch, maps, queries, _ = query.shape
    return query.new_empty(batch, queries, maps // 2, value.shape[-1]).transpose(1, 2)


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    sliding_window: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and lam, in their shapes and dtypes, for the cotangent ``grad`` (B, H, N, dv).

    With P1, P2 the maps and dP = dO Vᵀ: dV = (P1 - λP2)ᵀ dO; dS1 = P1∘(dP - rowsum(P1∘dP));
    dS2 = -λ P2∘(dP - rowsum(P2∘dP)); dλ = -rowsum(P2∘dP). The factor -λ of the second map is applied to rows of
    width d, never to rows of scores. dK and dV are summed up transposed, (d, M): that product is the faster one.
    """
    plan = _Plan(query, key, value, lam, mask, is_causal, sliding_window, scale)
    grad_query, grad_key, grad_value = (
        torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)
    )
    grad_lam = lam.new_zeros(plan.batch, plan.all_groups, plan.repeats, lam.shape[2])
    grouped_grad = plan.group(grad)  # (B, G, R, N, dv)
    grouped_queries = grad_query.unflatten(1, (plan.all_groups, plan.repeats, 2))  # (B, G, R, 2, N, d)
    grouped_keys = grad_key.unflatten(1, (plan.all_groups, plan.key_maps))  # (B, G, 2|1, M, d)
    width, value_width = query.shape[-1], value.shape[-1]
    third_buffer = plan.new_buffer(plan.keys_length)
    step_buffer = value.new_empty(plan.most_units * plan.keys_length * max(width, value_width), dtype=plan.dtype)

    def add_product(total: Tensor, rows: Tensor, scores: Tensor, keys: slice) -> None:
        """Total (U, w, M) += rowsᵀ scores, for rows (U, R n, w) and scores (U, R n, m)."""
        product = _shaped(step_buffer, len(rows), rows.shape[-1], scores.shape[-1])
        total[:, :, keys] += torch.bmm(rows.transpose(1, 2), scores, out=product)

    for unit in plan.units():
        count = len(unit.values)
        here = unit.batches, unit.groups
        unit_grad = grouped_grad[here].to(plan.dtype)
        key_sums = [unit.values.new_zeros(count, width, plan.keys_length) for _ in range(plan.key_maps)]
        value_sum = unit.values.new_zeros(count, value_width, plan.keys_length)
        for block in plan.blocks:
            if block.is_blind:
                continue
            maps = unit.softmax_maps(block)
            third = _shaped(third_buffer, *maps[0].shape)  # first P1 - λP2, then dP
            lam_column = unit.lam_column(block)
            cotangent = unit_grad[:, :, :, block.queries].reshape(count, -1, value_width)  # (U, R n, dv)
            add_product(
                value_sum, cotangent, torch.addcmul(maps[0], maps[1], lam_column, value=-1, out=third), block.keys
            )
            torch.bmm(cotangent, unit.values[:, block.keys].transpose(1, 2), out=third)
            for index, scores in enumerate(maps):
                if index == 1:  # the first map is done with: room for P2∘dP
                    second_mean = torch.mul(scores, third, out=maps[0]).sum(-1)  # (U, R n)
                    grad_lam[here][..., block.lam_rows] -= unit.sum_to_lam(second_mean)
                torch.ops.aten._softmax_backward_data.out(third, scores, -1, plan.dtype, grad_input=scores)
                factor = 1.0 if index == 0 else -lam_column
                key_sum, keys = key_sums[index % plan.key_maps], unit.keys[index % plan.key_maps]
                add_product(key_sum, unit.rows(index, block) * factor, scores, block.keys)
                grad_rows = torch.bmm(scores, keys[:, block.keys]).mul_(scale * factor)  # (U, R n, d)
                target = grouped_queries[here][:, :, :, index, block.queries]
                target.copy_(grad_rows.view(target.shape))
        for index, key_sum in enumerate(key_sums):
            target = grouped_keys[here][:, :, index]
            target.copy_(key_sum.transpose(1, 2).view(target.shape))
        target = grad_value[here]
        target.copy_(value_sum.transpose(1, 2).view(target.shape))
    return grad_query, grad_key, grad_value, grad_lam.flatten(1, 2).sum_to_size(lam.shape).clone()


blockwise_attention_backward = torch.library.custom_op(
    "antiphase::blockwise_attention_backward", attend_backward, mutates_args=()
)


@blockwise_attention_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    sliding_window: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value))
    return query, key, value, torch.empty_like(lam)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # torch.library gives no types
    query, key, value, lam, mask, *ctx.arguments = inputs
    ctx.save_for_backward(query, key, value, lam, mask)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch.library gives no types
    return (*blockwise_attention_backward(grad, *ctx.saved_tensors, *ctx.arguments), None, None, None, None)


def _refuse_backward(ctx, *grads):  # type: ignore[no-untyped-def]  # torch.library gives no types
    raise RuntimeError(
        'the blockwise implementation has no second derivatives; use differential_attention(..., impl="reference")'
    )


blockwise_attention.register_autograd(_backward, setup_context=_setup_context)
blockwise_attention_backward.register_autograd(_refuse_backward)


def _shaped(buffer: Tensor, *shape: int) -> Tensor:
    """The first numbers of a flat buffer, in this shape."""
    return buffer[: math.prod(shape)].view(shape)


def _rows_together(tensor: Tensor) -> Tensor:
    """(b, g, M, w) as (U, M, w), copied only where the rows of a head do not lie one after the other."""
    together = tensor.flatten(0, 1)
    return together if together.stride(1) == together.shape[2] else together.contiguous()


class _Plan:
    """Cuts one call into units (which keys and values) and blocks (which queries), and owns the buffers."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lam: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        sliding_window: int,
        scale: float,
    ) -> None:
        shape = check_tensors(query, key, value)
        self.batch, self.all_groups, self.repeats = shape.batch, shape.value_heads, shape.heads_per_value
        self.key_maps, self.value_width = shape.key_maps, shape.value_width
        self.keys_length = shape.keys
        self.scale = scale
        self.dtype = statistics_dtype(query.dtype)
        self.query = query.unflatten(1, (self.all_groups, self.repeats, 2))  # (B, G, R, 2, N, d)
        self.key = key.unflatten(1, (self.all_groups, self.key_maps))  # (B, G, 2|1, M, d)
        self.value = value  # (B, G, M, dv)
        self.lam = self.group(lam.expand(self.batch, shape.heads, -1))  # (B, G, R, 1|N)
        # (1|B, 1|G, 1|R, 1|N, M)
        self.mask = mask if mask is None else self.group(mask) if mask.shape[1] > 1 else mask.unsqueeze(1)

        rows = QUERY_ROWS if shape.keys <= FEW_KEYS else 2 * QUERY_ROWS
        length = max(1, min(shape.queries, rows // self.repeats))
        self.most_rows = length * self.repeats
        fitting = SCORES_IN_CACHE // max(1, self.most_rows * self.keys_length)
        self.most_units = min(max(1, fitting), self.batch * self.all_groups)
        offset = shape.keys - shape.queries  # the last query stands at the last key
        is_causal = is_causal or sliding_window > 0
        self.edges: dict[tuple[int, int, int, bool], _Edge] = {}
        self.blocks = [
            self._block(start, min(start + length, shape.queries), offset, is_causal, sliding_window)
            for start in range(0, shape.queries, length)
        ]
        # Only a mask, or queries before the first key, can leave a row without any key.
        self.may_be_empty = mask is not None or (offset < 0 and is_causal)
        self.scores = [self.new_buffer(self.keys_length) for _ in range(2)]

    def group(self, tensor: Tensor) -> Tensor:
        """(B, H, ...) as (B, G, R, ...)."""
        return tensor.unflatten(1, (self.all_groups, self.repeats))

    def new_buffer(self, width: int) -> Tensor:
        """Room for ``width`` numbers for each row of the largest block."""
        return torch.empty(self.most_units * self.most_rows * width, dtype=self.dtype, device=self.value.device)

    def _block(self, start: int, stop: int, offset: int, is_causal: bool, window: int) -> _Block:
        position = start + offset  # of the first query among the keys
        last = min(self.keys_length, stop + offset) if is_causal else self.keys_length
        first = max(0, position - window + 1) if window else 0
        if last <= first:
            return _Block(slice(start, stop), slice(first, first), None, None, self._lam_rows(start, stop))
        after = before = None
        edge = max(first, position + 1)
        if is_causal and edge < last:
            after = self._edge(stop - start, last - edge, position + 1 - edge, hides_after=True)
        edge = min(last, stop + offset - window)
        if window and edge > first:
            before = self._edge(stop - start, edge - first, position - window + 1 - first, hides_after=False)
        return _Block(slice(start, stop), slice(first, last), after, before, self._lam_rows(start, stop))

    def _lam_rows(self, start: int, stop: int) -> slice:
        return slice(start, stop) if self.lam.shape[-1] > 1 else slice(0, 1)

    def _edge(self, rows: int, columns: int, first: int, *, hides_after: bool) -> _Edge:
        """What is hidden of (rows, columns): column ≥ ``first`` + row, or column < ``first`` + row."""
        name = (rows, columns, first, hides_after)
        if name not in self.edges:
            ones = torch.ones(rows, columns, dtype=torch.bool, device=self.value.device)
            hidden = ones.triu_(first) if hides_after else ones.tril_(first - 1)
            bound = torch.full(hidden.shape, float("inf"), dtype=self.dtype, device=self.value.device)
            bound.masked_fill_(hidden, float("-inf"))
            self.edges[name] = _Edge(bound, first, hides_after)
        return self.edges[name]

    def units(self) -> Iterator[_Unit]:
        """As many pairs of batch row and value head at a time as keep the scores of a block in cache."""
        together, groups = self.most_units, self.all_groups
        if together >= groups:
            step = together // groups
            spans = [(slice(b, min(b + step, self.batch)), slice(0, groups)) for b in range(0, self.batch, step)]
        else:
            spans = [
                (slice(b, b + 1), slice(g, min(g + together, groups)))
                for b in range(self.batch)
                for g in range(0, groups, together)
            ]
        for batches, groups_here in spans:
            yield _Unit(self, batches, groups_here)


@dataclass(frozen=True)
class _Edge:
    """Where causality or a window cuts through the scores of a block."""

    bound: Tensor  # the largest score allowed there: -inf where hidden, else inf
    first: int
    hides_after: bool

    def hide(self, scores: Tensor) -> None:
        """Write -inf into the hidden part of scores (..., rows, columns), whatever stands there.

        Two passes over few columns: the first puts zeros in the place of NaN and infinities, which a minimum would
        keep. Both run vectorised, which ``masked_fill_`` with a broadcast mask does not.
        """
        if self.hides_after:
            scores.tril_(self.first - 1)
        else:
            scores.triu_(self.first)
        torch.minimum(scores, self.bound, out=scores)


@dataclass(frozen=True)
class _Block:
    """Which queries, the keys that any of them can see, and what the edges hide from some of them."""

    queries: slice
    keys: slice
    after: _Edge | None  # the last keys, hidden from the first queries
    before: _Edge | None  # the first keys, left behind by the window of the last queries
    lam_rows: slice

    @property
    def is_blind(self) -> bool:
        return self.keys.stop == self.keys.start


class _Unit:
    """Some batch rows and value heads, whose queries, keys and values stay while the blocks pass by."""

    def __init__(self, plan: _Plan, batches: slice, groups: slice) -> None:
        self.plan, self.batches, self.groups = plan, batches, groups
        query = plan.query[batches, groups].movedim(3, 0).to(plan.dtype)  # (2, b, g, R, N, d)
        # Scaled once and contiguous, so that where R = 1 the rows of a block are a view.
        scaled = torch.empty(query.shape, dtype=plan.dtype, device=query.device)
        self.queries = torch.mul(query, plan.scale, out=scaled).flatten(1, 2)  # (2, U, R, N, d)
        keys = plan.key[batches, groups].to(plan.dtype)  # (b, g, 2|1, M, d)
        self.keys = [_rows_together(keys[:, :, index]) for index in range(plan.key_maps)]  # each (U, M, d)
        self.values = _rows_together(plan.value[batches, groups].to(plan.dtype))  # (U, M, dv)
        self.lam = plan.lam[batches, groups]  # (b, g, R, 1|N)
        mask = plan.mask
        if mask is not None:
            mask = mask[batches] if mask.shape[0] > 1 else mask
            mask = mask[:, groups] if mask.shape[1] > 1 else mask
        self.mask = mask  # (1|b, 1|g, 1|R, 1|N, M)
        self._shared_lam: dict[int, Tensor] = {}

    def rows(self, index: int, block: _Block) -> Tensor:
        """The block's queries of one map, scaled, (U, R n, d)."""
        queries = self.queries[index]
        return queries[:, :, block.queries].reshape(len(queries), -1, queries.shape[-1])

    def lam_column(self, block: _Block) -> Tensor:
        """λ of each row, (U, R n, 1)."""
        if self.lam.shape[-1] > 1:
            return self.lam[..., block.lam_rows].reshape(len(self.values), -1, 1)
        length = block.queries.stop - block.queries.start
        if length not in self._shared_lam:
            expanded = self.lam.expand(*self.lam.shape[:3], length)
            self._shared_lam[length] = expanded.reshape(len(self.values), -1, 1)
        return self._shared_lam[length]

    def sum_to_lam(self, rows: Tensor) -> Tensor:
        """Row values (U, R n) as (b, g, R, 1|n): summed over the queries where they share a λ."""
        grouped = rows.view(*self.lam.shape[:3], -1)
        return grouped if self.lam.shape[-1] > 1 else grouped.sum(-1, keepdim=True)

    def softmax_maps(self, block: _Block) -> list[Tensor]:
        """Both maps (U, R n, m), in the plan's buffers, which the next block overwrites."""
        maps = []
        for index, buffer in enumerate(self.plan.scores):
            rows = self.rows(index, block)
            keys = self.keys[index % self.plan.key_maps][:, block.keys]
            scores = _shaped(buffer, *rows.shape[:2], keys.shape[1])
            torch.bmm(rows, keys.transpose(1, 2), out=scores)
            self._hide(scores, block)
            empty = scores.amax(dim=-1, keepdim=True) == float("-inf") if self.plan.may_be_empty else None
            torch.softmax(scores, dim=-1, out=scores)
            if empty is not None:
                scores.masked_fill_(empty, 0.0)
            maps.append(scores)
        return maps

    def _hide(self, scores: Tensor, block: _Block) -> None:
        """Write -inf where a query may not look: above the diagonal, before the window, outside the mask."""
        units, rows, keys = scores.shape
        by_query = scores.view(units, self.plan.repeats, rows // self.plan.repeats, keys)  # (U, R, n, m)
        if block.after is not None:
            block.after.hide(by_query[..., -block.after.bound.shape[1] :])
        if block.before is not None:
            block.before.hide(by_query[..., : block.before.bound.shape[1]])
        if self.mask is not None:
            mask = self.mask[:, :, :, block.queries] if self.mask.shape[3] > 1 else self.mask
            by_head = by_query.unflatten(0, self.lam.shape[:2])  # (b, g, R, n, m)
            by_head.masked_fill_(~mask[..., block.keys], float("-inf"))
