"""What differential attention owes to each of its parts, and its rivals: ``antiphase ablations`` (2410.05258, table 6).

Every row is an arm trained on the same data in the same order; its loss is split into tokens that the context has
shown before (AR-hits) and the rest, and compared with the arm from which it departs and with the paper's number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from antiphase.base.records import Record
from antiphase.lab.pages.tables import present
from antiphase.lab.scoring.loading import load_model, refused_by_model
from antiphase.lab.scoring.recall import RecallSlices, recall_losses, recall_slices
from antiphase.lab.settings.flags import flags_of
from antiphase.lab.settings.presets import Preset
from antiphase.lab.statistics.blocks import Blocks
from antiphase.lab.studies.ablations import AblationRow, AblationRun, Ablations, AblationsSettings, Losses, Slices
from antiphase.lab.studies.ablations.rows import ABLATIONS, ablation_preset
from antiphase.lab.studies.grid import Grid
from antiphase.lab.studies.jobs import Job, Report
from antiphase.lab.studies.metrics import NATS, Difference, Metric
from antiphase.lab.studies.plan import Plan, described
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.run_folder import run_metrics

METRICS = {"loss": "held-out loss", "ar_hit": "loss on AR-hits", "others": "loss on others"}


def plan(settings: AblationsSettings, output: Path) -> Plan:
    """``ablations`` with these settings."""
    preset, left_out = ablation_preset(settings.chosen_preset(), settings.rows, rivals=settings.rivals)
    work = partial(ablations, preset, left_out=left_out, frequent=settings.frequent, executor=executor_of(settings))
    announced = [described(preset), *(f"without {name}: {why}" for name, why in left_out.items())]
    return Plan.of_runs(work, Grid(preset, output).jobs, announced)


def ablations(
    preset: Preset,
    output: Path,
    *,
    left_out: Mapping[str, str] | None = None,
    frequent: int = AblationsSettings.frequent,
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
    executor: Executor = LOCAL,
) -> Record:
    """Train every row with every seed, divide its loss, and write ``record.json`` in ``output``.

    Args:
        preset, left_out: from ``ablation_preset``.
        frequent: pairs that occur more often than this in the training text are no AR-hits.

    Returns:
        The record of kind "ablations".

    Raises:
        InputError, Interrupted: as for ``compare``.
    """
    flags_of(AblationsSettings)["frequent"].check(frequent)
    grid = Grid(preset, output, asked={"frequent": frequent}, executor=executor)
    run = preset.run
    started = time.perf_counter()
    with grid.held(resume=resume, say=say) as data:
        grid.train(report, say)
        say("dividing the loss of every model into AR-hits and others")
        text = data.training_text
        slices = recall_slices(
            data.validation(run.evaluation.validation_sequences), None if text is None else text.tokens,
            frequent=frequent,
        )  # fmt: skip
        runs = [_run_row(grid, job, slices) for job in grid.jobs]
        found = Ablations(
            source=run.data.source,
            arms=list(preset.compare.arms),
            rows=rows_of(runs, preset.compare.arms),
            left_out=dict(left_out or {}),
            slices=Slices(**slices.describe()),
            runs=runs,
        )
        return grid.save("ablations", found, started=started)


def _run_row(grid: Grid, job: Job, slices: RecallSlices) -> AblationRun:
    folder, run = grid.output / job.name, grid.result(job)
    losses: dict[str, float | None] = {}
    if not run.is_diverged:
        with refused_by_model(str(folder)):
            device = str(choose_device(job.settings.training.device))
            losses = recall_losses(load_model(str(folder), device=device).model, slices)
    return AblationRun(
        arm=job.arm,
        seed=job.seed,
        parameters=run.parameters,
        intermediate_size=job.settings.model.intermediate_size,
        learning_rate=run.learning_rate,
        accuracy=run.final.accuracy,
        diverged=run.diverged,
        lambdas=run.lambdas,
        gradient_norms=layer_means(
            [line["gradient_norms"] for line in run_metrics(folder) if line.get("gradient_norms")]
        ),
        **losses,
    )


def layer_means(lists: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean of several lists with one number per layer; None where a model diverged."""
    lists = [norms for norms in lists if norms]  # a run may diverge before it logs any
    layers = [[norm for norm in layer if norm is not None] for layer in zip(*lists, strict=True)]
    return [statistics.fmean(layer) if len(layer) == len(lists) else None for layer in layers]


def rows_of(runs: Sequence[AblationRun], arms: Iterable[str]) -> list[AblationRow]:
    """A line of the table for each arm: means over seeds, and paired differences to the row that it departs from."""
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    found: dict[str, dict[str, Any]] = {arm: {} for arm in by_arm}
    for name, words in METRICS.items():
        metric = Metric(words, NATS, lower_is_better=True, digits=4)
        values: dict[str, list[float | None]] = {
            arm: [getattr(run, name) for run in own] for arm, own in by_arm.items()
        }
        blocks = Blocks.of(values)
        for arm, row in found.items():
            known, against = present(values[arm]), ABLATIONS[arm].against
            row[name] = statistics.fmean(known) if known else None
            if against in values:
                row[f"{name}_difference"] = Difference.of(metric, values, arm, against, blocks)
    return [
        AblationRow(
            arm=arm, about=ABLATIONS[arm].about, against=ABLATIONS[arm].against, parameters=own[0].parameters,
            intermediate_size=own[0].intermediate_size, diverged=sum(run.loss is None for run in own),
            paper=None if (there := ABLATIONS[arm].paper) is None else Losses(**dict(zip(METRICS, there, strict=True))),
            gradient_norms=layer_means([run.gradient_norms for run in own]), **found[arm],
        )
        for arm, own in by_arm.items()
    ]  # fmt: skip
