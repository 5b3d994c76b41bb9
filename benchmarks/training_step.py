"""What a training step on a CPU consists of, and how much of the machine's rate it uses.

    python -m benchmarks.training_step --output runs/training-step

V1 on the native kernels and softmax on PyTorch's attention, in fp32 and under autocast to bf16, at widths 256 and 768.
The record has the time of a step, the ratio of paired rounds, model FLOP utilisation (three times the operations of the
forward pass by ``estimate``, over those of large matrix products of the same dtype that take as long), and the share of
each kind of work by PyTorch's profiler. The rest is Python and what the profiler adds to small operators.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.lab.speed.model import OURS, SIZES, SOFTMAX_ON_SDPA, Setting, models_of, training_step
from antiphase.lab.speed.timing import RATE_SIZES, paired_times, ratios
from antiphase.lab.studies.estimate.operations import forward_flops
from tools.script import CONSOLE, script

LENGTH = 2048
PRODUCT = RATE_SIZES["cpu"]
WIDTHS = {256: SIZES, 768: {**SIZES, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}}
MODELS = (OURS, SOFTMAX_ON_SDPA)
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn"),
    "attention": ("antiphase::native_attention", "aten::_scaled_dot_product"),
    "loss": ("antiphase::native_cross", "aten::_log_softmax", "aten::nll_loss"),
    "norms and λ": ("antiphase::native_norm", "antiphase::native_lambda"),
    "optimizer": ("aten::_fused_adamw",),
    "copies and conversions": ("aten::copy_", "aten::cat", "aten::fill_"),
    "elementwise": (
        "aten::mul", "aten::add", "aten::silu", "aten::sub", "aten::neg", "aten::pow", "aten::mean", "aten::rsqrt",
    ),
}  # fmt: skip
"""Beginnings of the names of operators; what fits none is the rest."""
REST = "rest"
BACKWARD = "GeneratedBackwardFor_antiphase_"
"""How the backward pass of an operator of this package begins, instead of its namespace."""


def measure(given: Namespace) -> dict[str, Any]:
    """Each width and dtype."""
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.bfloat16):
        for width in WIDTHS:
            for row in measured(width, dtype, given.rounds):
                rows.append(row)
                parts = ", ".join(f"{kind} {share:.0%}" for kind, share in row["shares"].items())
                CONSOLE.print(
                    f"{row['dtype']}, width {width}, {row['model']}: {row['seconds']:.3g} s, "
                    f"{row['utilisation']:.0%} of the rate; {parts}", soft_wrap=True,
                )  # fmt: skip
    return {
        "values": {"rows": rows},
        "config": {**SIZES, "length": LENGTH, "widths": list(WIDTHS), "rounds": given.rounds},
    }


def measured(width: int, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """A row for each model; a matrix product of ``PRODUCT`` rows and columns takes its turn in every round."""
    found = models_of(0, Setting(WIDTHS[width], (LENGTH,), LENGTH, pairs=[MODELS]), "cpu")
    ids = torch.randint(0, SIZES["vocab_size"], (1, LENGTH), generator=torch.Generator().manual_seed(0))
    is_half = dtype == torch.bfloat16
    models = {name: found[name] for name in MODELS}
    steps = {name: training_step(model, ids, is_half=is_half) for name, model in models.items()}
    matrix = torch.randn(PRODUCT, PRODUCT).to(dtype)
    times = paired_times({**steps, "product": lambda: matrix @ matrix}, rounds=rounds)
    return [
        {
            "model": name,
            "width": width,
            "dtype": str(dtype).removeprefix("torch."),
            "parameters": model.num_parameters(),
            "utilisation": utilisation(model, ratios(times, name, "product")["ratio"]),
            "seconds": ratio["subject_seconds"],
            "ratio": ratio["ratio"],
            "quartiles": ratio["quartiles"],
            "shares": shares(steps[name]),
        }
        for name, model in models.items()
        for ratio in [ratios(times, name, SOFTMAX_ON_SDPA)]
    ]


def utilisation(model: PreTrainedModel, products: float) -> float:
    """Operations of a step by formula, as a share of those of the matrix products that take as long."""
    return float(3 * forward_flops(model, LENGTH) * LENGTH / (products * 2 * PRODUCT**3))


def shares(step: Callable[[], object]) -> dict[str, float]:
    """Share of a step's time by kind of work, the largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        started = time.perf_counter()
        step()
        seconds = time.perf_counter() - started
    found = Counter[str]()
    for event in profile.key_averages():
        found[kind_of(event.key)] += event.self_cpu_time_total / 1e6 / seconds
    found[REST] += 1 - sum(found.values())
    return dict(found.most_common())


def kind_of(operator: str) -> str:
    """The kind of work that an operator does."""
    own = operator.replace(BACKWARD, "antiphase::")
    return next((kind for kind, names in KINDS.items() if own.startswith(names)), REST)


if __name__ == "__main__":
    script(__doc__, "training-step", measure, {"--rounds": 9})
