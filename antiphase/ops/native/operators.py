"""The native kernels as PyTorch operators: forward and backward, with shapes for tracing.

One map per head is softmax attention, two are differential attention. Legend as in ``shapes``, with S maps per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antiphase.ops.dispatch import operator
from antiphase.ops.native.library import BACKWARD, FORWARD, run
from antiphase.ops.shapes import OTHERWISE, statistics_dtype


def rows(tensor: Tensor) -> Tensor:
    """The tensor with a contiguous last dimension, copied only if necessary."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _edges(query_edges: Tensor | None, key_edges: Tensor | None) -> tuple[Tensor, Tensor] | None:
    if query_edges is None and key_edges is None:
        return None
    if query_edges is None or key_edges is None:
        raise ValueError("edges of queries and of keys must be given together")
    return query_edges.contiguous(), key_edges.contiguous()


def empty_output(query: Tensor, value: Tensor, lam: Tensor | None, groups: int) -> Tensor:
    """An empty (B, H, N, dv), stored as (B, N, H, dv) so that the layer's reshape costs nothing."""
    if groups < 1:
        raise ValueError(f"groups must be at least 1, got {groups}")
    batch, maps, queries, _ = query.shape
    width = value.shape[3] * (value.shape[1] // groups)
    heads = maps if lam is None else maps // 2
    return query.new_empty_strided((batch, heads, queries, width), (queries * heads * width, width, heads * width, 1))


def _empty_statistics(query: Tensor, save: bool) -> Tensor:
    shape = (*query.shape[:3], 2) if save else (0,)
    return query.new_empty(shape, dtype=statistics_dtype(query.dtype))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    query_edges: Tensor | None,
    key_edges: Tensor | None,
    groups: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
    save: bool,
    shared: int = 1,
) -> tuple[Tensor, Tensor]:
    """Output (B, H, N, dv), stored as (B, N, H, dv), and what backward needs, which is empty unless ``save``.

    Args:
        query: (B, H · S, N, d), fp32, bf16 or fp64, like all tensors except lam, mask and edges.
        key: (B, groups · S or groups, M, d).
        value: (B, groups, M, dv), or as halves, as in a cache, (B, 2 · groups, M, dv / 2).
        lam: (1|B, 1|H, 1|N) or one number, in the statistics dtype (S = 2), or None (S = 1).
        mask: boolean (1|B, 1|H, 1|N, M), True = may attend.
        query_edges, key_edges: int32 (sequences + 1,), cumulative lengths of packed sequences; B = 1.
        groups: number of value heads.
        is_causal: the last query is aligned with the last key.
        sliding_window: 0 means no window; a window implies causality.
        scale: factor of the scores, above 0.
        shared: neighbouring heads that subtract the second map of the first of them, which is formed once: a divisor of
            H / groups, at most 4, where all have one mask. The second queries of the others are not read.
    """
    query, key, value = rows(query), rows(key), rows(value)
    out, statistics = empty_output(query, value, lam, groups), _empty_statistics(query, save)
    run(
        FORWARD, query=query, key=key, value=value, lam=lam, mask=None if mask is None else rows(mask), groups=groups,
        is_causal=is_causal, sliding_window=sliding_window, scale=scale, edges=_edges(query_edges, key_edges), out=out,
        statistics=statistics if save else None, shared=shared,
    )  # fmt: skip
    return out, statistics


native_attention = operator("native_attention", attend)


@torch.library.register_fake("antiphase::native_attention")
def _(query: Tensor, key: Tensor, value: Tensor, lam: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    groups, save = rest[3], rest[7]
    return empty_output(query, value, lam, groups), _empty_statistics(query, save)


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    query_edges: Tensor | None,
    key_edges: Tensor | None,
    statistics: Tensor,
    groups: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
    shared: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and lam, in their shapes and dtypes; the last is empty without lam.

    With the maps P1, P2 and dP = dO Vᵀ: dV = (P1 - λP2)ᵀ dO; dS1 = P1∘(dP - rowsum(P1∘dP)); dS2 = -λ P2∘(dP -
    rowsum(P2∘dP)); dλ = -rowsum(P2∘dP). Second queries that are not read have gradient 0.
    """
    grad, query, key, value = rows(grad), rows(query), rows(key), rows(value)
    grads = _empty_grads(query, key, value)
    grad_lam = statistics.new_empty(0)
    if lam is not None:
        grad_lam = statistics.new_empty(query.shape[0], query.shape[1] // 2, query.shape[2])
    run(
        BACKWARD, query=query, key=key, value=value, lam=lam, mask=None if mask is None else rows(mask), groups=groups,
        is_causal=is_causal, sliding_window=sliding_window, scale=scale, edges=_edges(query_edges, key_edges),
        statistics=statistics, grad=grad, grads=grads, grad_lam=grad_lam, shared=shared,
    )  # fmt: skip
    if lam is not None:
        grad_lam = grad_lam.sum_to_size(lam.shape)
    return (*grads, grad_lam)


def _empty_grads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value))
    return query, key, value


native_attention_backward = operator("native_attention_backward", attend_backward)


@torch.library.register_fake("antiphase::native_attention_backward")
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, lam: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    statistics = rest[3]
    grad_lam = statistics.new_empty(0) if lam is None else lam.new_empty(lam.shape)
    return (*_empty_grads(query, key, value), grad_lam)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, groups, is_causal, sliding_window, scale, save, shared = inputs
    ctx.settings = (groups, is_causal, sliding_window, scale, shared)
    if not save:
        raise RuntimeError("native_attention needs save=True if derivatives are required")
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: checkpointing recomputes them at every access
    *grads, grad_lam = native_attention_backward(grad, *saved, *ctx.settings)
    return (*grads, None if saved[3] is None else grad_lam, *[None] * 9)


def _refuse_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(f"the native implementation has no second derivatives; {OTHERWISE}")


torch.library.register_autograd("antiphase::native_attention", _backward, setup_context=_setup_context)
torch.library.register_autograd("antiphase::native_attention_backward", _refuse_backward)
