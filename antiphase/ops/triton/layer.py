"""Launches the kernels of RMSNorm and λ, with their gradients.

Under autocast, PyTorch's own operations would write a head's output twice in fp32 before the output projection rounds
it; these kernels read it and write the result in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from antiphase.ops.dispatch import are_plain
from antiphase.ops.plain import plain_lambda, plain_rms_norm
from antiphase.ops.triton.launch import DTYPES, count_blocks, multiprocessors, power_of_two
from antiphase.ops.triton.norm import lambda_backward_kernel, lambda_kernel, norm_backward_kernel, norm_kernel

WIDEST = 8192
TILE = 4096
"""Number of elements that a program handles at once, unless a row has more."""
PROGRAMS = 4
"""Programs per multiprocessor in backward; each writes one row of sums over tokens."""


def supports_norm(tensor: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take a tensor (…, width) and a weight (width,)."""
    return (
        tensor.dim() > 0 and weight.shape == tensor.shape[-1:] and _supports(tensor, weight) and weight.is_contiguous()
    )


def supports_lambda(*vectors: Tensor) -> bool:
    """Whether the kernels take four vectors (d,)."""
    same = all(vector.dim() == 1 and vector.shape == vectors[0].shape for vector in vectors)
    return same and _supports(*vectors) and all(vector.is_contiguous() for vector in vectors)


def _supports(*tensors: Tensor) -> bool:
    return all(
        t.dtype in DTYPES and t.numel() > 0 and t.shape[-1] <= WIDEST and t.device == tensors[0].device for t in tensors
    )


def _by_pytorch(plain: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of the operation by PyTorch, which can be differentiated again and taken for batches of cotangents."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [t.view_as(t) for t in inputs]  # where gradients end: one input may be computed from another
        out = plain(*inputs)
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, weight: Tensor, eps: float, factor: float, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(tensor, weight)
        ctx.numbers = eps, factor, dtype
        return normalize(tensor, weight, eps, factor, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensor, weight = ctx.saved_tensors
        eps, factor, dtype = ctx.numbers
        if torch.is_grad_enabled() or not are_plain([grad]):
            plain = partial(plain_rms_norm, eps=eps, factor=factor, dtype=dtype)
            return *_by_pytorch(plain, (tensor, weight), grad), None, None, None
        return *normalize_backward(grad, tensor, weight, eps, factor), None, None, None


def normalize(tensor: Tensor, weight: Tensor, eps: float, factor: float, dtype: torch.dtype) -> Tensor:
    """Factor · x / √(mean of x² + eps) · weight over the last dimension, contiguous, computed in fp32.

    Args:
        tensor: (…, width), fp16, bf16 or fp32.
        weight: (width,), contiguous.
        dtype: of the result.
    """
    tensor = tensor.contiguous()
    out = torch.empty_like(tensor, dtype=dtype)
    width, block, rows = _sizes(tensor)
    count = tensor.numel() // width
    with torch.cuda.device_of(tensor):
        norm_kernel[count_blocks(count, rows),](
            tensor, weight, out, count, eps, factor, WIDTH=width, BLOCK=block, ROWS=rows, num_warps=4
        )
    return out


def normalize_backward(
    grad: Tensor, tensor: Tensor, weight: Tensor, eps: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Gradients of tensor and weight, in their shapes and dtypes."""
    grad, tensor = grad.contiguous(), tensor.contiguous()
    slopes = torch.empty_like(tensor)
    width, block, rows = _sizes(tensor)
    count = tensor.numel() // width
    programs = min(count_blocks(count, rows), PROGRAMS * multiprocessors(tensor.device))
    sums = torch.empty((programs, width), dtype=torch.float32, device=tensor.device)
    with torch.cuda.device_of(tensor):
        norm_backward_kernel[programs,](
            grad, tensor, weight, slopes, sums, count, eps, factor, WIDTH=width, BLOCK=block, ROWS=rows, num_warps=4
        )
    return slopes, sums.sum(0, dtype=torch.float32).to(weight.dtype)


def _sizes(tensor: Tensor) -> tuple[int, int, int]:
    """Width, padded width, and rows that a program handles at once."""
    block = power_of_two(tensor.shape[-1])
    return tensor.shape[-1], block, max(1, min(64, TILE // block))


class _Lambda(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, initial: float) -> Tensor:
        ctx.save_for_backward(q1, k1, q2, k2)
        return lambda_of(q1, k1, q2, k2, initial)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        vectors = ctx.saved_tensors
        if torch.is_grad_enabled() or not are_plain([grad]):
            return *_by_pytorch(lambda *four: plain_lambda(four, 0.0), vectors, grad), None
        width = vectors[0].numel()
        found = torch.empty((4, width), dtype=torch.float32, device=grad.device)
        with torch.cuda.device_of(grad):
            lambda_backward_kernel[1,](*vectors, grad, found, WIDTH=width, BLOCK=power_of_two(width), num_warps=1)
        slopes = found.unbind(0)
        return *(slope.to(vector.dtype) for slope, vector in zip(slopes, vectors, strict=True)), None


def lambda_of(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, initial: float) -> Tensor:
    """λ of four contiguous vectors (d,), 0-d in fp32."""
    out = torch.empty((), dtype=torch.float32, device=q1.device)
    width = q1.numel()
    with torch.cuda.device_of(q1):
        lambda_kernel[1,](q1, k1, q2, k2, out, initial, WIDTH=width, BLOCK=power_of_two(width), num_warps=1)
    return out


def norm_with_derivatives(tensor: Tensor, weight: Tensor, eps: float, factor: float, dtype: torch.dtype) -> Tensor:
    """``normalize``, differentiable."""
    out: Tensor = _Norm.apply(tensor, weight, eps, factor, dtype)
    return out


def lambda_with_derivatives(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, initial: float) -> Tensor:
    """``lambda_of``, differentiable."""
    out: Tensor = _Lambda.apply(q1, k1, q2, k2, initial)
    return out
