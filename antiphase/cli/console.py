"""What commands print: words, progress bars, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from antiphase.records import Record
    from antiphase.studies.jobs import Job


Page = Callable[[Sequence["Record"], Path], Path]
"""Writes a page from records to the given file; returns the file."""
KNOWN_SECONDS, MEASURED_SECONDS, WORTH_SECONDS = 0.05, 3.0, 30.0
"""Thresholds of an estimate: a part that took less was known before; time to measure; time left worth reporting."""
REFRESH_SECONDS = 30
"""Seconds after which a browser reloads the page of an unfinished study."""


def make_console(*, quiet: bool = False) -> Console:
    """The terminal of a command with models; only our own progress bars appear in it.

    ``quiet``: of several processes one speaks.
    """
    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return Console(quiet=quiet, markup=False)  # names of files may hold brackets


def sayer(console: Console) -> Callable[[str], None]:
    """Print a message of a study, between its progress bars."""
    return lambda message: console.print(message, style="dim")


class Estimate:
    """Reports once for each stage of the work how much time is left, extrapolated from a first measured part."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say, self.clock = say, clock
        self.begun: dict[tuple[str, float], tuple[float, float] | None] = {}
        """By name and size of the stage: when its measured part began, and what was done then; None: told."""

    def report(self, done: float, count: float, *, about: str = "") -> None:
        """``done`` of ``count`` parts are finished of the stage that ``about`` names."""
        now, stage = self.clock(), (about, count)
        begun = self.begun.setdefault(stage, (now, done))  # what came before it was loading
        if begun is None or done <= begun[1]:
            return
        took, parts = now - begun[0], done - begun[1]
        if took < KNOWN_SECONDS:  # parts that were known already
            self.begun[stage] = (now, done)
        elif took >= MEASURED_SECONDS:
            self.begun[stage] = None
            left = took / parts * (count - done)
            if left >= WORTH_SECONDS:
                self.say(f"{f'{about}: ' if about else ''}about {duration(left)} left")


def duration(seconds: float) -> str:
    """An approximate time in words."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} seconds"


@contextmanager
def job_progress(console: Console) -> Iterator[Callable[[Job, int, dict[str, Any]], None]]:
    """A bar for each run of a study."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[loss]}"), console=console) as progress:
        bars: dict[Job, Any] = {}
        estimate = Estimate(sayer(console))

        def show(job: Job, step: int, values: dict[str, Any]) -> None:
            if job not in bars:
                bars[job] = progress.add_task(job.name, total=job.settings.training.steps, loss="")
            loss = f"loss {values['loss']:.3f}" if values.get("loss") is not None else ""
            estimate.report(step, job.settings.training.steps, about=job.name)
            loss = loss or ("" if step else "validation before step 1")
            progress.update(bars[job], completed=step, loss=loss)

        yield show


@contextmanager
def run_progress(console: Console, steps: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """One bar, with the last loss and accuracy."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=steps)
        shown: dict[str, float] = {}
        estimate = Estimate(sayer(console))

        def show(step: int, values: Mapping[str, Any]) -> None:
            if values.get("loss") is not None:
                shown["loss"] = values["loss"]
            found = values.get("evaluation", {})
            shown.update(
                {f"held-out {name}": found[name] for name in ("loss", "accuracy") if found.get(name) is not None}
            )
            estimate.report(step, steps)
            text = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
            if "measuring" in values:
                text = f"measuring on held-out data ({values['measuring']}): {values['tokens']:,} tokens"
            progress.update(bar, completed=step, description=text)

        yield show


@contextmanager
def share_progress(console: Console, words: str) -> Iterator[Callable[[float, int], None]]:
    """One bar for items that are processed one after the other, each step by step."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        estimate = Estimate(sayer(console))

        def show(done: float, count: int) -> None:
            if not progress.tasks:  # work that cannot begin shows no bar
                progress.add_task(words, total=count)
            estimate.report(done, count)
            text = f"{words}: {int(done)} of {count} done"
            progress.update(progress.tasks[0].id, completed=done, total=count, description=text)

        yield show


def page_writer(console: Console, output: Path) -> Callable[[Record], None]:
    """Writes the page of an unfinished study again and again; says where it is the first time."""
    from antiphase.report.html import write_report

    page = output / "report.html"
    shown: list[Path] = []

    def write(record: Record) -> None:
        write_report([record], page, refresh=REFRESH_SECONDS)
        if not shown:
            console.print(f"learning curves so far: {page}", highlight=False)
            shown.append(page)

    return write


def finish(
    console: Console, record: Record, output: Path, *, page: Page | None = None, further: Sequence[Record] = ()
) -> None:
    """The table in the terminal, and the page, with further records; None: a report."""
    from antiphase.report.html import write_report
    from antiphase.report.terminal import print_summary

    print_summary(record, console)
    written = (page or write_report)([record, *further], output / "report.html")
    console.print(f"record: {output / 'record.json'}\npage:   {written}", highlight=False)
