"""Effects of the factors of a study in ``evidence.yaml`` on the held-out loss, with intervals; survival of runs.

Every seed is a block that contains every combination of levels once (randomized complete blocks). A contrast of
combinations is estimated by its mean over the seeds. Its variance is the sum of two parts: the variance over seeds,
from the residuals of all combinations together, and the variance over held-out text, from the contrast's values for
each block of text. Degrees of freedom are Satterthwaite's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs/records/evidence"

Levels = tuple[str, ...]
"""One level of each factor, in the order of the factors."""


def described(factor: str, level: str) -> str:
    """Description of a level."""
    if (factor, level) == ("start", "authors"):
        return "authors' start"
    if factor in ("attention", "arm"):
        return level
    return f"{level} {factor}" if level in ("with", "without") else f"{factor} {level}"


@dataclass(frozen=True)
class Effect:
    """A contrast of combinations, in nats per token; a negative one is a lower loss."""

    name: str
    estimate: float
    low: float
    high: float
    """Bounds of the 95 % interval over seeds and held-out text."""
    seeds: int


@dataclass(frozen=True)
class Results:
    """Held-out losses of a study's complete seeds."""

    factors: dict[str, list[str]]
    combinations: list[Levels]
    seeds: list[int]
    losses: np.ndarray[Any, np.dtype[np.float64]]
    """(combinations, seeds)."""
    blocks: np.ndarray[Any, np.dtype[np.float64]]
    """(combinations, seeds, blocks of text)."""
    diverged: int = 0
    """Number of runs without a loss, whose seeds are therefore not complete."""

    def contrast(self, name: str, weights: Mapping[Levels, float]) -> Effect:
        """Σ weight · loss over combinations, with its interval."""
        vector = np.array([weights.get(levels, 0.0) for levels in self.combinations])
        combinations, seeds = self.losses.shape
        estimate = float(vector @ self.losses.mean(1))
        residuals = self.losses - self.losses.mean(1, keepdims=True) - self.losses.mean(0, keepdims=True)
        residuals = residuals + self.losses.mean()
        freedom = (combinations - 1) * (seeds - 1)
        over_seeds = (residuals**2).sum() / freedom * (vector**2).sum() / seeds
        by_block = np.einsum("c,csb->b", vector, self.blocks) / seeds
        over_text = by_block.var(ddof=1) / len(by_block)
        total = over_seeds + over_text
        satterthwaite = total**2 / (over_seeds**2 / freedom + over_text**2 / (len(by_block) - 1))
        margin = float(stats.t.ppf(0.975, satterthwaite) * total**0.5)
        return Effect(name, estimate, estimate - margin, estimate + margin, seeds)

    def main_effects(self) -> list[Effect]:
        """Each level compared with the first of its factor, averaged over all other factors."""
        return [
            self.contrast(f"{factor}: {level} against {levels[0]}", self._difference(factor, level))
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
                found.append(self.contrast(f"{level} against {levels[0]}: {where}", weights))
        return found

    def _difference(self, factor: str, level: str) -> dict[Levels, float]:
        place, first = list(self.factors).index(factor), self.factors[factor][0]
        share = len(self.factors[factor]) / len(self.combinations)
        signs = {level: share, first: -share}
        return {c: signs.get(c[place], 0.0) for c in self.combinations}


def runs_of(study: str, folder: Path = RECORDS) -> list[dict[str, Any]]:
    """Records of the study's finished runs."""
    return [json.loads(path.read_text("utf-8")) for path in sorted((folder / study).glob("*.json"))]


def results(runs: Sequence[Mapping[str, Any]], factors: Mapping[str, Sequence[str]]) -> Results:
    """The complete seeds of a study: those with which every combination of levels was trained and none diverged.

    Raises:
        ValueError: fewer than two seeds are complete.
    """
    combinations = list(itertools.product(*factors.values()))
    ended = [run for run in runs if run["values"]["final"]["loss"] is not None]
    found = {(tuple(run["levels"][name] for name in factors), run["seed"]): run["values"] for run in ended}
    seeds = sorted({seed for _, seed in found})
    seeds = [seed for seed in seeds if all((levels, seed) in found for levels in combinations)]
    if len(seeds) < 2:
        raise ValueError(f"an effect needs at least two complete seeds, got {len(seeds)}")
    blocks = [
        [list(itertools.chain(*found[levels, seed]["block_losses"].values())) for seed in seeds]
        for levels in combinations
    ]
    losses = [[found[levels, seed]["final"]["loss"] for seed in seeds] for levels in combinations]
    names = {name: list(levels) for name, levels in factors.items()}
    return Results(names, combinations, seeds, np.array(losses), np.array(blocks), len(runs) - len(ended))


@dataclass(frozen=True)
class Survival:
    """Steps to a threshold in one arm's runs."""

    name: str
    steps: list[int]
    """Steps of the runs that passed it."""
    censored: list[int]
    """Training lengths of the other runs."""

    @property
    def data(self) -> stats.CensoredData:
        """The data for scipy's estimators."""
        return stats.CensoredData(uncensored=self.steps, right=self.censored)

    def median(self) -> float | None:
        """Step by which half of the runs had passed (Kaplan and Meier); None if fewer than half did."""
        curve = stats.ecdf(self.data).sf
        below = np.flatnonzero(curve.probabilities <= 0.5)
        return float(curve.quantiles[below[0]]) if len(below) else None


def survivals(runs: Sequence[Mapping[str, Any]], factor: str, levels: Sequence[str]) -> list[Survival]:
    """Survival data for every level of a factor."""
    found = []
    for level in levels:
        chosen = [run for run in runs if run["levels"][factor] == level]
        passed = [run["values"]["passes"] for run in chosen if run["values"]["passes"] is not None]
        never = [run["settings"]["training"]["steps"] for run in chosen if run["values"]["passes"] is None]
        found.append(Survival(level, passed, never))
    return found


def log_rank(one: Survival, other: Survival) -> float:
    """P-value of the log-rank test that both arms need the same number of steps."""
    return float(stats.logrank(one.data, other.data).pvalue)
