"""Commands of studies and other work that has a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from antiphase.cli.commands import command_of
from antiphase.cli.console import finish, job_progress, make_console, sayer, share_progress
from antiphase.registry import PACKAGES, Measurement, every

GROUPS = {
    "evaluate": "Measure a model: its held-out loss, also by position; retrieval; learning in context; where its "
    "attention goes; outliers and few bits.",
    "study": "Compare earlier architectures with differential attention: dependency length, training speed, gradients.",
}
"""Commands that have folders below them, and their help."""


def _silent(done: float, count: int) -> None:
    """For short work, which has no progress bar."""


def _runner(measurement: Measurement) -> Callable[..., Any]:
    """From settings to record."""
    if PACKAGES[measurement.parent] != "evaluate":
        return measurement.run
    from antiphase.evaluations.running import evaluate

    return evaluate


def command(measurement: Measurement) -> Callable[..., None]:
    """The command of a folder."""

    def run(settings: Any, *, output: Path | None, resume: bool) -> None:
        from antiphase.report.terminal import print_summary

        console = make_console()
        is_short = settings.folder == "optional"
        resumed = {"resume": resume} if settings.folder == "resumable" else {}
        announced = getattr(measurement.measure, "announcement", None)
        if announced and (words := announced(settings)):
            console.print(words, highlight=False)
        progress: Any = share_progress(console, settings.parts) if settings.parts else job_progress(console)
        with nullcontext(_silent) if is_short else progress as report:
            record = _runner(measurement)(settings, output, **resumed, say=sayer(console), report=report)
        presentation = measurement.presentation
        if getattr(settings, "as_json", False):
            for row in record.values["rows"]:
                typer.echo(json.dumps(row, ensure_ascii=False))
        elif is_short or output is None:
            print_summary(record, console)
        else:
            further = getattr(measurement.measure, "further", None)
            finish(console, record, output, page=presentation.page, further=further(record, output) if further else ())
            if closing := presentation.closing(record):
                console.print(closing, highlight=False)

    return command_of(measurement.settings, run)


COMMANDS = {found.command: command(found) for found in every()}
"""By their words: ``look``, ``evaluate needles``."""


def group(name: str) -> typer.Typer:
    """``evaluate`` or ``study``, with the commands of its folders."""
    app = typer.Typer(help=GROUPS[name], no_args_is_help=True, rich_markup_mode="rich")
    for words, run in COMMANDS.items():
        first, _, last = words.partition(" ")
        if first == name:
            app.command(last)(run)
    return app
