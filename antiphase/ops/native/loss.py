"""Cross-entropy of rows of logits as PyTorch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antiphase.ops.dispatch import operator
from antiphase.ops.native.library import DTYPES, LOSS_PROBLEM, address, holds, library, threads_of_torch
from antiphase.ops.native.operators import rows
from antiphase.ops.shapes import IGNORED_TARGET, statistics_dtype


def cross_entropies(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-log p of each target in nats (P,), 0 where it is -100, and what backward needs.

    Args:
        logits: (P, vocabulary), fp32, bf16 or fp64.
        targets: (P,) int64, from 0 to vocabulary - 1, or -100.

    Returns:
        Losses (P,), and the largest logit x and log Σ exp(… - x) of each row, (P, 2), both in fp32, or fp64 for fp64.
    """
    logits = rows(logits)
    losses, statistics = _empty_losses(logits)
    _run(logits, targets.contiguous(), statistics, losses=losses)
    return losses, statistics


def _empty_losses(logits: Tensor) -> tuple[Tensor, Tensor]:
    dtype = statistics_dtype(logits.dtype)
    return logits.new_empty(len(logits), dtype=dtype), logits.new_empty(len(logits), 2, dtype=dtype)


native_cross_entropies = operator("native_cross_entropies", cross_entropies)


@torch.library.register_fake("antiphase::native_cross_entropies")
def _(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_losses(logits)


def cross_entropies_backward(grad: Tensor, logits: Tensor, targets: Tensor, statistics: Tensor) -> Tensor:
    """Gradient of the logits, grad · (softmax - one at the target), in their shape and dtype."""
    logits = rows(logits)
    found = torch.empty_like(logits, memory_format=torch.contiguous_format)
    _run(logits, targets.contiguous(), statistics, grad=grad.contiguous(), grad_logits=found)
    return found


native_cross_entropies_backward = operator("native_cross_entropies_backward", cross_entropies_backward)


@torch.library.register_fake("antiphase::native_cross_entropies_backward")
def _(grad: Tensor, logits: Tensor, targets: Tensor, statistics: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _run(
    logits: Tensor,
    targets: Tensor,
    statistics: Tensor,
    *,
    losses: Tensor | None = None,
    grad: Tensor | None = None,
    grad_logits: Tensor | None = None,
) -> None:
    """Fill ``losses`` and ``statistics`` or, with ``grad``, ``grad_logits``.

    Raises:
        IndexError: a target is not in the vocabulary.
        ValueError: the shapes or dtypes do not fit together.
        RuntimeError: there is no library.
    """
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    if logits.dtype not in DTYPES:
        raise ValueError(f"the native cross-entropy takes fp32, bf16 and fp64, not {logits.dtype}")
    if logits.dim() != 2 or targets.shape != logits.shape[:1] or targets.dtype != torch.int64:
        shapes = f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} in {targets.dtype}"
        raise ValueError(f"{shapes} do not fit together: (P, vocabulary) and (P,) in int64 do")
    if not holds(statistics, (len(targets), 2), statistics_dtype(logits.dtype)):
        raise ValueError(f"statistics are ({len(targets)}, 2), contiguous, as forward gives them for {logits.dtype}")
    if grad is not None and (grad.shape != targets.shape or grad.dtype != statistics.dtype):
        raise ValueError(f"the gradient of {len(targets)} losses is {statistics.dtype}, not {grad.dtype}")
    parallel, _ = threads_of_torch()
    status = found.antiphase_loss(
        LOSS_PROBLEM.pack(
            logits.data_ptr(), targets.data_ptr(), address(grad), address(losses), statistics.data_ptr(),
            address(grad_logits), *logits.shape, logits.stride(0), DTYPES[logits.dtype],
            torch.get_num_threads() if parallel else 1, parallel,
        )
    )  # fmt: skip
    if status:
        raise IndexError(f"a target is neither from 0 to {logits.shape[1] - 1} nor -100")


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
    return native_cross_entropies_backward(grad, *ctx.saved_tensors), None


def _setup_second(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _second(ctx: Any, vector: Tensor) -> tuple[Tensor, Tensor, None, None]:
    """Derivatives of v · g (p - one at the target), by PyTorch: those of g, and g p ∘ (v - p · v) of the logits."""
    grad, logits, targets = ctx.saved_tensors
    counts = targets != IGNORED_TARGET
    chances, vector = logits.to(grad.dtype).softmax(1), vector.to(grad.dtype)
    inner = (chances * vector).sum(1)
    of_grad = inner - vector.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
    of_logits = (grad * counts).unsqueeze(1) * chances * (vector - inner.unsqueeze(1))
    return of_grad * counts, of_logits.to(logits.dtype), None, None


torch.library.register_autograd("antiphase::native_cross_entropies", _backward, setup_context=_setup_context)
torch.library.register_autograd("antiphase::native_cross_entropies_backward", _second, setup_context=_setup_second)
