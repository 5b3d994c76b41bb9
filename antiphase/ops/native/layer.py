"""Operations of a layer around attention as PyTorch operators: RMSNorm and λ."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any

import torch
from torch import Tensor

from antiphase.ops.dispatch import bypassing_dispatcher, operator
from antiphase.ops.native.library import library, run_norm


def normalize(tensor: Tensor, weight: Tensor, eps: float, factor: float) -> Tensor:
    """RMSNorm of each row, factor · x / √(mean of x² + eps) · weight over (…, width), rounded once to the dtype.

    Args:
        tensor: fp32, bf16 or fp64; not differentiable.
        weight: (width,) in the same dtype.
    """
    tensor = tensor.contiguous()
    out = torch.empty_like(tensor)
    run_norm(tensor, weight.contiguous(), None, out, None, eps, factor)
    return out


native_norm = operator("native_norm", normalize)


@torch.library.register_fake("antiphase::native_norm")
def _(tensor: Tensor, weight: Tensor, eps: float, factor: float) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


native_norm_with_derivatives = operator("native_norm_with_derivatives", normalize)
"""The same with gradients: a separate operator, because registered gradients slow every call down."""


@torch.library.register_fake("antiphase::native_norm_with_derivatives")
def _(tensor: Tensor, weight: Tensor, eps: float, factor: float) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def normalize_backward(
    grad: Tensor, tensor: Tensor, weight: Tensor, eps: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Gradients of tensor and weight, in their shapes and dtypes."""
    tensor, weight = tensor.contiguous(), weight.contiguous()
    grad_tensor, grad_weight = torch.empty_like(tensor), torch.empty_like(weight)
    run_norm(tensor, weight, grad.contiguous(), grad_tensor, grad_weight, eps, factor)
    return grad_tensor, grad_weight


native_norm_backward = operator("native_norm_backward", normalize_backward)


@torch.library.register_fake("antiphase::native_norm_backward")
def _(grad: Tensor, tensor: Tensor, weight: Tensor, eps: float, factor: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format), torch.empty_like(weight)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensor, weight, ctx.eps, ctx.factor = inputs
    ctx.save_for_backward(tensor, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *native_norm_backward(grad, *ctx.saved_tensors, ctx.eps, ctx.factor), None, None


torch.library.register_autograd("antiphase::native_norm_with_derivatives", _backward, setup_context=_setup_context)


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.eps, ctx.factor = inputs
    ctx.save_for_backward(*tensors)


def _second_derivatives(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """By PyTorch, from the formula of ``normalize_backward``; they are rare, so there is no kernel for them.

    Views stand for the saved tensors: gradients end at them, and can be differentiated further.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        grad, tensor, weight = inputs = [
            saved.view_as(saved) if saved.requires_grad else saved.detach().requires_grad_()
            for saved in ctx.saved_tensors
        ]
        scale = torch.rsqrt(tensor.square().mean(-1, keepdim=True) + ctx.eps)
        inner = ctx.factor * grad * weight
        of_tensor = scale * (inner - tensor * scale.square() * (inner * tensor).mean(-1, keepdim=True))
        of_weight = (ctx.factor * grad * tensor * scale).reshape(-1, weight.numel()).sum(0)
    used = [(out, given) for out, given in zip((of_tensor, of_weight), grads, strict=True) if given is not None]
    outs, given = zip(*used, strict=True)
    return *torch.autograd.grad(outs, inputs, given, allow_unused=True, create_graph=create_graph), None, None


torch.library.register_autograd("antiphase::native_norm_backward", _second_derivatives, setup_context=_setup_second)


def exponential_lambda(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, initial: float) -> Tensor:
    """λ = exp(q1 · k1) - exp(q2 · k2) + initial from fp32 vectors (d,), 0-d in fp32; not differentiable."""
    vectors = [vector.contiguous() for vector in (q1, k1, q2, k2)]
    if any(vector.dtype != torch.float32 or vector.numel() != q1.numel() for vector in vectors):
        given = [(v.dtype, tuple(v.shape)) for v in vectors]
        raise ValueError(f"λ takes four fp32 vectors of one width, got {given}")
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    pointers = (c_void_p * 4)(*(vector.data_ptr() for vector in vectors))
    return q1.new_tensor(found.antiphase_lambda(pointers, q1.numel(), initial))


native_lambda = operator("native_lambda", exponential_lambda)


@torch.library.register_fake("antiphase::native_lambda")
def _(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, initial: float) -> Tensor:
    return q1.new_empty(())


norm = bypassing_dispatcher(normalize, native_norm)
lambda_of = bypassing_dispatcher(exponential_lambda, native_lambda)
