"""The operator against softmax attention of equal size and against the ways in which public code subtracts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.benchmarks.memory import peak_extra_bytes
from antiphase.benchmarks.schemes import COMPARED, DIFFLLAMA, FOUR_CALLS, OURS, OURS_V2, SOFTMAX, Case, Scheme, work
from antiphase.benchmarks.timing import paired_times, product_rate, ratios
from antiphase.interface import differential_output, join_halves
from antiphase.ops.api import differential_attention
from antiphase.records import Record

HEADS, WIDTH = 8, 64
GATE_LENGTH = 257
LONGEST_WITH_MAPS = 1024
"""Ways that hold N × N weights are left out beyond this length: they take eight times as long there, and gigabytes."""
LONGEST_OF_ALL = 4096
"""Beyond this length a round takes a minute: of two ways with equally many operations one is timed, and in fp32."""
QUICK_SECONDS, CELL_SECONDS = 3.0, 8.0
"""No further round of a comparison begins after this time."""


def cells(*, quick: bool) -> list[Case]:
    """What is timed, the most telling first."""
    lengths = (1024, 4096) if quick else (1024, 4096, 16384)
    found = [
        Case(length, HEADS, WIDTH, dtype, task)
        for task in COMPARED
        for dtype in (torch.float32, torch.bfloat16)
        for length in lengths
    ]
    if not quick:
        other_widths = [(4 * HEADS // 2, WIDTH // 2), (HEADS // 2, 2 * WIDTH)]
        found += [
            Case(4096, heads, width, torch.float32, task)
            for heads, width in other_widths
            for task in ("forward", "forward + backward")
        ]
    return found


def memory_cells(*, quick: bool) -> list[Case]:
    """Where peak memory is measured."""
    if quick:
        return [Case(4096, HEADS, WIDTH, torch.float32, "forward + backward")]
    tasks = ("forward", "forward + backward")
    return [Case(n, HEADS, WIDTH, torch.float32, task) for n in (4096, 16384) for task in tasks]


def benchmark_attention(
    *, quick: bool = False, seed: int = 0, say: Callable[[str], None] = lambda message: None
) -> Record:
    """Causal, batch 1: forward, forward + backward, and one query against a cache. Nothing wrong is timed.

    Raises:
        RuntimeError: an implementation errs more than the tolerance rule allows.
    """
    started = time.perf_counter()
    rounds, seconds = (5, QUICK_SECONDS) if quick else (15, CELL_SECONDS)
    say("checking correctness")
    gate = [row for width in (32, 64, 128) for row in correctness(HEADS // 2, width, seed)]
    rates = {_name(dtype): product_rate(dtype) for dtype in (torch.float32, torch.bfloat16)}
    rows, memory = [], []
    for case in cells(quick=quick):
        for subject, baselines in COMPARED[case.task]:
            compared = [scheme for scheme in baselines if _is_timed(scheme, case, quick=quick)]
            say(f"timing {subject.name}: {_words(case)}")
            # A decoding step takes microseconds to milliseconds: many make one round.
            repeats = 50 if case.task == "decode" else 1
            timed = {scheme.name: _repeated(work(scheme, case, seed), repeats) for scheme in (subject, *compared)}
            is_long = case.length > LONGEST_OF_ALL and repeats == 1  # tens of seconds: nothing there is still cold
            times = paired_times(
                timed, rounds=rounds if repeats == 1 else 3 * rounds, seconds=seconds, warm_up=0 if is_long else 1
            )
            rate = rates[_name(case.dtype)]
            for baseline in compared:
                row = ratios(times, subject.name, baseline.name)
                row["subject_seconds"] /= repeats
                row["baseline_seconds"] /= repeats
                rows.append({**_describe(case), **row, **_price(subject, baseline, case, row, rate)})
    for case in memory_cells(quick=quick):
        say(f"measuring memory: {_words(case)}")
        memory += [
            {**_describe(case), "scheme": scheme.name, "bytes": peak_extra_bytes(scheme, case, seed)}
            for scheme in (OURS, SOFTMAX, DIFFLLAMA, OURS_V2)
        ]
    return Record(
        kind="benchmark-attention",
        values={"gate": gate, "rows": rows, "memory": memory, "product_rate": rates},
        config={
            "heads": HEADS,
            "width": WIDTH,
            "causal": True,
            "batch": 1,
            "rounds": rounds,
            "seconds": seconds,
            "quick": quick,
        },
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )


def _is_timed(scheme: Scheme, case: Case, *, quick: bool) -> bool:
    if scheme.holds_maps:
        return not quick and case.length <= LONGEST_WITH_MAPS and case.dtype == torch.float32
    if scheme is FOUR_CALLS:
        return not quick and case.length <= LONGEST_OF_ALL
    if scheme is DIFFLLAMA and case.task != "decode":
        return case.dtype == torch.float32 or case.length <= LONGEST_OF_ALL
    return True


def _repeated(run: Callable[[], object], count: int) -> Callable[[], object]:
    if count == 1:
        return run

    def repeat() -> None:
        for _ in range(count):
            run()

    return repeat


def _describe(case: Case) -> dict[str, Any]:
    return {
        "task": case.task, "dtype": _name(case.dtype), "length": case.length, "heads": case.heads, "width": case.width
    }  # fmt: skip


def _price(subject: Scheme, baseline: Scheme, case: Case, row: dict[str, Any], rate: float) -> dict[str, float | int]:
    """What the formulas say beside what was measured: operations, bytes of a cache, share of the machine's rate."""
    flops = subject.flops(case)
    found: dict[str, float | int] = {
        "flops": flops,
        "flops_ratio": flops / baseline.flops(case),
        "share_of_product_rate": flops / row["subject_seconds"] / rate,
        "baseline_share_of_product_rate": baseline.flops(case) / row["baseline_seconds"] / rate,
    }
    if case.task == "decode":
        maps = case.heads if subject.shares_keys else 2 * case.heads
        found["cache_bytes"] = 2 * maps * case.length * case.width * case.dtype.itemsize
        found["cache_bytes_per_second"] = found["cache_bytes"] / row["subject_seconds"]
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _words(case: Case) -> str:
    return f"{case.task}, {case.length:,} tokens, {case.heads} heads of {case.width}, {_name(case.dtype)}"


def correctness(heads: int, width: int, seed: int) -> list[dict[str, Any]]:
    """Error ≤ 2 × (eager's at the same dtype + one rounding), both against fp64: output, gradients, decoding.

    Errors are root mean squares over a tensor: its largest error is luck, in bf16 of a few rows.

    Raises:
        RuntimeError: something errs more.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for form, key_maps in (("V1", 2 * heads), ("V2", heads)):
        exact = [
            torch.randn(1, maps, GATE_LENGTH, width, generator=generator, dtype=torch.float64)
            for maps in (2 * heads, key_maps, key_maps)
        ]
        lam = torch.rand(1, heads, GATE_LENGTH, generator=generator, dtype=torch.float64)
        cotangent = torch.randn(
            1, heads, GATE_LENGTH, width * key_maps // heads, generator=generator, dtype=torch.float64
        )
        for dtype in (torch.float32, torch.bfloat16):
            low = [tensor.to(dtype) for tensor in (*exact, cotangent)]
            short = lam.float()
            truth = _results([t.double() for t in low], short.double(), "reference")
            eager = _results(low, short, "reference")
            fast = _results(low, short, "blockwise")
            for name, true in truth.items():
                rounding = _distance(true.to(fast[name].dtype), true)
                error = _distance(fast[name], true)
                allowed = 2 * (_distance(eager[name], true) + rounding)
                row = {"form": form, "width": width, "dtype": _name(dtype), "tensor": name}
                rows.append({**row, "error": error, "allowed": allowed})
                if not error <= allowed:
                    raise RuntimeError(
                        f"{form}, width {width}: {name} errs by {error:.3g} at {_name(dtype)}, allowed {allowed:.3g}"
                    )
    return rows


def _distance(found: Tensor, true: Tensor) -> float:
    return (found.double() - true).square().mean().sqrt().item()


def _results(tensors: Sequence[Tensor], lam: Tensor, impl: str) -> dict[str, Tensor]:
    """Output, gradients and a decoding step; the reference's, or the fast ones'."""
    query, key, value, cotangent = tensors
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value, lam)]
    halves = 2 if key.shape[1] == query.shape[1] else 1
    whole = join_halves(leaves[2]) if halves == 2 else leaves[2]
    out = differential_attention(leaves[0], leaves[1], whole, leaves[3], is_causal=True, impl=impl)
    found = dict(zip(("query", "key", "value", "lam"), torch.autograd.grad(out, leaves, cotangent), strict=True))
    last = slice(-1, None)
    with torch.no_grad():
        if impl == "reference":
            step = out[:, :, last]
        else:
            step = differential_output(
                query[:, :, last], key, value, lam[:, :, last], None,
                halves=halves, is_causal=False, sliding_window=None, scaling=None,
            ).transpose(1, 2)  # fmt: skip
    return {"out": out.detach(), **found, "decoding": step}
