"""Tables of the finished studies of loss and start: effects on the held-out loss.

Every seed, a block, contains every combination of levels once. Contrasts of combinations and their intervals are those
of ``antiphase.lab.statistics.blocks``. The held-out text is what it is, two books: intervals do not cover other books.
The runs were made at the revisions in their lines, by a script of that time; ``experiments/programme_runs.py`` trains
the studies of today.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from antiphase.lab.statistics.blocks import Blocks, Contrast
from antiphase.lab.statistics.intervals import mean_interval
from experiments.json_lines import lines
from tools.tables.markdown import Rows

RECORDS = Path(__file__).resolve().parents[2] / "records/evidence"
TWO = ["softmax", "V1"]
FIVE = ["softmax", "softmax with norm", "V1", "V1 without norm", "V2"]
FACTORS: dict[str, dict[str, list[str]]] = {
    "factorial": {"attention": TWO, "head norm": ["with", "without"], "start": ["0.02", "authors"]},
    "outputs": {"attention": TWO, "outputs": ["by inputs", "zero"]},
    "norm-weight": {"head norm's first weight": ["1", "0.05"]},
    "norm-weight-start-0.02": {"head norm's first weight": ["1", "0.05"]},
    "lambda": {"λ": ["learned", "a tenth of the rate", "fixed"]},
    "heads-of-width-16": {"attention": TWO, "differential heads": ["2", "4", "8"]},
    "heads-of-one-model": {"attention": TWO, "differential heads": ["2", "4", "8"]},
    "tied": {"attention": TWO, "head": ["tied", "untied"]},
    "precision": {"attention": TWO, "precision": ["fp32", "bf16"]},
    "steps": {"attention": TWO, "steps": ["600", "1,200", "2,400"]},
    "steps-own": {"arm": TWO, "steps": ["600", "1,200", "2,400"]},
    "five-arms": {"arm": FIVE},
    "best": {"arm": FIVE},
    "rivals": {"arm": [*TWO, "gated softmax", "sink logits", "DEX from the first step", "grouped",
                       "softmax of V2's parameters", "V2", "V2 across groups", "V2 without λ", "V2 without sigmoid"]},
}  # fmt: skip
"""Levels of the factors of each study; differences are from the first one."""
DEPARTURES = {
    "V1": "softmax", "gated softmax": "softmax", "sink logits": "softmax", "DEX from the first step": "softmax",
    "grouped": "V1", "V2": "softmax of V2's parameters", "V2 across groups": "V2", "V2 without λ": "V2",
    "V2 without sigmoid": "V2",
}  # fmt: skip
"""The arm of ``rivals`` that each arm departs from."""
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
                weights = {(*rest[:place], level, *rest[place:]): 1.0, (*rest[:place], levels[0], *rest[place:]): -1.0}
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


@cache
def runs_of(study: str) -> list[dict[str, Any]]:
    """The study's finished runs."""
    return sorted(lines(RECORDS / f"{study}.jsonl"), key=lambda line: line["run"])


def found(study: str) -> Results:
    """Held-out losses of the study's finished runs."""
    return results(runs_of(study), FACTORS[study])


def change_of_effect(known: Results, factor: str, other: str) -> list[Effect]:
    """How much a factor's difference at each level of another exceeds that at its first level."""
    one, two = known.factors[factor]
    first, *levels = known.factors[other]
    place = list(known.factors).index(factor)

    def key(level: str, at: str) -> tuple[str, ...]:
        return (level, at) if place == 0 else (at, level)

    return [
        known.contrast(
            f"difference at {described(other, level)} against that at {described(other, first)}",
            {key(two, level): 1.0, key(one, level): -1.0, key(two, first): -1.0, key(one, first): 1.0},
        )
        for level in levels
    ]


def against_softmax(known: Results) -> list[Effect]:
    """Every arm compared with softmax, and V1 with a softmax model that has its head norm."""
    normed: dict[Levels, float] = {("V1",): 1.0, ("softmax with norm",): -1.0}
    return [*known.simple_effects("arm"), known.contrast("V1 against softmax with norm", normed)]


def departures(known: Results) -> list[Effect]:
    """Every arm of ``rivals`` compared with the one that it departs from."""
    return [known.contrast(compared(arm, other), {(arm,): 1.0, (other,): -1.0}) for arm, other in DEPARTURES.items()]


EFFECTS: dict[str, Callable[[Results], list[Effect]]] = {
    "factorial": lambda known: [
        *known.simple_effects("attention"), *known.simple_effects("head norm"), *known.simple_effects("start"),
        *known.interactions(),
    ],
    "outputs": lambda known: [*known.simple_effects("attention"), *known.simple_effects("outputs")],
    "norm-weight": Results.main_effects,
    "norm-weight-start-0.02": Results.main_effects,
    "lambda": Results.main_effects,
    "heads-of-width-16": lambda known: known.simple_effects("attention"),
    "heads-of-one-model": lambda known: known.simple_effects("attention"),
    "tied": lambda known: [*known.simple_effects("attention"), *known.simple_effects("head")],
    "precision": lambda known: known.simple_effects("precision"),
    "steps": lambda known: [*known.simple_effects("attention"), *change_of_effect(known, "attention", "steps")],
    "steps-own": lambda known: [*known.simple_effects("arm"), *change_of_effect(known, "arm", "steps")],
    "five-arms": against_softmax,
    "best": against_softmax,
    "rivals": departures,
}  # fmt: skip
"""The effects of each study that stand on the page."""


def effects() -> Rows:
    """All of them; the study's name stands in its first row."""
    rows = [["study", "effect on the held-out loss, nats per token", "estimate", "95 %", "seen with 80 % power"]]
    for study, chosen in EFFECTS.items():
        for place, effect in enumerate(chosen(found(study))):
            rows.append(["" if place else f"{study}, {len(runs_of(study))} runs", effect.name, *_numbers(effect)])
    return rows


def _numbers(effect: Effect) -> list[str]:
    """The estimate, the interval and the MDE."""
    known = effect.found
    if known is None:
        return ["–"] * 3
    return [f"{known.estimate:+.3f}", "{:+.3f} to {:+.3f}".format(*known.interval()), f"{known.detectable:.3f}"]


def equal_loss(study: str) -> Rows:
    """Share of softmax's tokens with which V1 has an equal loss, by laws L = E + A / tokens^a of each seed's own runs.

    Three runs determine a law. Softmax's is read at V1's loss, which after the longest training is below its last one,
    and V1's at softmax's loss. Intervals are Student's of the logarithms over seeds.
    """
    known = found(study)
    lengths = known.factors["steps"]
    tokens = [_tokens(study, length) for length in lengths]
    rows = [["trained on", "softmax's law at V1's loss", "V1's law at softmax's loss"]]
    needed: list[list[list[float]]] = [[], []]
    for seed in range(len(known.seeds)):
        softmax, differential = (
            [float(known.losses[known.combinations.index((arm, length)), seed]) for length in lengths]
            for arm in ("softmax", "V1")
        )
        laws = law_through(tokens, softmax), law_through(tokens, differential)
        needed[0].append([size / laws[0](loss) for size, loss in zip(tokens, differential, strict=True)])
        needed[1].append([laws[1](loss) / size for size, loss in zip(tokens, softmax, strict=True)])
    for place, size in enumerate(tokens):
        cells = []
        for shares in needed:
            logs = [math.log(by_seed[place]) for by_seed in shares]
            middle, *ends = (math.exp(value) for value in (statistics.fmean(logs), *(mean_interval(logs) or ())))
            cells.append(f"{100 * middle:.0f} % [{' to '.join(f'{100 * end:.0f}' for end in ends)}]")
        rows.append([f"{size / 1e6:.1f}M tokens", *cells])
    return rows


def law_through(tokens: Sequence[float], losses: Sequence[float]) -> Callable[[float], float]:
    """Tokens at a loss, by the law L = E + A / tokens^a through three points, each with twice the tokens before it."""
    exponent = math.log2((losses[0] - losses[1]) / (losses[1] - losses[2]))
    height = (losses[0] - losses[1]) / (tokens[0] ** -exponent - tokens[1] ** -exponent)
    floor = losses[0] - height * tokens[0] ** -exponent
    return lambda loss: (height / (loss - floor)) ** (1 / exponent)


def _tokens(study: str, steps: str) -> int:
    return next(run["values"]["tokens"] for run in runs_of(study) if run["levels"]["steps"] == steps)


TABLES: dict[str, Callable[[], Rows]] = {"effects": effects, "equal-loss": lambda: equal_loss("steps")}
"""By the names that stand in pages."""
