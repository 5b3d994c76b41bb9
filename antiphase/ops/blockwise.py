"""Subtract first: differential attention over blocks of queries, memory linear in the number of keys.

A block of queries meets all its keys at once, so both softmaxes are finished before the values are touched; the two
maps are subtracted in place and multiplied by V once. That costs 4d multiply-adds for each pair of query and key, as
much as softmax attention of equal size, where two ordinary attention calls cost 6d. The backward pass recomputes the
maps block by block and is written by hand for q, k, v and λ.

Legend: B batch, H heads, G value heads, R = H / G heads a value head, S = 2 maps a head, N queries, M keys,
d, dv widths; U units (pairs of batch row and value head) that are worked on together, n queries of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.shapes import check_tensors, statistics_dtype

QUERY_ROWS = 128
"""Rows of scores (queries times heads that share a value) in one block."""
SCORES_IN_CACHE = 1 << 20
"""Scores of one map that a block may hold: 4 MiB in fp32, so that both maps stay in the last-level cache."""


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
    grouped_out = out.unflatten(1, (plan.groups, plan.repeats))  # (B, G, R, N, dv)
    for unit in plan.units():
        result = unit.new_empty(unit.values.shape[0], plan.most_rows, plan.value_width)
        for block in plan.blocks(unit):
            rows = grouped_out[unit.batches, unit.value_heads, :, block.queries]  # (b, g, R, n, dv)
            if block.is_blind:
                rows.zero_()
                continue
            first, second = block.softmax_maps()
            block.subtract(first, second, out=first)
            product = torch.bmm(first, block.values, out=result[:, : first.shape[1]])
            rows.copy_(product.view(rows.shape))
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
    width d, never to rows of scores.
    """
    plan = _Plan(query, key, value, lam, mask, is_causal, sliding_window, scale)
    shape = check_tensors(query, key, value)
    grad_query, grad_key, grad_value = (
        torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)
    )
    grad_lam = lam.new_zeros(shape.batch, plan.groups, plan.repeats, lam.shape[2])
    grouped_grad = grad.unflatten(1, (plan.groups, plan.repeats))  # (B, G, R, N, dv)
    queries_out = grad_query.view(shape.batch, plan.groups, plan.repeats, 2, shape.queries, shape.width)
    keys_out = grad_key.view(shape.batch, plan.groups, plan.key_maps, shape.keys, shape.width)
    for unit in plan.units():
        count = unit.values.shape[0]
        key_sums = [unit.new_zeros(count, shape.keys, shape.width) for _ in range(plan.key_maps)]
        value_sum = unit.new_zeros(count, shape.keys, plan.value_width)
        upstream = unit.new_empty(count * plan.most_rows * shape.keys)
        difference = unit.new_empty(count * plan.most_rows * shape.keys)
        for block in plan.blocks(unit):
            if block.is_blind:
                continue
            maps = block.softmax_maps()
            cotangent = grouped_grad[unit.batches, unit.value_heads, :, block.queries]
            cotangent = cotangent.to(plan.dtype).reshape(count, -1, plan.value_width)  # (U, R n, dv)
            score_shape = maps[0].shape
            size = maps[0].numel()
            grad_maps = torch.bmm(cotangent, block.values.transpose(1, 2), out=upstream[:size].view(score_shape))
            weights = block.subtract(maps[0], maps[1], out=difference[:size].view(score_shape))
            value_sum[:, block.keys].baddbmm_(weights.transpose(1, 2), cotangent)
            second_mean = torch.mul(maps[1], grad_maps, out=weights).sum(-1)  # rowsum(P2∘dP), (U, R n)
            grad_lam[unit.batches, unit.value_heads, :, block.lam_rows] -= block.reduce_lam(second_mean)
            for index, softmax_map in enumerate(maps):
                torch.ops.aten._softmax_backward_data.out(
                    grad_maps, softmax_map, -1, plan.dtype, grad_input=softmax_map
                )
                rows, keys = block.rows[index], block.key_blocks[index]
                if index == 1:
                    rows = rows * -block.lam_column
                key_sums[index % plan.key_maps][:, block.keys].baddbmm_(softmax_map.transpose(1, 2), rows)
                grad_rows = torch.bmm(softmax_map, keys).mul_(scale)  # (U, R n, d)
                if index == 1:
                    grad_rows *= -block.lam_column
                target = queries_out[unit.batches, unit.value_heads, :, index, block.queries]
                target.copy_(grad_rows.view(target.shape))
        for index, key_sum in enumerate(key_sums):
            target = keys_out[unit.batches, unit.value_heads, index]
            target.copy_(key_sum.view(target.shape))
        target = grad_value[unit.batches, unit.value_heads]
        target.copy_(value_sum.view(target.shape))
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


blockwise_attention.register_autograd(_backward, setup_context=_setup_context)


class _Plan:
    """Cuts one call into units (which keys and values) and blocks (which queries), and owns the score buffers."""

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
        self.batch, self.groups, self.repeats = shape.batch, shape.value_heads, shape.heads_per_value
        self.key_maps, self.value_width = shape.key_maps, shape.value_width
        self.length, self.keys_length = shape.queries, shape.keys
        self.offset = shape.keys - shape.queries  # the last query stands at the last key
        self.is_causal, self.window, self.scale = is_causal or sliding_window > 0, sliding_window, scale
        self.dtype = statistics_dtype(query.dtype)
        grouped = query.unflatten(1, (self.groups, self.repeats, 2))  # (B, G, R, S, N, d)
        # Scaled once, and each map by itself, so that a block of queries is a view and not a copy.
        self.queries = torch.mul(grouped.movedim(3, 0).to(self.dtype), scale).contiguous()  # (S, B, G, R, N, d)
        self.key = key.unflatten(1, (self.groups, self.key_maps))  # (B, G, S or 1, M, d)
        self.value = value  # (B, G, M, dv)
        self.lam = lam.expand(self.batch, shape.heads, -1).unflatten(1, (self.groups, self.repeats))  # (B, G, R, 1|N)
        self.mask = mask
        self.block = max(1, min(self.length, QUERY_ROWS // self.repeats))
        self.most_rows = self.block * self.repeats
        self.edges: dict[tuple[str, int, int, int], Tensor] = {}

    def after_diagonal(self, rows: int, columns: int, first: int) -> Tensor:
        """(rows, columns), True where column ≥ ``first`` + row: keys after the query. Made once for equal blocks."""
        key = ("after", rows, columns, first)
        if key not in self.edges:
            ones = torch.ones(rows, columns, dtype=torch.bool, device=self.value.device)
            self.edges[key] = ones.triu_(first)
        return self.edges[key]

    def before_window(self, rows: int, columns: int, first: int) -> Tensor:
        """(rows, columns), True where column < ``first`` + row: keys that the window has left behind."""
        key = ("before", rows, columns, first)
        if key not in self.edges:
            ones = torch.ones(rows, columns, dtype=torch.bool, device=self.value.device)
            self.edges[key] = ones.tril_(first - 1)
        return self.edges[key]

    def units(self) -> Iterator[_Unit]:
        """As many pairs of batch row and value head at a time as keep the scores of a block in cache."""
        together = max(1, SCORES_IN_CACHE // max(1, self.most_rows * self.keys_length))
        if together >= self.groups:
            step = together // self.groups
            spans = [(slice(b, min(b + step, self.batch)), slice(0, self.groups)) for b in range(0, self.batch, step)]
        else:
            spans = [
                (slice(b, b + 1), slice(g, min(g + together, self.groups)))
                for b in range(self.batch)
                for g in range(0, self.groups, together)
            ]
        buffer = None
        for batches, value_heads in spans:
            keys = self.key[batches, value_heads].to(self.dtype)
            unit = _Unit(
                batches=batches,
                value_heads=value_heads,
                keys=[keys[:, :, index].reshape(-1, *keys.shape[3:]) for index in range(self.key_maps)],
                values=self.value[batches, value_heads].to(self.dtype).reshape(-1, self.keys_length, self.value_width),
                buffer=buffer,
            )
            if buffer is None:
                buffer = unit.buffer = unit.new_empty(2 * unit.values.shape[0] * self.most_rows * self.keys_length)
            yield unit

    def blocks(self, unit: _Unit) -> Iterator[_Block]:
        for start in range(0, self.length, self.block):
            yield _Block(self, unit, start, min(start + self.block, self.length))


@dataclass
class _Unit:
    """Keys and values that stay while the blocks of queries pass by."""

    batches: slice
    value_heads: slice
    keys: list[Tensor]  # one or two of (U, M, d)
    values: Tensor  # (U, M, dv)
    buffer: Tensor | None

    def new_empty(self, *size: int) -> Tensor:
        return self.values.new_empty(size)

    def new_zeros(self, *size: int) -> Tensor:
        return self.values.new_zeros(size)


class _Block:
    """One block of queries against the keys that any of them can see."""

    def __init__(self, plan: _Plan, unit: _Unit, start: int, stop: int) -> None:
        self.plan, self.unit, self.queries = plan, unit, slice(start, stop)
        last = min(plan.keys_length, stop + plan.offset) if plan.is_causal else plan.keys_length
        first = max(0, start + plan.offset - plan.window + 1) if plan.window else 0
        self.keys = slice(first, max(first, last))
        self.is_blind = last <= first
        if self.is_blind:
            return
        query = plan.queries[:, unit.batches, unit.value_heads, :, self.queries]  # (S, b, g, R, n, d)
        self.rows = [part.reshape(-1, plan.repeats * (stop - start), query.shape[-1]) for part in query]
        self.key_blocks = [unit.keys[index % plan.key_maps][:, self.keys] for index in (0, 1)]  # (U, m, d)
        self.values = unit.values[:, self.keys]  # (U, m, dv)
        self.lam_rows = self.queries if plan.lam.shape[-1] > 1 else slice(0, 1)
        lam = plan.lam[unit.batches, unit.value_heads, :, self.lam_rows]  # (b, g, R, 1|n)
        self.lam_column = lam.expand(*lam.shape[:3], stop - start).reshape(-1, plan.repeats * (stop - start), 1)

    def softmax_maps(self) -> Tensor:
        """Both maps (2, U, R n, m) in the unit's buffer, which the next block overwrites."""
        assert self.unit.buffer is not None
        count, rows = self.rows[0].shape[:2]
        keys = self.keys.stop - self.keys.start
        maps = self.unit.buffer[: 2 * count * rows * keys].view(2, count, rows, keys)
        # Only a mask, or queries before the first key, can leave a row without any key.
        may_be_empty = self.plan.mask is not None or (self.plan.offset < 0 and self.plan.is_causal)
        for index, scores in enumerate(maps):  # one map at a time: it is still in cache for the next pass
            torch.bmm(self.rows[index], self.key_blocks[index].transpose(1, 2), out=scores)
            self._hide(scores)
            empty = scores.amax(dim=-1, keepdim=True) == float("-inf") if may_be_empty else None
            torch.softmax(scores, dim=-1, out=scores)
            if empty is not None:
                scores.masked_fill_(empty, 0.0)
        return maps

    def _hide(self, scores: Tensor) -> None:
        """Write -inf where a query may not look: above the diagonal, before the window, outside the mask."""
        plan = self.plan
        heads = (
            self.unit.batches.stop - self.unit.batches.start,
            self.unit.value_heads.stop - self.unit.value_heads.start,
        )
        length = self.queries.stop - self.queries.start
        grouped = scores.view(*heads, plan.repeats, length, -1)  # (b, g, R, n, m)
        position = self.queries.start + plan.offset  # of the first query among the keys
        if plan.is_causal:
            edge = max(self.keys.start, position + 1)
            if edge < self.keys.stop:
                hidden = plan.after_diagonal(length, self.keys.stop - edge, position + 1 - edge)
                grouped[..., edge - self.keys.start :].masked_fill_(hidden, float("-inf"))
        if plan.window:
            edge = min(self.keys.stop, position + length - plan.window)
            if edge > self.keys.start:
                hidden = plan.before_window(
                    length, edge - self.keys.start, position - plan.window + 1 - self.keys.start
                )
                grouped[..., : edge - self.keys.start].masked_fill_(hidden, float("-inf"))
        if plan.mask is not None:
            mask = plan.mask
            mask = mask[self.unit.batches] if mask.shape[0] > 1 else mask
            mask = mask.unflatten(1, (plan.groups, plan.repeats) if mask.shape[1] > 1 else (1, 1))
            mask = mask[:, self.unit.value_heads] if mask.shape[1] > 1 else mask
            mask = mask[:, :, :, self.queries] if mask.shape[3] > 1 else mask
            grouped.masked_fill_(~mask[..., self.keys], float("-inf"))

    def subtract(self, first: Tensor, second: Tensor, *, out: Tensor) -> Tensor:
        """P1 - λ P2, (U, R n, m)."""
        return torch.addcmul(first, second, self.lam_column, value=-1, out=out)

    def reduce_lam(self, rows: Tensor) -> Tensor:
        """Row values (U, R n) as (b, g, R, 1|n): summed over the queries where they share a λ."""
        lam = self.plan.lam[self.unit.batches, self.unit.value_heads]
        grouped = rows.view(*lam.shape[:3], -1)
        return grouped if lam.shape[-1] > 1 else grouped.sum(-1, keepdim=True)
