"""Downstream tasks through lm-eval, from request to record: ``antiphase evaluate harness``."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.errors import InputError, NonFiniteError
from antiphase.evals.loading import digest, load_model
from antiphase.evals.statistics import mean_interval
from antiphase.evaluations.journal import append_line, hash_of, read_lines
from antiphase.records import Record, finite
from antiphase.training.loop import choose_device
from antiphase.training.run_folder import check_empty, only_one

if TYPE_CHECKING:
    from antiphase.evals.harness import TaskLibrary

PAPER_TASKS = ("arc_challenge", "arc_easy", "boolq", "hellaswag", "openbookqa", "piqa", "winogrande")
"""The paper's seven (2410.05258, table 1), by their names in lm-eval."""
CELLS = "cells.jsonl"


@dataclass(frozen=True, kw_only=True)
class HarnessRequest:
    """What ``antiphase evaluate harness`` was asked for."""

    names: Sequence[str]
    """Local folders or Hub names of causal language models."""
    tasks: Sequence[str] = PAPER_TASKS
    num_fewshot: Sequence[int] = (0, 5)
    limit: float | None = None
    """Rows of each task; below 1, a share of them."""
    batch_size: str = "8"
    include_path: str | None = None
    """Folder with tasks of the user's own."""
    trust_task_code: bool = False
    """Whether Python that tasks bring along may run."""
    seed: int = 1234
    device: str = "auto"

    def check(self) -> None:
        """Raise an InputError for a value that cannot be used; it names the flag."""
        for flag, listed in (("MODEL", self.names), ("--tasks", self.tasks), ("--num-fewshot", self.num_fewshot)):
            if not listed or len(set(listed)) < len(listed):
                raise InputError(f"{flag} must name one or more, none of them twice, got {', '.join(map(str, listed))}")
        if min(self.num_fewshot) < 0:
            raise InputError(f"--num-fewshot must be at least 0, got {min(self.num_fewshot)}")
        if self.limit is not None and (self.limit <= 0 or (self.limit >= 1 and self.limit != int(self.limit))):
            raise InputError(f"--limit must be a number of rows, or a share between 0 and 1, got {self.limit:g}")
        if self.batch_size != "auto" and not (self.batch_size.isdecimal() and int(self.batch_size) > 0):
            raise InputError(f"--batch-size must be a number from 1, or auto, got {self.batch_size!r}")
        if self.include_path is not None and not Path(self.include_path).is_dir():
            raise InputError(f"--include-path {self.include_path}: there is no such folder")
        if importlib.util.find_spec("lm_eval") is None:
            raise InputError("lm-eval is not installed; run pip install 'antiphase[harness]'")


def evaluate_harness(
    request: HarnessRequest,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Scores of models on tasks of lm-eval. Writes ``record.json`` in ``output``.

    Each model's scores on a task are kept in ``cells.jsonl`` by model, task and settings, each by its content, so that
    nothing is measured twice: what a kill, another model or another task leaves behind is taken up with ``resume``.

    Raises:
        InputError: a model, task or value that cannot be used, data out of reach, a folder with other contents.
    """
    request.check()
    if not (output / CELLS).is_file():
        check_empty(output)
    elif not resume:
        raise InputError(f"--output {output} holds this work already; add --resume to go on with it, or choose another")
    started = time.perf_counter()
    with only_one(output):
        from antiphase.evals import harness

        library = _library(request)
        versions = {name: harness.digest(library.load(name)) for name in request.tasks}  # before a model is read
        rows = list(_rows(request, library, versions, output / CELLS, say, report))
        record = Record(
            kind="evaluate-harness",
            values=finite({"models": request.names, "lm_eval": harness.VERSION, "rows": _compared(rows)}),
            config=finite(asdict(request)),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def check_tasks(request: HarnessRequest) -> None:
    """Whether the tasks are there, before anything else takes its time.

    Raises:
        InputError: as ``evaluate_harness`` for a task or value that cannot be used.
    """
    request.check()
    library = _library(request)
    for name in request.tasks:
        library.load(name)


def _library(request: HarnessRequest) -> TaskLibrary:
    from antiphase.evals.harness import TaskLibrary

    if request.include_path is not None:
        own = TaskLibrary(request.include_path, defaults=False, trust_task_code=request.trust_task_code)
        if set(request.tasks) <= set(own.manager.all_subtasks):
            return own
    return TaskLibrary(request.include_path, trust_task_code=request.trust_task_code)


def _rows(
    request: HarnessRequest,
    library: TaskLibrary,
    versions: dict[str, str],
    path: Path,
    say: Callable[[str], None],
    report: Callable[[float, int], None],
) -> Iterator[dict[str, Any]]:
    from antiphase.evals.harness import VERSION, ProjectLM, measure

    known = {line["key"]: line["rows"] for line in read_lines(path, "key", "rows")}
    settings = [request.limit, request.seed, VERSION]
    done, count = 0, len(request.names) * len(request.tasks) * len(request.num_fewshot)
    for name in request.names:
        loaded = load_model(name, device=str(choose_device(request.device)))
        own, model = digest(loaded), None
        for task in request.tasks:
            for shots in request.num_fewshot:
                key = hash_of([own, task, versions[task], shots, *settings])
                if key not in known:
                    model = model or ProjectLM(loaded.model, loaded.tokenizer, batch_size=request.batch_size)
                    model.report = _later(report, done, count)
                    say(f"{name}: {task}, {shots} examples")
                    try:
                        known[key] = measure(
                            model,
                            library.load(task),
                            shots=shots,
                            limit=request.limit,
                            seed=request.seed,
                            trust_task_code=request.trust_task_code,
                        )
                    except NonFiniteError as error:
                        raise InputError(f"MODEL {name}, {task}: {error}") from error
                    append_line(path, finite({"key": key, "rows": known[key]}))
                done += 1
                report(done, count)
                yield from ({"model": name, **row} for row in known[key])


def _later(report: Callable[[float, int], None], done: int, count: int) -> Callable[[float], None]:
    """Shares of the part that follows ``done`` of ``count``."""
    return lambda share: report(done + share, count)


def _compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the scores of single samples, but with the mean difference to the first model over the same."""
    first: dict[tuple[str, int], list[float]] = {}
    found = []
    for row in rows:
        scores = row["scores"]
        base = first.setdefault((row["task"], row["shots"]), scores)
        paired = [own - other for own, other in zip(scores, base, strict=True)] if base is not scores else []
        difference = {"value": sum(paired) / len(paired), "interval": mean_interval(paired)} if paired else None
        found.append({**{name: value for name, value in row.items() if name != "scores"}, "difference": difference})
    return found
