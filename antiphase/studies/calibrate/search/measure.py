"""Find heads to calibrate, from request to record: ``antiphase calibrate search``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from antiphase.calibration.search import HeadResult, scores_of, search_calibration
from antiphase.errors import InputError
from antiphase.folders.journal import append_line, read_lines
from antiphase.folders.ownership import undone_if_refused
from antiphase.folders.work import work_in
from antiphase.records import Record
from antiphase.scoring.loading import refused_by_model
from antiphase.studies.calibrate.measuring import (
    CHOSEN_ON,
    SCORES,
    begin,
    by_mode,
    check,
    hash_of_sample,
    judged_split,
    saved,
    standing,
)
from antiphase.studies.calibrate.search import Search, SearchSettings
from antiphase.tasks.samples import Sample, Task
from antiphase.tasks.task_scores import log_probabilities, score_samples

HEADS = "heads.jsonl"


def search(
    settings: SearchSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Find the heads whose calibration raises the score on the tasks. Writes ``plan.json`` and ``record.json``.

    Every head's result is written as soon as it is known, so that a search can continue after a kill.

    Raises:
        InputError: a model, task or value that cannot be used, tasks at chance only, a folder with other contents.
    """
    check(settings)
    started = perf_counter()
    heads = output / HEADS
    with work_in(output, settings, resume=resume) as work:
        with undone_if_refused(output), refused_by_model(settings.name):
            loaded, tasks = begin(work, settings)
            standings = _standings(loaded.model, tasks, say)
            searched = _searched(settings.name, tasks, standings, say)
            split = judged_split(settings, searched)
        known = [HeadResult(**values) for values in read_lines(heads, *HeadResult.__dataclass_fields__)]
        done = count(len(known) + 1)

        def keep(result: HeadResult, total: int) -> None:
            append_line(heads, asdict(result))
            report(next(done), total)

        with refused_by_model(settings.name):  # what has been found by then stays
            plan = search_calibration(
                loaded.model, by_mode(SCORES[settings.score], settings.mode), searched,
                alpha=settings.alpha, beta=settings.beta, mode=settings.mode, method=settings.method,
                layers=settings.layers, surrogate=by_mode(log_probabilities, settings.mode),
                held_out=settings.held_out, seed=settings.seed, known=known, report=keep,
            )  # fmt: skip
        chosen_on = {name: sorted(map(hash_of_sample, some)) for name, some in split.search.items()}
        replace(plan, scores={**plan.scores, CHOSEN_ON: chosen_on}).save(output / "plan.json")
        values = {"tasks": standings, "heads_alone": plan.scores["heads"], **plan.scores, "heads": plan.heads}
        return saved(Search, values, settings, output, seconds=perf_counter() - started)


def _standings(model: PreTrainedModel, tasks: Mapping[str, Task], say: Callable[[str], None]) -> list[dict[str, Any]]:
    found = []
    for name, task in tasks.items():
        say(f"{name}: how the model does without calibration")
        found.append(standing(task, scores_of(model, score_samples, {name: task.samples})[name]))
    return found


def _searched(
    model: str, tasks: Mapping[str, Task], standings: Sequence[Mapping[str, Any]], say: Callable[[str], None]
) -> dict[str, Sequence[Sample]]:
    """Samples of the tasks that the model can do.

    Raises:
        InputError: there is none.
    """
    for row in standings:
        if not row["above_chance"]:
            words = f"{100 * row['score']:.1f} % is not above chance ({100 * row['chance']:.1f} %)"
            say(f"{row['task']}: {words}, so it is not searched")
    found: dict[str, Sequence[Sample]] = {
        row["task"]: tasks[row["task"]].samples for row in standings if row["above_chance"]
    }
    if not found:
        listed = ", ".join(f"{row['task']} {100 * row['score']:.1f} %" for row in standings)
        raise InputError(
            f"--task: {model} is no better than chance ({listed}), so there is nothing to search; use tasks it can "
            "solve, more --shots or more --samples"
        )
    return found
