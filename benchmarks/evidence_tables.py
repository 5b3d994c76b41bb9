"""Tables of the studies in ``evidence.yaml``, from records of runs; ``page_tables.py`` writes them into pages.

The table of an unfinished study shows the finished runs and their number.
"""

from __future__ import annotations

import itertools
import statistics
from functools import cache

from evidence import runs_of as wanted_runs
from evidence import studies
from evidence_effects import Effect, Results, described, log_rank, results, runs_of, survivals

Rows = list[list[str]]


@cache
def found(study: str) -> Results:
    """Held-out losses of the study's complete seeds."""
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
            values = known.losses[known.combinations.index((*levels, level))]
            cells.append(f"{statistics.fmean(values):.3f} [{', '.join(f'{value:.3f}' for value in values)}]")
        rows.append([", ".join(described(name, level) for name, level in zip(rest, levels, strict=True)), *cells])
    return rows


def main_effects(study: str) -> Rows:
    """Effects of every factor and of every pair of factors."""
    known = found(study)
    return _effects([*known.main_effects(), *known.interactions()])


def simple_effects(study: str, factor: str) -> Rows:
    """Effects of one factor at every combination of the others."""
    return _effects(found(study).simple_effects(factor))


def progress() -> Rows:
    """Number of runs with a record, by study."""
    rows = [["study", "question", "finished runs"]]
    for name, study in studies().items():
        wanted = list(wanted_runs(name, study))
        rows.append([name, study["question"].strip(), f"{len(runs_of(name))} of {len(wanted)}"])
    return rows


def survival(study: str, factor: str) -> Rows:
    """Runs that passed 50 %, the median step, and the log-rank test against the first arm."""
    levels = list(studies()[study]["factors"][factor])
    arms = survivals(runs_of(study), factor, levels)
    rows = [[factor, "passed 50 %", "median step", "log-rank p against the first"]]
    for arm in arms:
        count, median = len(arm.steps) + len(arm.censored), arm.median()
        p = "–" if arm is arms[0] else f"{log_rank(arms[0], arm):.2g}"
        rows.append([arm.name, f"{len(arm.steps)} of {count}", "never" if median is None else f"{median:,.0f}", p])
    return rows


def _effects(effects: list[Effect]) -> Rows:
    rows = [["effect on the held-out loss, nats per token", "estimate", "95 % interval"]]
    return rows + [[e.name, f"{e.estimate:+.3f}", f"{e.low:+.3f} to {e.high:+.3f}"] for e in effects]


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
