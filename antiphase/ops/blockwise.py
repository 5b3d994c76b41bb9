"""Differential attention over blocks of queries, with memory linear in the number of keys.

A block of queries is multiplied by all its keys at once, so both softmaxes are complete before the values are read. The
maps are subtracted in place, and the difference is multiplied by V once. That costs 4d multiply-adds per query-key
pair, the same as softmax attention of equal size; two ordinary attention calls cost 6d. The hand-written backward pass
for q, k, v and λ recomputes the maps block by block.

Legend as in ``blocks``, with S = 2 maps per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antiphase.ops.blocks import BlockLayout, QueryBlock, WorkItem, view_as
from antiphase.ops.shapes import OTHERWISE, check_real, check_tensors


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

    ``lam`` (1|B, 1|H, 1|N) in the statistics dtype and ``mask`` (1|B, 1|H, 1|N, M) have been checked by ``shapes``;
    ``sliding_window`` 0 means no window. Statistics and accumulation are fp32 (fp64 for fp64).
    """
    layout = _layout(query, key, value, lam, mask, is_causal, sliding_window, scale)
    lambdas = _Lambdas(layout, lam)
    out = _empty_output(query, key, value)
    grouped_out = layout.group(out)
    result = layout.row_buffer("result", layout.value_width)
    for item in layout.work_items():
        item_out = grouped_out[item.batches, item.groups]
        for block in layout.blocks:
            rows = item_out[:, :, :, block.queries]  # (b, g, R, n, dv)
            if block.sees_no_key:
                rows.zero_()
                continue
            first, second = item.maps(block)
            difference = _subtract(first, second, lambdas.column(item, block), out=first)
            product = view_as(result, *first.shape[:2], layout.value_width)
            rows.copy_(torch.bmm(difference, item.values[:, block.keys], out=product).view(rows.shape))
    return out


blockwise_attention = torch.library.custom_op("antiphase::blockwise_attention", attend, mutates_args=())


@blockwise_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
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

    With the maps P1, P2 and dP = dO Vᵀ: dV = (P1 - λP2)ᵀ dO; dS1 = P1∘(dP - rowsum(P1∘dP)); dS2 = -λ P2∘(dP -
    rowsum(P2∘dP)); dλ = -rowsum(P2∘dP). The factor -λ of the second map is applied to rows of width d, never to rows of
    scores. dK and dV are accumulated transposed, (d, M), because that product is faster.
    """
    layout = _layout(query, key, value, lam, mask, is_causal, sliding_window, scale)
    if grad.dtype != query.dtype:
        raise ValueError(f"the gradient must be {query.dtype} like the query, got {grad.dtype}")
    gradients = _Gradients(layout, query, key, value, lam, scale)
    grouped_grad = layout.group(grad)  # (B, G, R, N, dv)
    for item in layout.work_items():
        gradients.add(item, grouped_grad[item.batches, item.groups].to(layout.products))
    grad_lam = gradients.lam.flatten(1, 2).sum_to_size(lam.shape).clone()
    return gradients.query, gradients.key, gradients.value, grad_lam


blockwise_attention_backward = torch.library.custom_op(
    "antiphase::blockwise_attention_backward", attend_backward, mutates_args=()
)


@blockwise_attention_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, lam: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value))
    return query, key, value, lam.new_empty(lam.shape)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # torch.library gives no types
    query, key, value, lam, mask, *ctx.arguments = inputs
    ctx.save_for_backward(query, key, value, lam, mask)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch.library gives no types
    return (*blockwise_attention_backward(grad, *ctx.saved_tensors, *ctx.arguments), None, None, None, None)


def _refuse_backward(ctx, *grads):  # type: ignore[no-untyped-def]  # torch.library gives no types
    raise RuntimeError(f"the blockwise implementation has no second derivatives; {OTHERWISE}")


blockwise_attention.register_autograd(_backward, setup_context=_setup_context)
blockwise_attention_backward.register_autograd(_refuse_backward)


def _layout(
    query: Tensor, key: Tensor, value: Tensor, lam: Tensor, mask: Tensor | None, is_causal: bool, sliding_window: int,
    scale: float,
) -> BlockLayout:  # fmt: skip
    shape = check_tensors(query, key, value)
    check_real(lam, mask, query)
    return BlockLayout(
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

    In half precision λ is split into two parts. Where both maps agree, as in the first row of a causal sequence, the
    result is (1 - λ) P1, and the rounding error of λ would be a large part of it.
    """
    rounded = lam.to(first.dtype)
    torch.addcmul(first, second, rounded, value=-1, out=out)
    if rounded.dtype != lam.dtype:
        out.addcmul_(second, (lam - rounded).to(first.dtype), value=-1)
    return out


def _maps_and_unrounded(layout: BlockLayout, item: WorkItem, block: QueryBlock) -> tuple[list[Tensor], Tensor]:
    """Both maps in the dtype of products, and the second one in the statistics dtype too.

    If each token has its own λ, dλ is not summed over queries, so rounding errors would not average out.
    """
    first = item.softmax(item.scores(0, block))
    scores = item.scores(1, block)
    buffer = layout.row_buffer("unrounded", layout.widest, layout.dtype)
    unrounded = item.softmax(view_as(buffer, *scores.shape).copy_(scores))
    return [first, scores.copy_(unrounded)], unrounded


class _Gradients:
    """Gradients in the making, and the buffers that blocks share."""

    def __init__(
        self, layout: BlockLayout, query: Tensor, key: Tensor, value: Tensor, lam: Tensor, scale: float
    ) -> None:
        self.layout, self.scale, self.lambdas = layout, scale, _Lambdas(layout, lam)
        self.query, self.key, self.value = (
            torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)
        )
        self.lam = lam.new_zeros(layout.batch, layout.all_groups, layout.repeats, lam.shape[2])
        self.queries = self.query.unflatten(1, (layout.all_groups, layout.repeats, 2))  # (B, G, R, 2, N, d)
        self.keys = self.key.unflatten(1, (layout.all_groups, layout.key_maps))  # (B, G, 2|1, M, d)
        self.width, self.value_width = query.shape[-1], value.shape[-1]
        self.third = layout.row_buffer("third", layout.widest)
        self.step = layout.key_buffer("step", max(self.width, self.value_width), layout.products)
        self.is_rounded = layout.products != layout.dtype

    def add(self, item: WorkItem, grad: Tensor) -> None:
        """Write the gradients of a work item, for the cotangent (b, g, R, N, dv) in the dtype of products."""
        layout = self.layout
        key_sums = [self._zeros(item, f"key sum {index}", self.width) for index in range(layout.key_maps)]
        value_sum = self._zeros(item, "value sum", self.value_width)
        here = item.batches, item.groups
        for block in layout.blocks:
            if block.sees_no_key:
                self.queries[here][..., block.queries, :] = 0
                continue
            cotangent = grad[:, :, :, block.queries].reshape(item.count, -1, self.value_width)  # (U, R n, dv)
            self._add_block(item, block, cotangent, key_sums, value_sum)
        for index, key_sum in enumerate(key_sums):
            target = self.keys[here][:, :, index]
            target.copy_(key_sum.transpose(1, 2).view(target.shape))
        target = self.value[here]
        target.copy_(value_sum.transpose(1, 2).view(target.shape))

    def _zeros(self, item: WorkItem, name: str, width: int) -> Tensor:
        """A sum over blocks, transposed: (U, width, M)."""
        buffer = self.layout.key_buffer(name, width, self.layout.dtype)
        return view_as(buffer, item.count, width, self.layout.keys_length).zero_()

    def _add_block(
        self, item: WorkItem, block: QueryBlock, cotangent: Tensor, key_sums: list[Tensor], value_sum: Tensor
    ) -> None:
        layout = self.layout
        maps, unrounded = _maps_and_unrounded(layout, item, block) if self.is_rounded else (item.maps(block), None)
        third = view_as(self.third, *maps[0].shape)  # first P1 - λP2, then dP
        lam_column = self.lambdas.column(item, block)
        _subtract(maps[0], maps[1], lam_column, out=third)
        self._add_product(value_sum, cotangent, third, block.keys)
        torch.bmm(cotangent, item.values[:, block.keys].transpose(1, 2), out=third)
        for index, scores in enumerate(maps):
            if index == 1:
                if unrounded is not None:
                    buffer = layout.row_buffer("third in full", layout.widest, layout.dtype)
                    dots = view_as(buffer, *third.shape).copy_(third).mul_(unrounded)
                else:  # the first map is no longer needed: its buffer holds P2∘dP
                    dots = torch.mul(scores, third, out=maps[0])
                self.lambdas.subtract(self.lam, item, block, dots.sum(-1))
            torch.ops.aten._softmax_backward_data.out(third, scores, -1, layout.products, grad_input=scores)
            factor = self.scale * (1.0 if index == 0 else -lam_column)
            key_sum, keys = key_sums[index % layout.key_maps], item.keys[index % layout.key_maps]
            self._add_product(key_sum, item.rows(index, block) * factor, scores, block.keys)
            grad_rows = torch.bmm(scores, keys[:, block.keys]) * factor  # (U, R n, d)
            target = self.queries[item.batches, item.groups][:, :, :, index, block.queries]
            target.copy_(grad_rows.view(target.shape))

    def _add_product(self, total: Tensor, rows: Tensor, scores: Tensor, keys: slice) -> None:
        """Total (U, w, M) += rowsᵀ scores, for rows (U, R n, w) and scores (U, R n, m)."""
        layout = self.layout
        shape = len(rows), rows.shape[-1], scores.shape[-1]
        product = torch.bmm(rows.to(layout.products).transpose(1, 2), scores, out=view_as(self.step, *shape))
        if self.is_rounded:
            buffer = layout.key_buffer("step in full", max(self.width, self.value_width), layout.dtype)
            product = view_as(buffer, *shape).copy_(product)
        total[:, :, keys].add_(product)


class _Lambdas:
    """λ of the rows of a block."""

    def __init__(self, layout: BlockLayout, lam: Tensor) -> None:
        self.lam = layout.group(lam.expand(layout.batch, layout.all_groups * layout.repeats, -1))  # (B, G, R, 1|N)
        self.is_shared = lam.shape[-1] == 1  # by all queries of a head

    def column(self, item: WorkItem, block: QueryBlock) -> Tensor:
        """λ of each row, (U, R n, 1)."""
        rows = self.lam[item.batches, item.groups]
        if self.is_shared:
            rows = rows.expand(*rows.shape[:3], block.queries.stop - block.queries.start)
        else:
            rows = rows[..., block.queries]
        return rows.reshape(item.count, -1, 1)

    def subtract(self, total: Tensor, item: WorkItem, block: QueryBlock, rows: Tensor) -> None:
        """Subtract row values (U, R n) from total (B, G, R, 1|N); summed over the queries if they share a λ."""
        here = total[item.batches, item.groups]
        grouped = rows.view(*here.shape[:3], -1)
        if self.is_shared:
            here -= grouped.sum(-1, keepdim=True)
        else:
            here[..., block.queries] -= grouped
