"""Registers this package's operators, and calls them without PyTorch's dispatcher unless something watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad

OPERATORS = torch.library.Library("antiphase", "FRAGMENT")
PLAIN = frozenset({NoneType, bool, int, float})


def operator(name: str, function: Callable[..., Any], devices: Sequence[str] = ("CPU",)) -> Callable[..., Any]:
    """Register ``function`` as an operator on these kinds of device, with less overhead per call than ``custom_op``."""
    OPERATORS.define(name + torch.library.infer_schema(function, mutates_args=()))
    for device in devices:
        OPERATORS.impl(name, function, device)
    operator: Callable[..., Any] = getattr(torch.ops.antiphase, name).default
    return operator


def is_watched(args: Sequence[Any]) -> bool:
    """Whether a mode, transform, compiler, tracer or profiler needs to see a call, or an argument has its own rules."""
    return (
        torch.compiler.is_compiling()
        or torch._C._autograd._profiler_enabled()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or not are_plain(args)
    )


def are_plain(args: Sequence[Any]) -> bool:
    """Whether all tensors among the arguments are ordinary: no subclasses, no views that negate their memory, no
    batches of ``torch.autograd.grad(is_grads_batched=True)``.
    """
    for arg in args:
        kind = type(arg)
        if kind is Tensor or kind is nn.Parameter:
            if arg.is_neg() or is_legacy_batchedtensor(arg):
                return False
        elif kind not in PLAIN:
            return False
    return True


def differentiates(*tensors: Tensor) -> bool:
    """Whether autograd would record a call with these tensors, which batches of ``torch.vmap`` do not tell."""
    return torch.is_grad_enabled() and (
        any(tensor.requires_grad for tensor in tensors)
        or (not torch.compiler.is_compiling() and peek_interpreter_stack() is not None)
    )


def bypassing_dispatcher(function: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator without derivatives that bypasses PyTorch's dispatcher unless something needs to see the call: a
    decoding step of a small model takes little longer than the dispatcher itself.
    """

    @wraps(function)
    def call(*args: Any) -> Any:
        return operator(*args) if is_watched(args) else function(*args)

    return call
