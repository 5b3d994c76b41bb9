"""Block sizes of the GPU kernels, chosen by time; the best ones belong in ``ops/triton/launch.py``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from antiphase.lab.speed.attention import CALLS_ON_GPU, STEPS_OF_DECODING, repeated, why_not
from antiphase.lab.speed.gpu_schemes import FUSED, FUSED_V2
from antiphase.lab.speed.pieces import Piece, Pieces, at_once
from antiphase.lab.speed.schemes import Case, Scheme, work
from antiphase.lab.speed.timing import paired_times
from antiphase.ops.triton.launch import Tiling, blocks_of, major_capability, override_blocks, padded

TASKS = {"forward": "forward", "keys": "forward + backward", "queries": "forward + backward", "span": "decode"}
"""The call by which a kernel is timed; its other kernels are the same for all candidates."""
CANDIDATES: dict[str, Sequence[Tiling]] = {
    "forward": (
        Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 2), Tiling(128, 64, 8, 3), Tiling(64, 32, 4, 3),
    ),
    "keys": (
        Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 1), Tiling(128, 64, 8, 2), Tiling(64, 32, 4, 2),
    ),
    "queries": (
        Tiling(64, 32, 4, 3), Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 3), Tiling(128, 64, 8, 2),
    ),
    "span": (
        Tiling(16, 32, 4, 3), Tiling(16, 64, 4, 2), Tiling(16, 64, 4, 3), Tiling(16, 64, 8, 3),
        Tiling(16, 128, 4, 2), Tiling(16, 128, 8, 2), Tiling(16, 128, 8, 3),
    ),
}  # fmt: skip
"""Candidates in half precision, for widths up to 64 on compute capability 9."""
SCHEMES: Sequence[Scheme] = (FUSED, FUSED_V2)
"""Both versions use the same blocks."""


@dataclass(frozen=True)
class Trial:
    """One kernel in one version, with candidates for its blocks."""

    kernel: str
    scheme: Scheme
    case: Case
    candidates: Sequence[Tiling]

    @property
    def name(self) -> str:
        """Name of its piece."""
        return f"blocks: {self.kernel}, {self.scheme.name}"

    @property
    def usual(self) -> Tiling:
        """The kernel's current blocks."""
        value_width = self.case.width * (1 if self.scheme.shares_keys else 2)
        major = major_capability(torch.device(self.case.device))
        return blocks_of(self.kernel, padded(self.case.width), padded(value_width), self.case.dtype, major)


def trials(case: Case, candidates: Mapping[str, Sequence[Tiling]] = CANDIDATES) -> list[Trial]:
    """All trials at the sizes of a case; each sets its own task."""
    return [
        Trial(kernel, scheme, replace(case, task=TASKS[kernel]), candidates[kernel])
        for kernel in candidates
        for scheme in SCHEMES
    ]


def run_once(trial: Trial, blocks: Tiling, seed: int = 0) -> str | None:
    """Compile and run a candidate once; the reason if it does not work, else None."""
    with override_blocks({trial.kernel: blocks}):
        return why_not(trial.scheme, trial.case, seed)


def timed_blocks(
    trials: Sequence[Trial], *, rounds: int = 7, seconds: float = 3.0, seed: int = 0, piece: Piece = at_once,
    say: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:  # fmt: skip
    """Time every candidate, and choose the fastest for each kernel by the product of both versions' times.

    Returns:
        ``rows``: for each candidate the ``seconds`` of a call and its ratio to the current blocks, or ``why`` it does
        not work; ``chosen``: blocks by kernel; ``left_out``: skipped pieces.
    """
    done = Pieces(piece)
    rows: list[dict[str, Any]] = []
    for trial in trials:
        say(f"timing {trial.name}")
        rows += done.rows(trial.name, partial(_timed, trial, rounds=rounds, seconds=seconds, seed=seed))
    chosen = {}
    for kernel in dict.fromkeys(trial.kernel for trial in trials):
        versions = {trial.scheme.name for trial in trials if trial.kernel == kernel}
        scores: dict[Tiling, dict[str, float]] = {}
        for row in rows:
            if row["kernel"] == kernel and row["why"] is None:
                scores.setdefault(Tiling(*row["blocks"]), {})[row["scheme"]] = row["seconds"]
        whole = {blocks: found for blocks, found in scores.items() if found.keys() == versions}
        if whole:
            chosen[kernel] = min(whole, key=lambda blocks: statistics.geometric_mean(whole[blocks].values()))
    return {"rows": rows, "chosen": chosen, "left_out": done.left_out}


def _timed(trial: Trial, *, rounds: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    """One row per candidate; those with other results than the current blocks are not timed."""
    usual, case = trial.usual, trial.case
    repeats = 1 if case.device == "cpu" else STEPS_OF_DECODING if case.decodes else CALLS_ON_GPU
    expected = results_of(trial, usual, seed)
    ways: dict[str, Callable[[], object]] = {}
    reasons: dict[Tiling, str | None] = {}
    for blocks in dict.fromkeys((usual, *trial.candidates)):
        why = run_once(trial, blocks, seed)
        if why is None and blocks != usual and not agree(results_of(trial, blocks, seed), expected, case.dtype):
            why = "it computes something else"
        reasons[blocks] = why
        if why is None:
            ways[str(blocks)] = repeated(_within(trial, blocks, work(trial.scheme, case, seed)), repeats)
    times = paired_times(ways, rounds=rounds, seconds=seconds, device=case.device)
    rows = []
    for blocks, why in reasons.items():
        own = None if why else statistics.median(times[str(blocks)])
        now = statistics.median(times[str(usual)])
        rows.append(
            {
                "kernel": trial.kernel, "scheme": trial.scheme.name, "task": case.task, "length": case.length,
                "width": case.width, "batch": case.batch, "blocks": list(blocks), "is_usual": blocks == usual,
                "why": why, "seconds": None if own is None else own / repeats,
                "ratio": None if own is None else own / now,
            }
        )  # fmt: skip
    return rows


def _within(trial: Trial, blocks: Tiling, run: Callable[[], object]) -> Callable[[], object]:
    def call() -> object:
        with override_blocks({trial.kernel: blocks}):
            return run()

    return call


def results_of(trial: Trial, blocks: Tiling, seed: int) -> list[Tensor]:
    """Results of a trial's call with these blocks."""
    with override_blocks({trial.kernel: blocks}):
        found = work(trial.scheme, trial.case, seed)()
    return [tensor for tensor in (found if isinstance(found, tuple) else (found,)) if tensor is not None]


def agree(found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether results differ by at most one rounding step of the input's dtype, in root mean squares over a tensor.

    The current blocks have been checked against the reference; another order of additions only changes roundings.
    """
    return all(
        bool((one.double() - other.double()).norm() <= torch.finfo(dtype).eps * other.double().norm())
        for one, other in zip(found, expected, strict=True)
    )
