"""Downstream tasks through lm-eval, task by task, from settings to record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError, NonFiniteError, named
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.journal import append_line, read_lines
from antiphase.base.folders.work import Resumable
from antiphase.base.records import Record, finite
from antiphase.base.typed import build
from antiphase.lab.measures.harness import PAPER_TASKS, Harness, HarnessSettings, MeasuredTask, RowDifference, TaskScore
from antiphase.lab.scoring.loading import digest, load_model, origins, wrap_model
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.text.tokenization import check_chat_template
from antiphase.lab.training.device import loading_options

if TYPE_CHECKING:
    from antiphase.lab.measures.harness.lm_eval_adapter import ProjectLM, TaskLibrary

CELLS = "cells.jsonl"


def evaluate(
    request: HarnessSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Score models on tasks of lm-eval; write ``record.json`` in ``output``.

    Each model's scores on a task are stored in ``cells.jsonl``, by digests of model, task and settings, so that nothing
    is measured twice: ``resume`` reuses them after an interruption and for other models or tasks.

    Raises:
        InputError: a model, task or value cannot be used, data is not available, or the folder has other contents.
    """
    request.check()
    started = time.perf_counter()
    with Resumable(CELLS).held(output, resume=resume):
        from antiphase.lab.measures.harness import lm_eval_adapter

        library = _library(request)
        versions = {
            name: lm_eval_adapter.digest(library.load(name)) for name in request.tasks
        }  # before a model is loaded
        rows = list(_rows(request, library, versions, output / CELLS, say, report))
        found = Harness(list(request.names), lm_eval_adapter.VERSION, _compared(rows))
        read = origins(request.names)
        return found.save(output, request, seconds=time.perf_counter() - started, **read)


def harness(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str] = PAPER_TASKS,
    *,
    num_fewshot: Sequence[int] = (0, 5),
    limit: float | None = None,
    include_path: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    trust_task_code: bool = False,
    seed: int = 1234,
) -> Harness:
    """Scores of a loaded model on tasks of lm-eval.

    Args:
        tasks: their names in lm-eval.
        num_fewshot: numbers of examples before each prompt.
        limit: number of rows of each task, or a share below 1.
        include_path: folder with further tasks.
        metadata: for tasks that are made for a length, such as RULER's ``max_seq_lengths`` and ``tokenizer``.
        trust_task_code: whether Python code that comes with tasks may run.
        seed: seed for drawing examples.

    Raises:
        InputError: a task or value cannot be used, or data is not available.
        NonFiniteError: logits are not finite.
    """
    name = wrap_model(model, tokenizer).name
    request = HarnessSettings(
        names=[name], tasks=tasks, num_fewshot=num_fewshot, limit=limit, include_path=include_path,
        metadata=None if metadata is None else json.dumps(metadata), trust_task_code=trust_task_code, seed=seed,
    )  # fmt: skip
    request.check()
    from antiphase.lab.measures.harness.lm_eval_adapter import VERSION, ProjectLM

    library, own = _library(request), ProjectLM(model, tokenizer, batch_size=request.batch_size)
    rows = [
        (name, row) for task in tasks for shots in num_fewshot for row in _scored(request, own, library, task, shots)
    ]
    return Harness([name], VERSION, _compared(rows))


def check_tasks(request: HarnessSettings) -> None:
    """Check that the tasks exist, before anything slow happens.

    Raises:
        InputError: as for ``evaluate``, if a task or value cannot be used.
    """
    request.check()
    library = _library(request)
    for name in request.tasks:
        library.load(name)


def _library(request: HarnessSettings) -> TaskLibrary:
    from antiphase.lab.measures.harness.lm_eval_adapter import TaskLibrary

    given: dict[str, Any] = {"trust_task_code": request.trust_task_code, "metadata": request.given_metadata()}
    if request.include_path is not None:
        own = TaskLibrary(request.include_path, defaults=False, **given)
        if set(request.tasks) <= set(own.manager.all_subtasks):
            return own
    return TaskLibrary(request.include_path, **given)


def _rows(
    request: HarnessSettings,
    library: TaskLibrary,
    versions: dict[str, str],
    path: Path,
    say: Callable[[str], None],
    report: Callable[[float, int], None],
) -> Iterator[tuple[str, MeasuredTask]]:
    """Every model's name with a row."""
    from antiphase.lab.measures.harness.lm_eval_adapter import VERSION, ProjectLM

    known = {
        line["key"]: [build(MeasuredTask, row, f"{path}: rows") for row in line["rows"]]
        for line in read_lines(path, "key", "rows")
    }
    settings = [request.limit, request.seed, VERSION, *(["chat template"] if request.chat_template else [])]
    done, count = 0, len(request.names) * len(request.tasks) * len(request.num_fewshot)
    for name in request.names:
        loaded = load_model(name, **loading_options(request))
        if request.chat_template:
            check_chat_template(loaded.tokenizer, named("model", name))
        own, model = digest(loaded), None
        for task in request.tasks:
            for shots in request.num_fewshot:
                key = hash_of([own, task, versions[task], shots, *settings])
                if key not in known:
                    model = model or ProjectLM(loaded.model, loaded.tokenizer, batch_size=request.batch_size)
                    model.report = _later(report, done, count)
                    say(f"{name}: {task}, {shots} examples")
                    try:
                        known[key] = _scored(request, model, library, task, shots)
                    except NonFiniteError as error:
                        raise InputError(f"{named('model', name)}, {task}: {error}") from error
                    append_line(path, finite({"key": key, "rows": known[key]}))
                done += 1
                report(done, count)
                yield from ((name, row) for row in known[key])


def _scored(
    request: HarnessSettings, model: ProjectLM, library: TaskLibrary, task: str, shots: int
) -> list[MeasuredTask]:
    """Rows of ``lm_eval_adapter.measure``."""
    from antiphase.lab.measures.harness.lm_eval_adapter import measure

    return measure(
        model, library.load(task), shots=shots, limit=request.limit, seed=request.seed,
        trust_task_code=request.trust_task_code, chat=request.chat_template,
    )  # fmt: skip


def _later(report: Callable[[float, int], None], done: int, count: int) -> Callable[[float], None]:
    """A function that reports the finished share of the part that follows ``done`` of ``count`` parts."""
    return lambda share: report(done + share, count)


def _compared(rows: Sequence[tuple[str, MeasuredTask]]) -> list[TaskScore]:
    """The rows without scores of single samples, with the mean difference from the first model on the same samples.

    A task that fixes its number of examples has one row for a model, however many numbers were asked for.
    """
    first: dict[tuple[str, int], list[float]] = {}
    found = []
    known = set()
    for model, row in rows:
        if (model, row.task, row.shots) in known:
            continue
        known.add((model, row.task, row.shots))
        base = first.setdefault((row.task, row.shots), row.scores)
        paired = [own - other for own, other in zip(row.scores, base, strict=True)] if base is not row.scores else []
        difference = None
        if paired:
            interval = mean_interval(paired)
            difference = RowDifference(sum(paired) / len(paired), None if interval is None else list(interval))
        plain = {name: value for name, value in vars(row).items() if name != "scores"}
        found.append(TaskScore(model=model, **plain, difference=difference))
    return found
