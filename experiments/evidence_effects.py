"""Effects of the factors of a study in ``evidence.yaml`` on the held-out loss, with intervals; steps until runs learn.

Every seed, a block, contains every combination of levels once. Contrasts of combinations and their intervals are those
of ``antiphase.lab.statistics.blocks``. The held-out text is what it is, two books: intervals do not cover other books.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from antiphase.lab.statistics.blocks import Blocks, Contrast
from experiments.json_lines import lines

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records/evidence"

NAMES = {
    "authors": "authors' start", "by inputs": "random",
    "softmax of V2's parameters": "softmax with as many parameters as V2",
}  # fmt: skip
"""Names of levels in tables, where they differ from those in the records."""

Levels = tuple[str, ...]
"""One level of each factor, in the order of the factors."""


def described(factor: str, level: str) -> str:
    """Description of a level."""
    name = NAMES.get(level, level)
    if factor in ("attention", "arm") or level == "authors":
        return name
    return f"{name} {factor}" if level in ("with", "without") else f"{factor} {name}"


def compared(level: str, first: str) -> str:
    """Description of the difference between two levels of a factor."""
    return f"{NAMES.get(level, level)} against {NAMES.get(first, first)}"


@dataclass(frozen=True)
class Effect:
    """A contrast of combinations, in nats per token; a negative one is a lower loss."""

    name: str
    found: Contrast | None
    """None with fewer than two seeds, or where a run of one of the combinations diverged."""


@dataclass(frozen=True)
class Results:
    """Held-out losses of a study's finished runs."""

    factors: dict[str, list[str]]
    combinations: list[Levels]
    seeds: list[int]
    losses: np.ndarray[Any, np.dtype[np.float64]]
    """(combinations, seeds); NaN where a run diverged or is not finished."""
    diverged: set[tuple[Levels, int]]
    """Runs without a loss, by combination and seed."""

    @cached_property
    def blocks(self) -> Blocks[Levels] | None:
        """The seeds whose runs are all finished."""
        whole = [
            place for place, seed in enumerate(self.seeds)
            if all((levels, seed) in self.diverged or not math.isnan(row[place])
                   for levels, row in zip(self.combinations, self.losses, strict=True))
        ]  # fmt: skip
        return Blocks.of({
            levels: [None if math.isnan(loss) else float(loss) for loss in row[whole]]
            for levels, row in zip(self.combinations, self.losses, strict=True)
        })  # fmt: skip

    def contrast(self, name: str, weights: Mapping[Levels, float]) -> Effect:
        """Σ weight · loss over combinations."""
        return Effect(name, None if self.blocks is None else self.blocks.contrast(weights))

    def main_effects(self) -> list[Effect]:
        """Each level compared with the first of its factor, averaged over all other factors."""
        return [
            self.contrast(f"{factor}: {compared(level, levels[0])}", self._difference(factor, level))
            for factor, levels in self.factors.items()
            for level in levels[1:]
        ]

    def interactions(self) -> list[Effect]:
        """How much larger one factor's difference is at another's second level than at its first, for two levels."""
        found = []
        for one, other in itertools.combinations(self.factors, 2):
            if len(self.factors[one]) == len(self.factors[other]) == 2:
                first = self._difference(one, self.factors[one][1])
                second = self._difference(other, self.factors[other][1])
                weights = {c: first[c] * second[c] * len(self.combinations) for c in self.combinations}
                found.append(self.contrast(f"{one} × {other}", weights))
        return found

    def simple_effects(self, factor: str) -> list[Effect]:
        """The factor's differences at every combination of the other factors' levels."""
        place = list(self.factors).index(factor)
        levels = self.factors[factor]
        found = []
        for rest in itertools.product(*(values for name, values in self.factors.items() if name != factor)):
            for level in levels[1:]:
                weights = {
                    (*rest[:place], level, *rest[place:]): 1.0,
                    (*rest[:place], levels[0], *rest[place:]): -1.0,
                }
                others = [name for name in self.factors if name != factor]
                where = ", ".join(described(name, value) for name, value in zip(others, rest, strict=True))
                name = compared(level, levels[0])
                found.append(self.contrast(f"{name}: {where}" if where else name, weights))
        return found

    def _difference(self, factor: str, level: str) -> dict[Levels, float]:
        place, first = list(self.factors).index(factor), self.factors[factor][0]
        share = len(self.factors[factor]) / len(self.combinations)
        signs = {level: share, first: -share}
        return {c: signs.get(c[place], 0.0) for c in self.combinations}


def runs_of(study: str, folder: Path = RECORDS) -> list[dict[str, Any]]:
    """Records of the study's finished runs."""
    return sorted(lines(folder / f"{study}.jsonl"), key=lambda line: line["run"])


def results(runs: Sequence[Mapping[str, Any]], factors: Mapping[str, Sequence[str]]) -> Results:
    """The held-out losses of a study, from the records of its finished runs."""
    combinations = list(itertools.product(*factors.values()))
    found = {(tuple(run["levels"][name] for name in factors), run["seed"]): run["values"] for run in runs}
    ended = {key: values for key, values in found.items() if values["final"]["loss"] is not None}
    seeds = sorted({seed for _, seed in found})
    losses = [[ended[key]["final"]["loss"] if (key := (levels, seed)) in ended else np.nan for seed in seeds]
              for levels in combinations]  # fmt: skip
    return Results(
        {name: list(levels) for name, levels in factors.items()}, combinations, seeds, np.array(losses),
        found.keys() - ended.keys(),
    )  # fmt: skip


def steps_by_level(
    runs: Sequence[Mapping[str, Any]], factor: str, levels: Sequence[str]
) -> tuple[dict[str, list[int | None]], int]:
    """The step at which each run passed 50 %, by level of a factor, and the step at which all ended."""
    steps = {level: [run["values"]["passes"] for run in runs if run["levels"][factor] == level] for level in levels}
    return steps, max((run["settings"]["training"]["steps"] for run in runs), default=0)
