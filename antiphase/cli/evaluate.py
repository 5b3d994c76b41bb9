"""Commands that measure a causal language model: one for each measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from antiphase.cli.commands import command_of
from antiphase.cli.console import finish, make_console, sayer, share_progress
from antiphase.registry import measurements

app = typer.Typer(
    help="Measure a model: its held-out loss, also by position; retrieval; learning in context; where its attention "
    "goes; outliers and few bits.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _measure(settings: Any, *, output: Path, resume: bool) -> None:
    """One of the measurements that have a folder."""
    from antiphase.evaluations.running import evaluate

    console = make_console()
    with share_progress(console, "parts") as report:
        record = evaluate(settings, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)


for name, measurement in measurements("evaluate").items():
    app.command(name)(command_of(measurement.settings, _measure))
probe = command_of(measurements("")["probe"].settings, _measure)
probe.__name__ = "probe"  # typer calls a command as the function is called
