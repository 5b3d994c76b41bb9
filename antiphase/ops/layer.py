"""Operations of a layer around attention, on the native kernels if possible: norms, λ, a V1 decoding step, losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import cross_entropy

from antiphase.ops.decoding import is_few, within_window
from antiphase.ops.native import layer, loss
from antiphase.ops.native.library import DTYPES, why_not_built
from antiphase.ops.native.operators import PLAIN
from antiphase.ops.shapes import four_dimensions


def rms_norm(tensor: Tensor, weight: Tensor, eps: float, factor: float = 1.0) -> Tensor:
    """RMSNorm over the last dimension, factor · x / √(mean of x² + eps) · weight (Zhang & Sennrich, 1910.07467, eq. 4).

    Args:
        tensor: (…, width), any floating dtype; it is cast to the weight's dtype first, so autocast does not lower the
            norm's precision.
        weight: (width,).
        eps: added to the mean of squares.
        factor: a constant; 1 - λinit for the heads of a V1 layer.

    Returns:
        (…, width) in the weight's dtype.
    """
    tensor = tensor.to(weight.dtype)
    if _is_served(tensor, weight):
        if torch.is_grad_enabled() and (tensor.requires_grad or weight.requires_grad):
            return layer.native_norm_with_derivatives(tensor, weight, eps, factor)
        return layer.norm(tensor, weight, eps, factor)
    return plain_rms_norm(tensor, weight, eps, factor)


def plain_rms_norm(tensor: Tensor, weight: Tensor, eps: float, factor: float = 1.0) -> Tensor:
    """``rms_norm`` by PyTorch."""
    out = torch.rms_norm(tensor.to(weight.dtype), weight.shape, weight, eps)
    return out if factor == 1.0 else out * factor


def exponential_lambda(vectors: Sequence[Tensor], initial: float) -> Tensor:
    """λ = exp(λq1·λk1) - exp(λq2·λk2) + λinit (2410.05258, equation 2), 0-d, at least in fp32, under autocast too.

    Args:
        vectors: λq1, λk1, λq2, λk2, (d,) each.
        initial: λinit.
    """
    q1, k1, q2, k2 = vectors
    if not _differentiates(vectors) and _is_served(*vectors) and q1.dtype == torch.float32:
        return layer.lambda_of(q1, k1, q2, k2, initial)
    return plain_lambda(vectors, initial)


def plain_lambda(vectors: Sequence[Tensor], initial: float) -> Tensor:
    """``exponential_lambda`` by PyTorch."""
    q1, k1, q2, k2 = vectors
    with torch.autocast(q1.device.type, enabled=False):
        wide = torch.promote_types(q1.dtype, torch.float32)
        first = torch.exp(torch.dot(q1.to(wide), k1.to(wide)))
        second = torch.exp(torch.dot(q2.to(wide), k2.to(wide)))
        return first - second + initial


def v1_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vectors: Sequence[Tensor],
    weight: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    initial: float,
    eps: float,
    factor: float,
) -> Tensor | None:
    """λ, attention and the head norm of a decoding step in one call; None if this path does not apply.

    In a small model, the overhead of separate calls would be as large as the computation.

    Args:
        query: (B, 2H, N, d), a few queries.
        key, value: (B, 2 · groups, M, d), in the layout of the cache.
        vectors, initial: of ``exponential_lambda``.
        weight, eps, factor: of ``rms_norm``, (2d,).
        mask: boolean, broadcastable to (B, 1, N, M), True = may attend.
        is_causal, sliding_window, scale: of ``differential_attention``.

    Returns:
        (B, H, N, 2d) in the query's dtype.
    """
    groups = key.shape[1] // 2
    mask = four_dimensions(mask, key.shape[2])
    if (
        not _is_served(query, key, value, weight)
        or not all(v.is_cpu and v.dtype == torch.float32 and not v.is_neg() for v in vectors)
        or not (mask is None or mask.is_cpu)
        or torch.is_autocast_enabled("cpu")
        or not scale > 0
        or not is_few(query, key, groups, mask)
        or _differentiates((query, key, value, weight, *vectors))
    ):
        return None
    key, value, mask = within_window(query.shape[2], key, value, mask, sliding_window)
    return layer.v1_step(
        query, key, value, *vectors, weight, mask, groups, is_causal, sliding_window or 0, scale, initial, eps, factor
    )


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p of each target in nats, (P,): fp32, or fp64 for logits in fp64, under autocast too.

    Args:
        logits: (P, vocabulary), any floating dtype.
        targets: (P,) int64; where it is ``IGNORED_TARGET``, -100, the loss is 0.
    """
    if _is_served(logits):
        losses: Tensor = loss.native_cross_entropies(logits, targets)[0]
        return losses
    return plain_cross_entropies(logits, targets)


def plain_cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """``cross_entropies`` by PyTorch."""
    return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, reduction="none")


def _is_served(*tensors: Tensor) -> bool:
    """Whether to use the small native operators for these tensors of one dtype. Not while a compiler can fuse PyTorch's
    own operators or a tracer records them, nor in forward mode or under torch.func, which need other derivatives, nor
    for subclasses of tensors, which have rules of their own for PyTorch's operators.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    dtype = tensors[0].dtype
    for tensor in tensors:
        if (
            type(tensor) not in PLAIN
            or tensor.dtype != dtype
            or not tensor.is_cpu
            or tensor.is_neg()
            or tensor.numel() == 0
        ):
            return False
    return (
        dtype in DTYPES
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and why_not_built() is None
    )


def _differentiates(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
