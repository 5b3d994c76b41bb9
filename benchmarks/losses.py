"""Time the loss of a language model on the native kernels against PyTorch's, eager and compiled.

    python -m benchmarks.losses --output runs/losses

Candidates alternate; a loss starts from logits in the model's dtype. Every pair is first checked: against fp64, the
native loss and gradient err at most twice as much as PyTorch's and one rounding.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antiphase.base.errors import InputError
from antiphase.lab.speed.timing import paired_times, ratios
from antiphase.ops.layer import cross_entropies
from antiphase.ops.native.library import why_not_built
from antiphase.ops.plain import plain_cross_entropies
from tools.script import CONSOLE, script

SIZES = ((4096, 2048), (2048, 32_000), (512, 151_936))
"""Tokens and vocabularies: this project's presets, Llama 2 and Qwen 3."""
DTYPES = (torch.float32, torch.bfloat16)
Loss = Callable[[Tensor, Tensor], Tensor]


def gradient(loss: Loss, logits: Tensor, targets: Tensor) -> Tensor:
    """Gradient of the mean loss."""
    return torch.autograd.grad(loss(logits, targets).mean(), logits)[0]


def check(logits: Tensor, targets: Tensor) -> None:
    """
    Raises:
        RuntimeError: the native loss or its gradient errs too much.
    """
    exact = logits.detach().double().requires_grad_()
    for what in (lambda loss, x: loss(x, targets), lambda loss, x: gradient(loss, x, targets)):
        true, eager, native = what(plain_cross_entropies, exact), *(
            what(loss, logits) for loss in (plain_cross_entropies, cross_entropies)
        )  # fmt: skip
        error, allowed, rounding = (
            (t.double() - true).square().mean().sqrt() for t in (native, eager, true.to(eager.dtype))
        )
        if not error <= 2 * (allowed + rounding):  # it may be NaN
            shape = f"{tuple(logits.shape)} in {logits.dtype}"
            raise RuntimeError(f"{shape}: the native error is {error:.1e}, PyTorch's {allowed:.1e}")


def measured(tokens: int, vocabulary: int, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """Ratios of one size: forward, and forward + backward."""
    logits = (3 * torch.randn(tokens, vocabulary)).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))
    check(logits, targets)
    compiled: Loss = torch.compile(plain_cross_entropies)
    losses = {"native": cross_entropies, "PyTorch": plain_cross_entropies, "PyTorch, compiled": compiled}

    def forward(loss: Loss) -> Tensor:
        with torch.no_grad():
            return loss(logits, targets)

    found = []
    for task, run in (("forward", forward), ("forward + backward", lambda loss: gradient(loss, logits, targets))):
        work = {name: (lambda loss=loss, run=run: run(loss)) for name, loss in losses.items()}
        times = paired_times(work, rounds=rounds, warm_up=2)
        found += [
            {"task": task, "tokens": tokens, "vocabulary": vocabulary, "dtype": str(dtype).removeprefix("torch."),
             **ratios(times, "native", baseline)}
            for baseline in losses if baseline != "native"
        ]  # fmt: skip
    return found


def measure(given: Namespace) -> dict[str, Any]:
    """All sizes and dtypes.

    Raises:
        InputError: there are no native kernels here, or too few rounds.
    """
    if (reason := why_not_built()) is not None:
        raise InputError(reason)
    if given.rounds < 2:
        raise InputError(f"--rounds must be at least 2, got {given.rounds}")
    torch.manual_seed(0)
    rows = []
    for tokens, vocabulary in SIZES:
        for dtype in DTYPES:
            new = measured(tokens, vocabulary, dtype, given.rounds)
            rows += new
            for row in new:
                size = f"{tokens:,} × {vocabulary:,}, {row['dtype']}"
                CONSOLE.print(f"{row['task']}, {size}: {row['ratio']:.2f} of {row['baseline']}")
    return {"values": {"rows": rows}, "config": {"rounds": given.rounds}}


if __name__ == "__main__":
    script(__doc__, "benchmark-losses", measure, {"--rounds": 15})
