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
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.shapes import check_tensors, product_dtype, statistics_dtype

QUERY_ROWS = 128
"""Rows of scores (queries times heads that share a value) in one block; twice as many beyond ``FEW_KEYS`` keys."""
FEW_KEYS = 2048
"""With more keys, what a larger block wastes above the diagonal is less than it saves in sums over blocks."""
SCORES_IN_CACHE = 1 << 21
"""Scores of one map that a block may hold: 8 MiB in fp32, so that both maps stay in the last-level cache."""
KEPT_BYTES = 32 << 20
"""Largest buffer that a thread keeps for its next call."""


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
    result = plan.block_room("result", plan.value_width)
    for unit in plan.units():
        unit_out = grouped_out[unit.batches, unit.groups]
        for block in plan.blocks:
            rows = unit_out[:, :, :, block.queries]  # (b, g, R, n, dv)
            if block.is_blind:
                rows.zero_()
                continue
            first, second = unit.softmax_maps(block)
            difference = first.addcmul_(second, unit.lam_column(block).to(plan.products), value=-1)
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
        torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)
    )
    grad_lam = lam.new_zeros(plan.batch, plan.all_groups, plan.repeats, lam.shape[2])
    grouped_grad = plan.group(grad)  # (B, G, R, N, dv)
    grouped_queries = grad_query.unflatten(1, (plan.all_groups, plan.repeats, 2))  # (B, G, R, 2, N, d)
    grouped_keys = grad_key.unflatten(1, (plan.all_groups, plan.key_maps))  # (B, G, 2|1, M, d)
    width, value_width = query.shape[-1], value.shape[-1]
    third_buffer = plan.block_room("third", plan.keys_length)
    step_buffer = plan.unit_room("step", max(width, value_width), plan.products)
    is_rounded = plan.products != plan.dtype

    def add_product(total: Tensor, rows: Tensor, scores: Tensor, keys: slice) -> None:
        """Total (U, w, M) += rowsᵀ scores, for rows (U, R n, w) and scores (U, R n, m)."""
        shape = len(rows), rows.shape[-1], scores.shape[-1]
        product = torch.bmm(rows.to(plan.products).transpose(1, 2), scores, out=_shaped(step_buffer, *shape))
        if is_rounded:
            room = plan.unit_room("step in full", max(width, value_width), plan.dtype)
            product = _shaped(room, *shape).copy_(product)
        total[:, :, keys].add_(product)

    for unit in plan.units():
        count = len(unit.values)
        here = unit.batches, unit.groups
        unit_grad = grouped_grad[here].to(plan.products)
        key_sums = [
            _shaped(plan.unit_room(f"key sum {index}", width, plan.dtype), count, width, plan.keys_length).zero_()
            for index in range(plan.key_maps)
        ]
        room = plan.unit_room("value sum", value_width, plan.dtype)
        value_sum = _shaped(room, count, value_width, plan.keys_length).zero_()
        for block in plan.blocks:
            if block.is_blind:
                grouped_queries[here][..., block.queries, :] = 0
                continue
            maps = unit.softmax_maps(block, keeps_unrounded=is_rounded)
            third = _shaped(third_buffer, *maps[0].shape)  # first P1 - λP2, then dP
            lam_column = unit.lam_column(block)
            cotangent = unit_grad[:, :, :, block.queries].reshape(count, -1, value_width)  # (U, R n, dv)
            torch.addcmul(maps[0], maps[1], lam_column.to(plan.products), value=-1, out=third)
            add_product(value_sum, cotangent, third, block.keys)
            torch.bmm(cotangent, unit.values[:, block.keys].transpose(1, 2), out=third)
            for index, scores in enumerate(maps):
                if index == 1:
                    if is_rounded:
                        room = plan.block_room("third in full", plan.keys_length, plan.dtype)
                        dots = _shaped(room, *third.shape).copy_(third).mul_(unit.unrounded)
                    else:  # the first map is done with: room for P2∘dP
                        dots = torch.mul(scores, third, out=maps[0])
                    second_mean = dots.sum(-1)  # (U, R n)
                    grad_lam[here][..., block.lam_rows] -= unit.sum_to_lam(second_mean)
                torch.ops.aten._softmax_backward_data.out(third, scores, -1, plan.products, grad_input=scores)
                factor = 1.0 if index == 0 else -lam_column
                key_sum, keys = key_sums[index % plan.key_maps], unit.keys[index % plan.key_maps]
                add_product(key_sum, unit.rows(index, block) * (scale * factor), scores, block.keys)
                grad_rows = torch.bmm(scores, keys[:, block.keys]) * (scale * factor)  # (U, R n, d)
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


class _Rooms(threading.local):
    """Buffers that a thread keeps from call to call.

    Memory that the system has only just given costs a page fault for every 4 KiB, which a short call feels most.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """``count`` numbers, whatever stands there; the same memory as the last one of this name."""
        if device.type != "cpu" or count * dtype.itemsize > KEPT_BYTES:
            return torch.empty(count, dtype=dtype, device=device)  # other devices have an allocator that keeps
        kept = self.kept.get((name, dtype))
        if kept is None or len(kept) < count:
            with torch.inference_mode(False):  # a tensor of inference mode could not be written outside of it
                kept = self.kept[name, dtype] = torch.empty(count, dtype=dtype)
        return kept[:count]


_ROOMS = _Rooms()


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
        self.products = product_dtype(query)
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
        self.scores = [self.block_room(f"scores {index}", self.keys_length) for index in range(2)]

    def group(self, tensor: Tensor) -> Tensor:
        """(B, H, ...) as (B, G, R, ...)."""
        return tensor.unflatten(1, (self.all_groups, self.repeats))

    def block_room(self, name: str, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Room for ``width`` numbers for each row of the largest block; None: the dtype of products."""
        return _ROOMS.take(name, self.most_units * self.most_rows * width, dtype or self.products, self.value.device)

    def unit_room(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """Room for ``width`` numbers for each key of the largest unit."""
        return _ROOMS.take(name, self.most_units * self.keys_length * width, dtype, self.value.device)

    def rows_together(self, name: str, tensor: Tensor) -> Tensor:
        """(b, g, M, w) as (U, M, w), copied only where dtype or order differ from what products want."""
        together = tensor.flatten(0, 1)
        if together.dtype == self.products and together.stride(1) == together.shape[2] and tensor.stride(3) == 1:
            return together
        room = self.unit_room(name, tensor.shape[3], self.products)
        return _shaped(room, *together.shape).copy_(together)

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
            bound = torch.full(hidden.shape, float("inf"), dtype=self.products, device=self.value.device)
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
        for matrix in scores.view(
            -1, *scores.shape[-2:]
        ):  # one at a time they are changed in place, several would be copied
            if self.hides_after:
                matrix.tril_(self.first - 1)
            else:
                matrix.triu_(self.first)
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
        self.queries = plan.query[batches, groups]  # (b, g, R, 2, N, d)
        keys = plan.key[batches, groups]  # (b, g, 2|1, M, d)
        self.keys = [plan.rows_together(f"key {index}", keys[:, :, index]) for index in range(plan.key_maps)]
        self.values = plan.rows_together("value", plan.value[batches, groups])  # (U, M, dv); each key (U, M, d)
        self.lam = plan.lam[batches, groups]  # (b, g, R, 1|N)
        mask = plan.mask
        if mask is not None:
            mask = mask[batches] if mask.shape[0] > 1 else mask
            mask = mask[:, groups] if mask.shape[1] > 1 else mask
        self.mask = mask  # (1|b, 1|g, 1|R, 1|N, M)
        self._shared_lam: dict[int, Tensor] = {}
        self.unrounded = self.values  # until a block has made its own

    def rows(self, index: int, block: _Block) -> Tensor:
        """The block's queries of one map, (U, R n, d)."""
        rows = self.queries[:, :, :, index, block.queries]  # (b, g, R, n, d)
        return rows.reshape(len(self.values), -1, rows.shape[-1]).to(self.plan.products)

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

    def softmax_maps(self, block: _Block, *, keeps_unrounded: bool = False) -> list[Tensor]:
        """Both maps (U, R n, m), in the plan's buffers, which the next block overwrites.

        ``keeps_unrounded``: the second one is also left in ``unrounded``, in the statistics dtype; dλ, where each
        token has a λ of its own, has no other sum in which roundings even out.
        """
        maps = []
        for index, buffer in enumerate(self.plan.scores):
            rows = self.rows(index, block)
            keys = self.keys[index % self.plan.key_maps][:, block.keys]
            scores = _shaped(buffer, *rows.shape[:2], keys.shape[1])
            scores.baddbmm_(rows, keys.transpose(1, 2), beta=0, alpha=self.plan.scale)
            self._hide(scores, block)
            empty = scores.amax(dim=-1, keepdim=True) == float("-inf") if self.plan.may_be_empty else None
            target = scores
            if keeps_unrounded and index == 1:
                room = self.plan.block_room("unrounded", self.plan.keys_length, self.plan.dtype)
                self.unrounded = target = _shaped(room, *scores.shape).copy_(scores)
            torch.softmax(target, dim=-1, out=target)
            if empty is not None:
                target.masked_fill_(empty, 0.0)
            if target is not scores:
                scores.copy_(target)
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
