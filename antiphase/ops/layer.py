"""Operations of a layer around attention, on compiled kernels if possible: norms, λ, a V1 decoding step, losses."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from antiphase.ops.decoding import is_few, most_rows_of_kernels, within_window
from antiphase.ops.dispatch import are_plain, differentiates
from antiphase.ops.implementations import runs_on_triton, step_module, transforms_of, why_no_kernels
from antiphase.ops.native import layer, loss, steps
from antiphase.ops.native.library import DTYPES, why_not_built
from antiphase.ops.plain import plain_cross_entropies, plain_lambda, plain_rms_norm
from antiphase.ops.shapes import four_dimensions


def rms_norm(
    tensor: Tensor, weight: Tensor, eps: float, factor: float = 1.0, dtype: torch.dtype | None = None
) -> Tensor:
    """RMSNorm over the last dimension, factor · x / √(mean of x² + eps) · weight (Zhang & Sennrich, 1910.07467, eq. 4).

    Args:
        tensor: (…, width), any floating dtype; it is cast to the weight's dtype first, so autocast does not lower the
            norm's precision.
        weight: (width,).
        eps: added to the mean of squares.
        factor: a constant; 1 - λinit for the heads of a V1 layer.
        dtype: of the result; None means the weight's.

    Returns:
        (…, width).
    """
    is_single = factor == 1.0 and dtype in (None, weight.dtype)  # one operation of PyTorch's, quicker to launch
    if not is_single and _is_on_gpu(tensor, weight) and _kernels().supports_norm(tensor, weight):
        kernels, dtype = _kernels(), weight.dtype if dtype is None else dtype
        run = kernels.norm_with_derivatives if differentiates(tensor, weight) else kernels.normalize
        out: Tensor = run(tensor, weight, eps, factor, dtype)
        return out
    tensor = tensor.to(weight.dtype)
    if not _is_served(tensor, weight):
        return plain_rms_norm(tensor, weight, eps, factor, dtype)
    run = layer.native_norm_with_derivatives if differentiates(tensor, weight) else layer.norm
    out = run(tensor, weight, eps, factor)
    return out if dtype is None else out.to(dtype)


def exponential_lambda(vectors: Sequence[Tensor], initial: float) -> Tensor:
    """λ = exp(λq1·λk1) - exp(λq2·λk2) + λinit (2410.05258, equation 2), 0-d, at least in fp32, under autocast too.

    Args:
        vectors: λq1, λk1, λq2, λk2, (d,) each.
        initial: λinit.
    """
    q1, k1, q2, k2 = vectors
    if _is_on_gpu(*vectors) and _kernels().supports_lambda(*vectors):
        kernels = _kernels()
        run = kernels.lambda_with_derivatives if differentiates(*vectors) else kernels.lambda_of
        lam: Tensor = run(q1, k1, q2, k2, initial)
        return lam
    if not differentiates(*vectors) and _is_served(*vectors) and q1.dtype == torch.float32:
        return layer.lambda_of(q1, k1, q2, k2, initial)
    return plain_lambda(vectors, initial)


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
    impl: str = "auto",
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
        impl: "auto", or "triton" to use the Triton kernels or none.

    Returns:
        (B, H, N, 2d) in the query's dtype.
    """
    groups = key.shape[1] // 2
    mask = four_dimensions(mask, key.shape[2])
    on_triton = query.is_cuda or impl == "triton"
    takes = _triton_takes_step if on_triton else _native_takes_step
    if not takes(query, key, value, vectors, weight, mask, scale):
        return None
    key, value, mask = within_window(query.shape[2], key, value, mask, sliding_window)
    step = step_module().triton_v1_step if on_triton else steps.native_v1_step
    out: Tensor = step(
        query, key, value, *vectors, weight, mask, groups, is_causal, sliding_window or 0, scale, initial, eps, factor
    )
    return out


def _native_takes_step(
    query: Tensor, key: Tensor, value: Tensor, vectors: Sequence[Tensor], weight: Tensor, mask: Tensor | None,
    scale: float,
) -> bool:  # fmt: skip
    """Whether ``v1_step`` runs on the native kernels; the mask is (1|B, 1|H, 1|N, M)."""
    return (
        _is_served(query, key, value, weight)
        and all(v.is_cpu and v.dtype == torch.float32 and not v.is_neg() for v in vectors)
        and all(t.is_contiguous() for t in (*vectors, weight))
        and (mask is None or mask.is_cpu)
        and not torch.is_autocast_enabled("cpu")
        and scale > 0
        and is_few(query, key, key.shape[1] // 2, mask)
        and not differentiates(query, key, value, weight, *vectors)
    )


def _triton_takes_step(
    query: Tensor, key: Tensor, value: Tensor, vectors: Sequence[Tensor], weight: Tensor, mask: Tensor | None,
    scale: float,
) -> bool:  # fmt: skip
    """Whether ``v1_step`` runs on the Triton kernels, which take any scale; the mask is (1|B, 1|H, 1|N, M)."""
    tensors = query, key, value, *vectors, weight
    groups, value_width = key.shape[1] // 2, 2 * value.shape[3]
    return (
        not torch.is_autocast_enabled(query.device.type)
        and query.dtype == key.dtype == value.dtype == weight.dtype
        and all(t.device == query.device for t in (*tensors, *(() if mask is None else (mask,))))
        and all(t.is_contiguous() for t in (*vectors, weight))
        and not differentiates(*tensors)
        and is_few(query, key, groups, mask, most_rows_of_kernels(value_width))
        and transforms_of(*tensors) is None
        and runs_on_triton(query, key, value, value_width)
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


def _is_plain_call(tensors: Sequence[Tensor]) -> bool:
    """Whether small operators of this package may take the place of PyTorch's. Not while a compiler can fuse these or a
    tracer or mode records them, nor in forward mode or under torch.func, which need other derivatives, nor for
    subclasses and other tensors that have rules of their own for PyTorch's operators.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and are_plain(tensors)
    )


def _is_on_gpu(*tensors: Tensor) -> bool:
    """Whether the small Triton kernels run for such tensors, if they support these."""
    return (
        tensors[0].is_cuda
        and _is_plain_call(tensors)
        and torch._C._len_torch_dispatch_stack() == 0
        and why_no_kernels(tensors[0].device) is None
    )


def _kernels() -> ModuleType:
    """The small Triton kernels."""
    from antiphase.ops.triton import layer

    return layer


def _is_served(*tensors: Tensor) -> bool:
    """Whether to use the small native operators for these tensors of one dtype."""
    if not _is_plain_call(tensors):
        return False
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_cpu or tensor.numel() == 0:
            return False
    return dtype in DTYPES and why_not_built() is None
