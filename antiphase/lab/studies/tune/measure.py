"""The learning rate of each arm from one small grid over all arms, so that no arm is favoured by its tuning."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.pages.tables import present
from antiphase.lab.settings.presets import Preset, RunSettings
from antiphase.lab.studies.grid import Grid, Variant
from antiphase.lab.studies.jobs import Job, Report
from antiphase.lab.studies.plan import Plan, described
from antiphase.lab.studies.tune import Rate, Tune, TunedRun, TuneSettings
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.run_folder import run_metrics

SPIKE, BEFORE = 5.0, 10
"""A spike is a logged gradient norm above this many times the median of so many logged before it."""


def plan(settings: TuneSettings, output: Path) -> Plan:
    """``tune`` with these settings."""
    for override in settings.settings:
        if override.partition("=")[0].endswith("training.learning_rate"):
            raise InputError(f"--set {override}: every arm is trained at the rates of --learning-rates")
    preset = settings.chosen_preset()
    work = partial(tune, preset, learning_rates=settings.learning_rates, executor=executor_of(settings))
    announced = [described(preset)]
    if preset.run.data.validation:
        announced.append(
            "The rates are chosen on the text of --validation: a comparison that reports its loss on the same text "
            "reports what it was tuned on. Without --validation, the end of the training text is held out."
        )
    return Plan.of_runs(work, Grid(preset, output, _variants(settings.learning_rates)).jobs, announced)


def tune(
    preset: Preset,
    output: Path,
    *,
    learning_rates: Sequence[float],
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
    executor: Executor = LOCAL,
) -> Record:
    """Train every arm at every rate with every seed; the record of kind "tune" says which rate each arm did best with.

    Best is, on text, the lowest median over seeds of the held-out loss, and on the synthetic task the highest median of
    the final first-query accuracy; equal medians go to the other of the two. A rate with which more runs diverged is
    never better.

    Raises:
        InputError, Interrupted: as for ``compare``.
    """
    compare = preset.compare
    asked = {"learning_rates": list(learning_rates)}
    grid = Grid(preset, output, _variants(learning_rates), asked, executor)
    started = time.perf_counter()
    with grid.held(resume=resume, say=say):
        grid.train(report, say)
        runs = [_run_row(grid, job) for job in grid.jobs]
        rates = [_rate_row(arm, rate, runs) for arm in compare.arms for rate in learning_rates]
        on_text = preset.run.data.source == "text"
        found = Tune(
            runs=runs, rates=rates, chosen={arm: best_rate(arm, rates, on_text=on_text) for arm in compare.arms}
        )
        return grid.save("tune", found, started=started)


def _variants(learning_rates: Sequence[float]) -> list[Variant]:
    """Each rate for every arm, whatever its own is.

    Raises:
        InputError: rates that are equal as names of folders, or not above 0.
    """
    names = {f"{rate:g}" for rate in learning_rates}
    if any(not 0 < rate < math.inf for rate in learning_rates) or len(names) < max(1, len(learning_rates)):
        raise InputError(f"--learning-rates must be different numbers above 0, got {list(learning_rates)}")

    def at_rate(run: RunSettings, rate: float) -> RunSettings:
        return replace(run, training=replace(run.training, learning_rate=rate))

    given = {f"rate{rate:g}": partial(at_rate, rate=rate) for rate in learning_rates}
    return [Variant(name, change, change) for name, change in given.items()]


def _run_row(grid: Grid, job: Job) -> TunedRun:
    run = grid.result(job)
    return TunedRun(
        arm=job.arm,
        seed=job.seed,
        learning_rate=job.settings.training.learning_rate,
        accuracy=run.final.accuracy,
        loss=run.final.loss,
        best_accuracy=None if run.best is None else run.best.accuracy,
        passes=run.first_passing(grid.preset.compare.threshold),
        spikes=gradient_spikes([line["gradient_norm"] for line in run_metrics(grid.output / job.name)]),
        diverged=run.diverged,
        seconds=run.seconds,
    )


def _rate_row(arm: str, rate: float, runs: Sequence[TunedRun]) -> Rate:
    chosen = [run for run in runs if (run.arm, run.learning_rate) == (arm, rate)]
    accuracies, losses = present(run.accuracy for run in chosen), present(run.loss for run in chosen)
    return Rate(
        arm=arm,
        learning_rate=rate,
        seeds=len(chosen),
        accuracy=statistics.median(accuracies) if accuracies else None,
        accuracy_range=[min(accuracies), max(accuracies)] if accuracies else None,
        loss=statistics.median(losses) if losses else None,
        loss_range=[min(losses), max(losses)] if losses else None,
        passed=sum(run.passes is not None for run in chosen),
        spikes=sum(run.spikes or 0 for run in chosen),
        diverged=sum(run.loss is None for run in chosen),
    )


def gradient_spikes(norms: Sequence[float | None]) -> int:
    """How many gradient norms, in the order of steps, are far above those before; one that is not finite counts."""
    count = 0
    for place in range(BEFORE, len(norms)):
        before = [norm for norm in norms[place - BEFORE : place] if norm is not None]
        norm = norms[place]
        count += norm is None or (bool(before) and norm > SPIKE * statistics.median(before))
    return count


def best_rate(arm: str, rates: Sequence[Rate], *, on_text: bool) -> float:
    """The rate that did best by the primary measure of a comparison."""

    def score(row: Rate) -> tuple[float, float, float]:
        accuracy, loss = row.accuracy or 0.0, -math.inf if row.loss is None else -row.loss
        return -row.diverged, *((loss, accuracy) if on_text else (accuracy, loss))

    return max((row for row in rates if row.arm == arm), key=score).learning_rate
