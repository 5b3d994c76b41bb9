"""Effects of the factors of a study in ``evidence.yaml`` on the held-out loss, with intervals; survival of runs.

Every seed contains every combination of levels once. A contrast of combinations is estimated by its mean over the
seeds, so arms are compared within seeds. Its variance is the sum of two parts: that of the contrast over seeds, and
that over held-out text, from the contrast's values for each group of neighbouring blocks. Degrees of freedom are
Satterthwaite's. Where the interval over seeds alone is wider, that one is given, because the second part can bring more
degrees of freedom than variance. Residuals of different combinations are not pooled: combinations that are nearly the
same model would count as independent. The held-out text is what it is, two books: intervals do not cover other books.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs/records/evidence"

GROUP = 20
"""Neighbouring blocks of text whose mean counts as one value, because neighbours are alike."""

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
    estimate: float
    """NaN without a seed."""
    low: float
    high: float
    """Bounds of the 95 % interval over seeds and held-out text; NaN with fewer than two seeds."""
    seeds: int
    """Number of seeds with a loss for each combination of the contrast."""
    spread: float = math.nan
    """Standard deviation of the contrast over seeds; NaN with fewer than two seeds."""
    detectable: float = math.nan
    """True contrast whose interval excludes zero four times in five if the spread is the true one; NaN likewise."""
    detectable_of_six: float = math.nan
    """The same if it has the smallest p of six, by Holm's correction; NaN likewise."""
    p: float = math.nan
    """Two-sided, of no contrast; NaN likewise."""


def detectable_size(variance: float, degrees: float, alpha: float, *, power: float = 0.8) -> float:
    """The size that Student's two-sided test finds with this power, if the variance of the mean is the true one."""
    critical = stats.t.ppf(1 - alpha / 2, degrees)

    def missed(size: float) -> float:
        return float(stats.nct.sf(critical, degrees, size)) - power

    return float(brentq(missed, critical / 2, 2 * critical)) * variance**0.5


@dataclass(frozen=True)
class Results:
    """Held-out losses of a study's finished runs."""

    factors: dict[str, list[str]]
    combinations: list[Levels]
    seeds: list[int]
    losses: np.ndarray[Any, np.dtype[np.float64]]
    """(combinations, seeds); NaN where a run diverged or is not finished."""
    groups: np.ndarray[Any, np.dtype[np.float64]]
    """(combinations, seeds, groups of blocks of text); NaN likewise."""
    diverged: set[tuple[Levels, int]]
    """Runs without a loss, by combination and seed."""

    def contrast(self, name: str, weights: Mapping[Levels, float]) -> Effect:
        """Σ weight · loss over combinations, with its interval, from the seeds with a loss for each of them."""
        used = [index for index, levels in enumerate(self.combinations) if weights.get(levels, 0.0)]
        vector = np.array([weights[self.combinations[index]] for index in used])
        complete = np.isfinite(self.losses[used]).all(0)
        by_seed = vector @ self.losses[used][:, complete]
        seeds = len(by_seed)
        estimate = float(by_seed.mean()) if seeds else math.nan
        if seeds < 2:
            return Effect(name, estimate, math.nan, math.nan, seeds)
        over_seeds = by_seed.var(ddof=1) / seeds
        by_group = np.einsum("c,csg->g", vector, self.groups[used][:, complete]) / seeds
        over_text = by_group.var(ddof=1) / len(by_group)
        total = over_seeds + over_text
        if not total:
            return Effect(name, estimate, estimate, estimate, seeds, 0.0, 0.0, 0.0, float(estimate == 0))
        satterthwaite = total**2 / (over_seeds**2 / (seeds - 1) + over_text**2 / (len(by_group) - 1))
        # the second variance can bring more degrees of freedom than it adds; seeds alone must not have a wider interval
        ways = [(total, satterthwaite), (over_seeds, seeds - 1)]
        margin, variance, degrees = max((stats.t.ppf(0.975, count) * size**0.5, size, count) for size, count in ways)
        detectable, of_six = (detectable_size(variance, degrees, alpha) for alpha in (0.05, 0.05 / 6))
        spread = float(by_seed.std(ddof=1))
        p = max(float(2 * stats.t.sf(abs(estimate) / size**0.5, count)) for size, count in ways if size)
        ends = estimate - float(margin), estimate + float(margin)
        return Effect(name, estimate, *ends, seeds, spread, detectable, of_six, p)

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
    return [json.loads(path.read_text("utf-8")) for path in sorted((folder / study).glob("*.json"))]


def results(runs: Sequence[Mapping[str, Any]], factors: Mapping[str, Sequence[str]]) -> Results:
    """The held-out losses of a study, from the records of its finished runs."""
    combinations = list(itertools.product(*factors.values()))
    found = {(tuple(run["levels"][name] for name in factors), run["seed"]): run["values"] for run in runs}
    ended = {key: values for key, values in found.items() if values["final"]["loss"] is not None}
    seeds = sorted({seed for _, seed in found})
    groups = {key: grouped(values["block_losses"]) for key, values in ended.items()}
    none = np.full(max((len(means) for means in groups.values()), default=0), np.nan)
    keys = [[(levels, seed) for seed in seeds] for levels in combinations]
    return Results(
        {name: list(levels) for name, levels in factors.items()},
        combinations,
        seeds,
        np.array([[ended[key]["final"]["loss"] if key in ended else np.nan for key in row] for row in keys]),
        np.array([[groups.get(key, none) for key in row] for row in keys]),
        found.keys() - ended.keys(),
    )


def grouped(documents: Mapping[str, Sequence[float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Means of neighbouring blocks of text, ``GROUP`` or about as many; at least two groups for each document."""
    means = [
        part.mean()
        for blocks in documents.values()
        for part in np.array_split(np.array(blocks), min(len(blocks), max(2, round(len(blocks) / GROUP))))
    ]
    return np.array(means)


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
