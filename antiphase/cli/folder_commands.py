"""Commands of studies and other work that has a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from antiphase.cli.commands import command_of
from antiphase.cli.console import finish, make_console, page_writer, sayer
from antiphase.cli.groups import late_group
from antiphase.cli.progress import job_progress, run_progress, share_progress
from antiphase.lab.catalog import PACKAGES, Measurement, every

if TYPE_CHECKING:
    from rich.console import Console

    from antiphase.base.records import Record
    from antiphase.lab.studies.plan import Plan

GROUPS = {
    "evaluate": "Measure a model: held-out loss (also by position), retrieval, learning in context, where "
    "attention goes, outliers, quantization.",
    "calibrate": "Reduce attention sinks of a pretrained model, head by head, without training.",
    "study": "Compare earlier architectures with differential attention: dependency length, training speed, gradients.",
}
"""Commands that have folders below them, and their help."""


def _silent(done: float, count: int) -> None:
    """For short work, which has no progress bar."""


def _runner(measurement: Measurement) -> Callable[..., Any]:
    """The function that turns settings into a record."""
    if PACKAGES[measurement.parent] != "evaluate":
        return measurement.run
    from antiphase.lab.measures.running import evaluate

    return evaluate


def _trained(plan: Plan, output: Path, *, resume: bool, as_json: bool) -> tuple[Console, Record]:
    """The record of a training run or of a study of several; of processes that share a run, one speaks."""
    from antiphase.lab.training.distributed import is_first_process

    console = make_console(quiet=plan.steps is not None and not is_first_process(), as_json=as_json)
    for words in plan.announced:
        console.print(words, highlight=False)
    watch = {"watch": page_writer(console, output)} if plan.is_watched else {}
    of_study = job_progress(console, plan.runs, plan.tokens)
    progress: Any = of_study if plan.steps is None else run_progress(console, plan.steps)
    with progress as report:
        return console, plan.run(output, resume=resume, say=sayer(console), report=report, **watch)


def _measured(
    measurement: Measurement, settings: Any, output: Path | None, *, resume: bool, as_json: bool
) -> tuple[Console, Record]:
    """The record of any other work."""
    console = make_console(as_json=as_json)
    resumed = {"resume": resume} if settings.folder == "resumable" else {}
    is_short = settings.folder == "optional"
    progress = nullcontext(_silent) if is_short else share_progress(console, settings.counted)
    with progress as report:
        return console, _runner(measurement)(settings, output, **resumed, say=sayer(console), report=report)


def command(measurement: Measurement) -> Callable[..., None]:
    """The command of a folder."""

    def run(settings: Any, *, output: Path | None, resume: bool, as_json: bool) -> None:
        from antiphase.base.folders.ownership import unfinished

        is_new = settings.folder != "resumable"
        with unfinished(output) if is_new and output is not None else nullcontext():
            written(settings, output=output, resume=resume, as_json=as_json)

    def written(settings: Any, *, output: Path | None, resume: bool, as_json: bool) -> None:
        from antiphase.cli.terminal import print_json
        from antiphase.lab.pages.terminal import print_summary

        how = {"resume": resume, "as_json": as_json}
        if measurement.plan is not None and output is not None:
            console, record = _trained(measurement.plan(settings, output), output, **how)
        else:
            console, record = _measured(measurement, settings, output, **how)
        presentation = measurement.presentation
        if as_json and hasattr(settings, "as_json"):  # predict prints texts, not its record
            for row in record.values["rows"]:
                print_json(json.dumps(row, ensure_ascii=False))
        elif as_json and settings.folder == "optional":
            print_json(record.text())
        elif settings.folder == "optional" or output is None:
            print_summary(record, console)
        elif not console.quiet:
            further = presentation.further(record, output)
            finish(console, record, output, page=presentation.page, further=further, as_json=as_json)
            if closing := presentation.closing(record, output):
                console.print(closing, highlight=False, soft_wrap=True)
        if measurement.plan is not None and output is not None:
            from antiphase.lab.studies.jobs import check_any_left

            check_any_left(output)

    return command_of(measurement.settings, run)


COMMANDS = {found.command: partial(command, found) for found in every()}
"""What makes each command, by its words on the command line: ``look``, ``evaluate needles``."""


def group(name: str) -> typer.Typer:
    """``evaluate`` or ``study``, with the commands of its folders."""
    own = {words.removeprefix(f"{name} "): made for words, made in COMMANDS.items() if words.startswith(f"{name} ")}
    return typer.Typer(cls=late_group(own), help=GROUPS[name], no_args_is_help=True, rich_markup_mode="rich")
