"""Tables of the studies in ``evidence.yaml``, from records of runs; ``page_tables.py`` writes them into pages.

The table of an unfinished study shows the finished runs and their number.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from evidence import Choice, best_of, count, studies
from evidence_effects import Effect, Levels, Results, compared, described, log_rank, results, runs_of, survivals

from antiphase.studies.tune.measure import BEFORE
from antiphase.uncertainty.seeds import holm

DEPARTURES = {
    "V1": "softmax", "gated softmax": "softmax", "sink logits": "softmax", "DEX from the first step": "softmax",
    "grouped": "V1", "V2": "softmax of V2's parameters", "V2 across groups": "V2", "V2 without λ": "V2",
    "V2 without sigmoid": "V2",
}  # fmt: skip
"""The arm of ``rivals`` that each arm departs from."""
SPIKES = "gradient spikes"
Rows = list[list[str]]
BOOKS = ("Moby-Dick", "Pride and Prejudice")
"""The held-out books, in the order of their files."""


@cache
def found(study: str) -> Results:
    """Held-out losses of the study's finished runs."""
    return results(runs_of(study), {name: list(levels) for name, levels in studies()[study]["factors"].items()})


def losses(study: str) -> Rows:
    """Held-out loss of every combination, mean and seeds: the first factors form the rows, the last one the columns."""
    known = found(study)
    *rest, last = known.factors
    head = [", ".join(rest), *(described(last, level) for level in known.factors[last])]
    rows = [head]
    for levels in itertools.product(*(known.factors[name] for name in rest)):
        cells = []
        for level in known.factors[last]:
            cells.append(_mean_and_seeds(known, (*levels, level)))
        rows.append([", ".join(described(name, level) for name, level in zip(rest, levels, strict=True)), *cells])
    return rows


def tuned(*names: str) -> Rows:
    """Held-out loss of every arm and start by learning rate, with one seed; bold where it is the arm's lowest."""
    runs = [run for name in names for run in runs_of(name)]
    rates = sorted({run["levels"]["rate"] for run in runs}, key=float)
    rows = [["arm, start", *(f"rate {rate}" for rate in rates), SPIKES]]
    losses = {
        (run["levels"]["arm"], run["levels"]["start"], run["levels"]["rate"]): run["values"]["final"]["loss"]
        for run in runs
    }
    for arm, start in dict.fromkeys(key[:2] for key in sorted(losses, key=_order(names))):
        best = min((loss for key, loss in losses.items() if key[0] == arm and loss is not None), default=None)
        cells = [_cell(losses.get((arm, start, rate), "–"), best) for rate in rates]
        own = [run for run in runs if (run["levels"]["arm"], run["levels"]["start"]) == (arm, start)]
        rows.append([f"{arm}, {described('start', start)}", *cells, _spikes(own)])
    return rows


def _spikes(runs: Sequence[Mapping[str, Any]]) -> str:
    """Gradient spikes of some runs, and the number of steps that were looked at: logged, and with enough before."""
    looked = 0
    for run in runs:
        training, diverged = run["settings"]["training"], run["values"].get("diverged")
        last = training["steps"] if diverged is None else diverged["step"]
        looked += max(0, last // training["log_every"] - BEFORE)
    return f"{sum(run['values']['spikes'] for run in runs):,} of {looked:,}" if runs else "–"


def _order(names: Sequence[str]) -> Callable[[tuple[str, ...]], tuple[int, ...]]:
    """Arms and starts in the order of the first study's levels."""
    factors = studies()[names[0]]["factors"]
    arms, starts = list(factors["arm"]), list(factors["start"])
    return lambda key: (arms.index(key[0]), starts.index(key[1]))


def _cell(loss: float | str | None, best: float | None) -> str:
    """
    Args:
        best: the arm's lowest loss; None if all its runs diverged.
    """
    if isinstance(loss, str):
        return loss
    if loss is None:
        return "diverged"
    return f"**{loss:.3f}**" if loss == best else f"{loss:.3f}"


def arms(common: str, best: str) -> Rows:
    """Held-out loss of every arm at the common setting and at its own: mean and seeds, spikes, and the settings."""
    shared = _words(best_of(studies()[common]["common_from"]))
    head = [
        "arm",
        "parameters",
        f"common setting: {shared}",
        SPIKES,
        "own setting",
        SPIKES,
        "own start and rate",
    ]
    rows = [head]
    sources = studies()[best]["chosen_from"]
    for arm in studies()[common]["factors"]["arm"]:
        own = {study: [run for run in runs_of(study) if run["levels"]["arm"] == arm] for study in (common, best)}
        count = next((f"{run['values']['parameters']:,}" for runs in own.values() for run in runs), "–")
        cells = [cell for study in own for cell in (_mean_and_seeds(found(study), (arm,)), _spikes(own[study]))]
        rows.append([arm, count, *cells, _words(best_of(sources, [arm]))])
    return rows


def _mean_and_seeds(known: Results, levels: Levels) -> str:
    """Mean over the seeds with a loss, and every finished seed in brackets."""
    row = known.losses[known.combinations.index(levels)]
    cells = [
        "diverged" if (levels, seed) in known.diverged else f"{loss:.3f}"
        for seed, loss in zip(known.seeds, row, strict=True)
        if (levels, seed) in known.diverged or not math.isnan(loss)
    ]
    ended = [loss for loss in row if not math.isnan(loss)]
    return f"{statistics.fmean(ended):.3f} [{', '.join(cells)}]" if ended else ", ".join(cells) or "–"


def _words(choice: Choice) -> str:
    return f"{described('start', choice.levels['start'])}, {choice.levels['rate']}"


def against(study: str, pairs: Mapping[str, str]) -> Rows:
    """Held-out loss of every arm, and its difference from the loss of the arm that it departs from.

    Args:
        pairs: for every arm that departs from another, the other.
    """
    known = found(study)
    parameters = {run["levels"]["arm"]: run["values"]["parameters"] for run in runs_of(study)}
    effects = {arm: known.contrast(compared(arm, other), {(arm,): 1.0, (other,): -1.0}) for arm, other in pairs.items()}
    corrected = dict(zip(effects, _holm(list(effects.values())), strict=True))
    rows = [["arm", "parameters", "held-out loss", "departs from", "difference", "95 % interval", "p, Holm"]]
    for (arm,) in known.combinations:
        count = f"{parameters[arm]:,}" if arm in parameters else "–"
        numbers = [*_numbers(effects[arm]), corrected[arm]] if arm in effects else ["–"] * 3
        other = described("arm", pairs[arm]) if arm in pairs else "–"
        rows.append([described("arm", arm), count, _mean_and_seeds(known, (arm,)), other, *numbers])
    return rows


def power(factors: Mapping[str, str]) -> Rows:
    """How far a difference varies over seeds, and the difference that a study can see.

    Args:
        factors: the factor whose levels are compared with the first, by study.
    """
    rows = [["study", "difference", "seeds", "standard deviation over seeds", "seen with a power of 80 %",
             "as the clearest of six, by Holm"]]  # fmt: skip
    for study, factor in factors.items():
        for effect in found(study).simple_effects(factor):
            found_values = effect.spread, effect.detectable, effect.detectable_of_six
            numbers = ["–" if math.isnan(value) else f"{value:.2g}" for value in found_values]
            rows.append([study, effect.name, str(effect.seeds), *numbers])
    return rows


def change_of_effect(study: str, factor: str, other: str) -> Rows:
    """How much a factor's difference at each level of another exceeds that at its first level."""
    known = found(study)
    one, two = known.factors[factor]
    first, *levels = known.factors[other]
    place = list(known.factors).index(factor)

    def key(level: str, at: str) -> tuple[str, ...]:
        return (level, at) if place == 0 else (at, level)

    return _effects(
        [
            known.contrast(
                f"difference at {described(other, level)} against that at {described(other, first)}",
                {key(two, level): 1.0, key(one, level): -1.0, key(two, first): -1.0, key(one, first): 1.0},
            )
            for level in levels
        ],
    )


def main_effects(study: str) -> Rows:
    """Effects of every factor and of every pair of factors."""
    known = found(study)
    return _effects([*known.main_effects(), *known.interactions()])


def against_softmax(study: str) -> Rows:
    """Every arm compared with softmax, and softmax that has a head norm too with V1 and with the middle of both."""
    known = found(study)
    norm = ("softmax with norm",)
    normed = known.contrast("V1 against softmax with norm", {("V1",): 1.0, norm: -1.0})
    middle: dict[Levels, float] = {norm: 1.0, ("softmax",): -0.5, ("V1",): -0.5}
    half = known.contrast("softmax with norm against the mean of softmax and V1", middle)
    return _corrected([*known.simple_effects("arm"), normed, half])


def simple_effects(study: str, factor: str) -> Rows:
    """Effects of one factor at every combination of the others."""
    return _effects(found(study).simple_effects(factor))


def by_book(study: str, factor: str) -> Rows:
    """Estimates of ``simple_effects`` on each held-out book alone."""
    factors = {name: list(levels) for name, levels in studies()[study]["factors"].items()}
    rows = [[f"effect on the loss on one book, nats per token: {factor}", *BOOKS]]
    columns = []
    for document in map(str, range(len(BOOKS))):
        runs = []
        for run in runs_of(study):
            known = run["values"]["block_losses"]
            if known is None:  # it diverged
                runs.append(run)
                continue
            blocks = known[document]
            alone = {"final": {"loss": statistics.fmean(blocks)}, "block_losses": {document: blocks}}
            runs.append({**run, "values": alone})
        columns.append(results(runs, factors).simple_effects(factor))
    return rows + [
        [effects[0].name, *(f"{e.estimate:+.3f}" for e in effects)] for effects in zip(*columns, strict=True)
    ]


def progress() -> Rows:
    """Number of runs with a record by study, and of seeds whose runs were not all made on one kind of processor."""
    rows = [["study", "question", "finished runs", "seeds on two kinds of processor"]]
    for name, study in studies().items():
        runs = runs_of(name)
        made_on: dict[int, set[str]] = {}
        for run in runs:
            made_on.setdefault(run["seed"], set()).add(run["environment"]["processor"])
        mixed = sum(len(kinds) > 1 for kinds in made_on.values())
        rows.append([name, study["question"].strip(), f"{len(runs)} of {count(study)}", str(mixed)])
    return rows


def survival(study: str, factor: str) -> Rows:
    """Runs that passed 50 %, the step by which half had, and the log-rank test against the first arm."""
    levels = list(studies()[study]["factors"][factor])
    arms = survivals(runs_of(study), factor, levels)
    rows = [[factor, "passed 50 %", "half had passed by step", "log-rank p against the first"]]
    for arm in arms:
        count, median = len(arm.steps) + len(arm.censored), arm.median()
        p = "–" if arm is arms[0] else f"{log_rank(arms[0], arm):.2g}"
        rows.append([arm.name, f"{len(arm.steps)} of {count}", "never" if median is None else f"{median:,.0f}", p])
    return rows


def _effects(effects: list[Effect]) -> Rows:
    """With a column of seeds where they are not all the same."""
    rows = [["effect on the held-out loss, nats per token", "estimate", "95 % interval"]]
    rows += [[effect.name, *_numbers(effect)] for effect in effects]
    if len({effect.seeds for effect in effects}) > 1:
        rows = [[*row, column] for row, column in zip(rows, ["seeds", *(str(e.seeds) for e in effects)], strict=True)]
    return rows


def _corrected(effects: list[Effect]) -> Rows:
    """``_effects`` with the p of each, corrected for their number by Holm's method."""
    return [[*row, p] for row, p in zip(_effects(effects), ["p, Holm", *_holm(effects)], strict=True)]


def _holm(effects: list[Effect]) -> list[str]:
    known = [place for place, effect in enumerate(effects) if not math.isnan(effect.p)]
    cells = ["–"] * len(effects)
    for place, p in zip(known, holm([effects[place].p for place in known]), strict=True):
        cells[place] = f"{p:.2g}"
    return cells


def _numbers(effect: Effect) -> list[str]:
    """The estimate and the interval."""
    return [
        "–" if math.isnan(effect.estimate) else f"{effect.estimate:+.3f}",
        "–" if math.isnan(effect.low) else f"{effect.low:+.3f} to {effect.high:+.3f}",
    ]


def passes(study: str) -> Rows:
    """The step at which each seed passed 50 %: the first factor forms the rows, the last one the columns."""
    known = runs_of(study)
    row_factor, column_factor = studies()[study]["factors"]
    columns = list(studies()[study]["factors"][column_factor])
    rows = [[row_factor, *(f"{column_factor} {level}" for level in columns)]]
    for name in studies()[study]["factors"][row_factor]:
        cells = []
        for level in columns:
            chosen = sorted(
                (run["seed"], run["values"]["passes"])
                for run in known
                if run["levels"] == {row_factor: name, column_factor: level}
            )
            cells.append(", ".join("never" if step is None else f"{step:,}" for _, step in chosen) or "–")
        rows.append([name, *cells])
    return rows


TABLES: dict[str, Callable[[], Rows]] = {
    "demo-rates": lambda: passes("demo-rates"),
    "evidence": progress,
    "factorial": lambda: losses("factorial"),
    "factorial-attention": lambda: simple_effects("factorial", "attention"),
    "factorial-start": lambda: simple_effects("factorial", "start"),
    "factorial-start-by-book": lambda: by_book("factorial", "start"),
    "factorial-effects": lambda: main_effects("factorial"),
    "outputs": lambda: losses("outputs"),
    "outputs-effects": lambda: [
        *simple_effects("outputs", "outputs"),
        *simple_effects("outputs", "attention")[1:],
    ],
    "heads-of-width-16": lambda: losses("heads-of-width-16"),
    "heads-of-width-16-effects": lambda: simple_effects("heads-of-width-16", "attention"),
    "heads-of-one-model": lambda: losses("heads-of-one-model"),
    "heads-of-one-model-effects": lambda: [
        *simple_effects("heads-of-one-model", "attention"),
        *(
            [f"differential heads, {name}", *numbers]
            for name, *numbers in simple_effects("heads-of-one-model", "differential heads")[2::2]
        ),  # 8 against 2
    ],
    "tied": lambda: losses("tied"),
    "tied-effects": lambda: [
        *simple_effects("tied", "attention"),
        *simple_effects("tied", "head")[1:],
        main_effects("tied")[-1],  # the interaction
    ],
    "precision": lambda: losses("precision"),
    "precision-effects": lambda: [
        *simple_effects("precision", "precision"),
        *simple_effects("precision", "attention")[1:],
    ],
    "grid": lambda: tuned("grid", "grid-above", "grid-above-start-0.02"),
    "steps": lambda: losses("steps"),
    "steps-effects": lambda: [
        *simple_effects("steps", "attention"),
        *change_of_effect("steps", "attention", "steps")[1:],
    ],
    "steps-own": lambda: losses("steps-own"),
    "steps-own-effects": lambda: [
        *simple_effects("steps-own", "arm"),
        *change_of_effect("steps-own", "arm", "steps")[1:],
    ],
    "five-arms": lambda: arms("five-arms", "best"),
    "five-arms-effects": lambda: against_softmax("five-arms"),
    "five-arms-by-book": lambda: by_book("five-arms", "arm"),
    "best-effects": lambda: against_softmax("best"),
    "best-by-book": lambda: by_book("best", "arm"),
    "rivals": lambda: against("rivals", DEPARTURES),
    "power": lambda: power(
        {
            "factorial": "attention",
            "heads-of-width-16": "attention",
            "heads-of-one-model": "attention",
            "tied": "attention",
            "steps": "attention",
            "steps-own": "arm",
            "five-arms": "arm",
            "best": "arm",
        },
    ),
    "survival": lambda: survival("survival", "attention"),
    "norm-weight": lambda: main_effects("norm-weight"),
    "norm-weight-start-0.02": lambda: main_effects("norm-weight-start-0.02"),
    "lambda": lambda: main_effects("lambda"),
}
"""By the names that stand in pages."""
