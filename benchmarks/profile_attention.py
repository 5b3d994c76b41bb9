"""Profile the CPU operator: the share of time in each of torch's operators, forward and backward.

    python -m benchmarks.profile_attention --length 4096 --output runs/profile

Writes a record. Shares are of the operators' self time; the profiler slows small operators down more than large ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from antiphase import differential_attention
from antiphase.base.records import Record

HEADS, WIDTH, CALLS, SHOWN = 8, 64, 3, 8


def main() -> None:
    """Profile one size and print the operators that take the most time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096, help="tokens")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--output", type=Path, required=True, help="folder for the record")
    chosen = parser.parse_args()
    if chosen.length < 1:
        parser.error(f"--length must be at least 1, got {chosen.length}")
    if chosen.output.exists() and (not chosen.output.is_dir() or any(chosen.output.iterdir())):
        parser.error(f"--output {chosen.output} exists and is not empty; choose another folder")
    dtype = getattr(torch, chosen.dtype)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, chosen.length, 2 * HEADS, WIDTH)] * 2 + [(1, chosen.length, HEADS, 2 * WIDTH)]  # as projections give
    query, key, value = (
        torch.randn(shape, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes
    )
    out = differential_attention(query, key, value, 0.4, is_causal=True, impl="blockwise")
    cotangent = torch.randn_like(out)

    @torch.no_grad()
    def forward() -> object:
        return differential_attention(query, key, value, 0.4, is_causal=True, impl="blockwise")

    def backward() -> object:
        return torch.autograd.grad(out, (query, key, value), cotangent, retain_graph=True)

    rows = [*profile("forward", forward), *profile("backward", backward)]
    config = {"length": chosen.length, "dtype": chosen.dtype, "heads": HEADS, "width": WIDTH, "calls": CALLS}
    Record(kind="profile-attention", values={"rows": rows}, config=config).save(chosen.output)
    console = Console()
    for row in rows:
        console.print(
            f"{row['task']:>8}  {row['operator']:<28} {row['calls']:>6} calls {row['milliseconds']:>9.1f} ms "
            f"{100 * row['share']:>5.1f} %",
            highlight=False,
        )


def profile(task: str, run: Callable[[], object]) -> list[dict[str, Any]]:
    """Self time of the slowest operators, in milliseconds per call of ``run``."""
    for _ in range(2):
        run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        for _ in range(CALLS):
            run()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [
        {
            "task": task,
            "operator": event.key,
            "calls": event.count // CALLS,
            "milliseconds": event.self_cpu_time_total / 1000 / CALLS,
            "share": event.self_cpu_time_total / total,
        }
        for event in events[:SHOWN]
    ]


if __name__ == "__main__":
    main()
