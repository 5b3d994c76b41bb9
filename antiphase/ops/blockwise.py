"""Subtract first: differential attention over blocks of queries, memory linear in the number of keys.

A block of queries meets all its keys at once, so both softmaxes are finished before the values are touched; the two
maps are subtracted in place and multiplied by V once. That costs 4d multiply-adds for each pair of query and key, as
much as softmax attention of equal size, where two ordinary attention calls cost 6d. The backward pass recomputes the
maps block by block and is written by hand for q, k, v and λ.

Legend as in ``blocks``, with S = 2 maps a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antiphase.ops.blocks import Block, Plan, Unit, shaped
from antiphase.ops.shapes import check_tensors


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
    plan = _plan(query, key, value, mask, is_causal, sliding_window, scale)
    lambdas = _Lambdas(plan, lam)
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
            first, second = unit.maps(block)
            difference = _subtract(first, second, lambdas.column(unit, block), out=first)
            product = shaped(result, *first.shape[:2], plan.value_width)
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
    plan = _plan(query, key, value, mask, is_causal, sliding_window, scale)
    lambdas = _Lambdas(plan, lam)
    grad_query, grad_key, grad_value = (
        torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)
    )
    grad_lam = lam.new_zeros(plan.batch, plan.all_groups, plan.repeats, lam.shape[2])
    grouped_grad = plan.group(grad)  # (B, G, R, N, dv)
    grouped_queries = grad_query.unflatten(1, (plan.all_groups, plan.repeats, 2))  # (B, G, R, 2, N, d)
    grouped_keys = grad_key.unflatten(1, (plan.all_groups, plan.key_maps))  # (B, G, 2|1, M, d)
    width, value_width = query.shape[-1], value.shape[-1]
    third_buffer = plan.block_room("third", plan.widest)
    step_buffer = plan.unit_room("step", max(width, value_width), plan.products)
    is_rounded = plan.products != plan.dtype

    def add_product(total: Tensor, rows: Tensor, scores: Tensor, keys: slice) -> None:
        """Total (U, w, M) += rowsᵀ scores, for rows (U, R n, w) and scores (U, R n, m)."""
        shape = len(rows), rows.shape[-1], scores.shape[-1]
        product = torch.bmm(rows.to(plan.products).transpose(1, 2), scores, out=shaped(step_buffer, *shape))
        if is_rounded:
            room = plan.unit_room("step in full", max(width, value_width), plan.dtype)
            product = shaped(room, *shape).copy_(product)
        total[:, :, keys].add_(product)

    for unit in plan.units():
        count = unit.count
        here = unit.batches, unit.groups
        unit_grad = grouped_grad[here].to(plan.products)
        key_sums = [
            shaped(plan.unit_room(f"key sum {index}", width, plan.dtype), count, width, plan.keys_length).zero_()
            for index in range(plan.key_maps)
        ]
        room = plan.unit_room("value sum", value_width, plan.dtype)
        value_sum = shaped(room, count, value_width, plan.keys_length).zero_()
        for block in plan.blocks:
            if block.is_blind:
                grouped_queries[here][..., block.queries, :] = 0
                continue
            maps, unrounded = _maps_and_unrounded(plan, unit, block) if is_rounded else (unit.maps(block), None)
            third = shaped(third_buffer, *maps[0].shape)  # first P1 - λP2, then dP
            lam_column = lambdas.column(unit, block)
            cotangent = unit_grad[:, :, :, block.queries].reshape(count, -1, value_width)  # (U, R n, dv)
            _subtract(maps[0], maps[1], lam_column, out=third)
            add_product(value_sum, cotangent, third, block.keys)
            torch.bmm(cotangent, unit.values[:, block.keys].transpose(1, 2), out=third)
            for index, scores in enumerate(maps):
                if index == 1:
                    if unrounded is not None:
                        room = plan.block_room("third in full", plan.widest, plan.dtype)
                        dots = shaped(room, *third.shape).copy_(third).mul_(unrounded)
                    else:  # the first map is done with: room for P2∘dP
                        dots = torch.mul(scores, third, out=maps[0])
                    second_mean = dots.sum(-1)  # (U, R n)
                    lambdas.subtract(grad_lam, unit, block, second_mean)
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


def _plan(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, sliding_window: int, scale: float
) -> Plan:
    shape = check_tensors(query, key, value)
    return Plan(
        query.unflatten(1, (shape.value_heads, shape.heads_per_value, 2)),
        key.unflatten(1, (shape.value_heads, shape.key_maps)),
        value,
        mask,
        is_causal=is_causal,
        sliding_window=sliding_window,
        scale=scale,
    )


def _subtract(first: Tensor, second: Tensor, lam: Tensor, *, out: Tensor) -> Tensor:
    """P1 - λ P2 in the dtype of the maps, for λ in the statistics dtype.

    In half precision λ is taken in two parts: where both maps agree, as they do in the first row of a causal
    sequence, all that is left is 1 - λ, and the rounding of λ would be a large part of it.
    """
    rounded = lam.to(first.dtype)
    torch.addcmul(first, second, rounded, value=-1, out=out)
    if rounded.dtype != lam.dtype:
        out.addcmul_(second, (lam - rounded).to(first.dtype), value=-1)
    return out


def _maps_and_unrounded(plan: Plan, unit: Unit, block: Block) -> tuple[list[Tensor], Tensor]:
    """Both maps in the dtype of products, and the second one in the statistics dtype too.

    dλ, where each token has a λ of its own, has no other sum in which roundings even out.
    """
    first = unit.softmax(unit.scores(0, block))
    scores = unit.scores(1, block)
    room = plan.block_room("unrounded", plan.widest, plan.dtype)
    unrounded = unit.softmax(shaped(room, *scores.shape).copy_(scores))
    return [first, scores.copy_(unrounded)], unrounded


class _Lambdas:
    """λ of the rows of a block."""

    def __init__(self, plan: Plan, lam: Tensor) -> None:
        self.lam = plan.group(lam.expand(plan.batch, plan.all_groups * plan.repeats, -1))  # (B, G, R, 1|N)
        self.is_shared = lam.shape[-1] == 1  # by the queries of a head

    def column(self, unit: Unit, block: Block) -> Tensor:
        """λ of each row, (U, R n, 1)."""
        rows = self.lam[unit.batches, unit.groups]
        if self.is_shared:
            rows = rows.expand(*rows.shape[:3], block.queries.stop - block.queries.start)
        else:
            rows = rows[..., block.queries]
        return rows.reshape(unit.count, -1, 1)

    def subtract(self, total: Tensor, unit: Unit, block: Block, rows: Tensor) -> None:
        """Take row values (U, R n) from total (B, G, R, 1|N), summed over the queries where they share a λ."""
        here = total[unit.batches, unit.groups]
        grouped = rows.view(*here.shape[:3], -1)
        if self.is_shared:
            here -= grouped.sum(-1, keepdim=True)
        else:
            here[..., block.queries] -= grouped
