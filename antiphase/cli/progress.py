"""Progress of long work: bars in a terminal or notebook, lines in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from antiphase.lab.studies.jobs import Job


KNOWN_SECONDS = 0.05
"""Parts that took less were known before."""
LINE_SECONDS = 10.0
"""Between two lines where the output is no terminal."""
ALL = "all runs"
KNOWN_SHARE = 0.05
"""Share of a run before which no time is given: early ones were wrong by a factor of ten."""


def duration(seconds: float) -> str:
    """An approximate time in words."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} seconds"


Show = Callable[[Hashable, str, float, float, str], None]
"""Shows a piece of work: its key, its name, how much is done, of how much, and more to say about it."""


class Pace:
    """How long the rest of a stage takes, by what was done since its first part: what came before it was loading."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begun: dict[Hashable, tuple[float, float]] = {}

    def left(self, stage: Hashable, done: float, total: float) -> str:
        """For example ``about 5 minutes left``; empty before ``KNOWN_SHARE`` of the stage and at its end."""
        now = self.clock()
        if not done:
            return ""
        since, before = self.begun.setdefault(stage, (now, done))
        if now - since < KNOWN_SECONDS:
            self.begun[stage] = (now, done)
            return ""
        if done - before < KNOWN_SHARE * total or done >= total:
            return ""
        return f"about {duration((now - since) / (done - before) * (total - done))} left"


class Total:
    """How many runs of a study are finished, and how long all that is left takes.

    Args:
        runs: number of all.
        tokens: that all train on; runs may differ in size.
    """

    def __init__(self, runs: int, tokens: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.runs, self.tokens, self.clock = runs, tokens, clock
        self.first: dict[Job, float] = {}
        """Tokens of each run when it was first seen: a study that was resumed had them before."""
        self.done: dict[Job, float] = {}
        self.finished: set[Job] = set()
        self.since: float | None = None

    def words(self, job: Job, step: int) -> str:
        """What is known after a run's step, for example ``4 of 6 runs, about 5 minutes left for everything``."""
        now, steps = self.clock(), job.settings.training.steps
        self.since = now if self.since is None else self.since
        self.done[job] = job.tokens * step / steps
        made = sum(self.done.values()) - sum(self.first.setdefault(one, self.done[one]) for one in self.done)
        if step >= steps:
            self.finished.add(job)
        words, left = f"{len(self.finished)} of {self.runs} runs", self.tokens - sum(self.done.values())
        if made < KNOWN_SHARE * self.tokens / self.runs or left <= 0:
            return words
        return f"{words}, about {duration((now - self.since) / made * left)} left for everything"


class Lines:
    """Progress as lines, for output that is no terminal: one in ``LINE_SECONDS``, and one when a stage is finished.

    A stage is a piece of work with a total; a piece that goes on with another total begins its next one.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say, self.clock = say, clock
        self.told = -math.inf
        self.pace = Pace(clock)
        self.finished: set[Hashable] = set()
        """Stages whose end has been told."""

    def show(self, key: Hashable, name: str, done: float, total: float, text: str) -> None:
        """A ``Show``."""
        now, is_finished, stage = self.clock(), done >= total, (key, total)
        left = self.pace.left(stage, done, total)
        if (now - self.told < LINE_SECONDS and not is_finished) or (is_finished and stage in self.finished):
            return
        if is_finished:
            self.finished.add(stage)
        self.told = now
        self.say(", ".join(filter(None, [f"{name}: {int(done)} of {total:g}", left, text])))


@contextmanager
def _shown(console: Console) -> Iterator[Show]:
    """Shows each piece of work as a bar in a terminal or notebook, and as lines elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    if not (console.is_terminal or console.is_jupyter):
        yield Lines(lambda line: console.print(line, highlight=False, soft_wrap=True)).show
        return

    class Remaining(TimeRemainingColumn):
        """Of a run that has begun in earnest; all runs say it in words."""

        def render(self, task: Task) -> Text:
            is_known = task.description != ALL and task.completed >= KNOWN_SHARE * (task.total or 0)
            return super().render(task) if is_known else Text("")

    names = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), Remaining()
    with Progress(*names, TextColumn("{task.fields[text]}", markup=False), console=console) as progress:
        bars: dict[Hashable, Any] = {}

        def show(key: Hashable, name: str, done: float, total: float, text: str) -> None:
            if key not in bars:
                bars[key] = progress.add_task(name, total=total, text=text)
            progress.update(bars[key], completed=done, total=total, text=text)

        yield show


@contextmanager
def job_progress(
    console: Console, runs: int = 0, tokens: float = 0.0
) -> Iterator[Callable[[Job, int, dict[str, Any]], None]]:
    """Progress of each run of a study, and of all, if their number and tokens are known."""
    total, is_drawn = Total(runs, tokens) if runs else None, console.is_terminal or console.is_jupyter
    with _shown(console) as show:

        def report(job: Job, step: int, values: dict[str, Any]) -> None:
            steps = job.settings.training.steps
            loss = f"loss {values['loss']:.3f}" if values.get("loss") is not None else ""
            text = loss or ("" if step else "validation before step 1")
            if total is not None:
                everything = total.words(job, step)
                if is_drawn:
                    show(None, ALL, len(total.finished), runs, everything)
                else:
                    text = f"{text}; {everything}" if text else everything
            show(job, job.name, step, steps, text)

        yield report


@contextmanager
def run_progress(console: Console, steps: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Progress of one run, with the last loss and accuracy."""
    known = dict[str, float]()
    with _shown(console) as show:

        def report(step: int, values: Mapping[str, Any]) -> None:
            if values.get("loss") is not None:
                known["loss"] = values["loss"]
            found = values.get("evaluation", {})
            known.update(
                {
                    f"held-out {name.replace('_', ' ')}": found[name]
                    for name in ("loss", "accuracy", "page_accuracy")
                    if found.get(name) is not None
                }
            )
            text = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
            if "measuring" in values:
                text = f"measuring on held-out data ({values['measuring']}): {values['tokens']:,} tokens"
            show(None, "steps", step, steps, text)

        yield report


@contextmanager
def share_progress(console: Console, words: str) -> Iterator[Callable[[float, int], None]]:
    """Progress of items processed one after the other, each step by step; work that cannot begin shows none."""
    with _shown(console) as show:

        def report(done: float, count: int) -> None:
            show(None, words, done, count, "")

        yield report
