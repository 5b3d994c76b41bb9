"""Find heads to calibrate, from request to record: ``antiphase calibrate search``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from antiphase.base.errors import InputError
from antiphase.base.folders.journal import append_line, read_lines
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import work_in
from antiphase.base.records import Record
from antiphase.calibration.changes import changes_of, gain_interval, mean_of
from antiphase.calibration.plan import CalibrationPlan, heads_by_layer
from antiphase.calibration.search import SCREENED_SHARE, HeadResult, Split, scores_of, search_calibration
from antiphase.lab.scoring.loading import refused_by_model
from antiphase.lab.scoring.task_scores import log_probabilities, score_samples
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.studies.calibrate.cells import Cells
from antiphase.lab.studies.calibrate.controls import Control, controls_of
from antiphase.lab.studies.calibrate.measuring import (
    CHOSEN_ON,
    SCORES,
    begin,
    by_mode,
    check,
    directions,
    hash_of_sample,
    judged_split,
    measured_seconds,
    not_above_chance,
    saved,
    spoken_time,
    standing,
    tokens_of,
)
from antiphase.lab.studies.calibrate.search import Search, SearchSettings
from antiphase.lab.text.tasks.samples import Sample, Task

HEADS, CELLS = "heads.jsonl", "cells.jsonl"


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
    with work_in(output, kept_settings(settings), resume=resume) as work:
        with undone_if_refused(output), refused_by_model(settings.name):
            loaded, tasks = begin(work, settings, say)
            standings = _standings(loaded.model, tasks, say)
            searched = _searched(settings.name, tasks, standings, say)
            _check_method(settings, searched)
            split = judged_split(settings, searched, say)
        known = [HeadResult(**values) for values in read_lines(heads, *HeadResult.__dataclass_fields__)]
        done = count(len(known) + 1)

        judged_count = _judged_count(settings)

        def keep(result: HeadResult, total: int) -> None:
            append_line(heads, asdict(result))
            report(next(done), total + judged_count)

        with refused_by_model(settings.name):  # what has been found by then stays
            _tell_time(settings, loaded.model, split, say)
            plan = search_calibration(
                loaded.model, by_mode(SCORES[settings.score], settings.mode), searched,
                alpha=settings.alpha, beta=settings.beta, mode=settings.mode, method=settings.method,
                layers=settings.layers, surrogate=by_mode(log_probabilities, settings.mode),
                held_out=settings.held_out, seed=settings.seed, key=hash_of_sample, known=known, report=keep,
            )  # fmt: skip
            say("controls" if settings.controls else "the kept heads together")
            tried = len(plan.scores["heads"])
            whole = tried + judged_count
            cells = Cells(output / CELLS, settings.mode, lambda done: report(tried + done, whole))
            judged = _judged(settings, loaded.model, tasks, split, plan, cells)
            report(whole, whole)  # where no head is kept, nothing is compared
        chosen_on = {name: sorted(map(hash_of_sample, some)) for name, some in split.search.items()}
        replace(plan, scores={**plan.scores, CHOSEN_ON: chosen_on}).save(output / "plan.json")
        values = {"tasks": standings, "heads_alone": plan.scores["heads"], **plan.scores, "heads": plan.heads, **judged}
        return saved(Search, values, settings, loaded, output, seconds=perf_counter() - started)


def _check_method(settings: SearchSettings, searched: Mapping[str, Sequence[Sample]]) -> None:
    """
    Raises:
        InputError: lower layers cannot run once where a sample's answer is generated token by token.
    """
    for name, samples in searched.items():
        if settings.method == "cached" and any(sample.answers and sample.longest > 1 for sample in samples):
            raise InputError(
                f"--method cached cannot score the open answers of {name}, whose later tokens depend on earlier ones; "
                "use --method exhaustive or screen"
            )


def _tell_time(settings: SearchSettings, model: PreTrainedModel, split: Split, say: Callable[[str], None]) -> None:
    last, maps = model.config.get_text_config().num_hidden_layers, heads_by_layer(model)
    layers = range(last) if settings.layers is None else sorted(set(settings.layers))
    heads = sum(maps.get(layer, 0) for layer in layers)
    searched = [sample for some in split.search.values() for sample in some]
    held_out = [sample for some in split.held_out.values() for sample in some]
    evaluations = {
        "exhaustive": float(heads),
        "cached": sum(maps.get(layer, 0) * (1 - layer / last) for layer in layers),
        "screen": max(1.0, SCREENED_SHARE * heads),
    }[settings.method]
    share = (_judged_count(settings) + 2) * tokens_of(held_out) / max(1, tokens_of(searched))
    seconds = (evaluations + 2 + share) * measured_seconds(model, searched, settings.mode)
    say(f"{heads} heads, {len(searched)} samples to search by: {spoken_time(seconds)} in all")


def _judged_count(settings: SearchSettings) -> int:
    """Number of settings that are judged if a head is kept: none, the kept heads, and their controls."""
    return 2 + (len([*controls_of((), (), settings.seed, settings.mode)]) if settings.controls else 0)


def _judged(
    settings: SearchSettings,
    model: PreTrainedModel,
    tasks: Mapping[str, Task],
    split: Split,
    plan: CalibrationPlan,
    cells: Cells,
) -> dict[str, Any]:
    """The kept heads and their controls on the samples that chose no head, by measures side by side."""
    held = {name: replace(tasks[name], samples=some) for name, some in split.held_out.items()}
    plain = cells.evaluate("plain", model, held, nullcontext)
    rule = settings.alpha, settings.beta, settings.mode
    kept = [(layer, head) for layer, heads in plan.heads.items() for head in heads]
    among = plan.scores.get("slopes", plan.scores["heads"])  # the screen chooses among more than it tries
    tried = [(int(layer), int(head)) for layer, _, head in (name.partition(".") for name in among)]
    found, rows = plain, []
    controls = controls_of(kept, tried, settings.seed, settings.mode) if settings.controls else ()
    for control in (Control("kept heads", kept), *controls) if kept else ():
        key = json.dumps([control.setting, control.heads])
        cell = cells.evaluate(key, model, held, partial(control.applied, model, *rule))
        found = cell if control.setting == "kept heads" else found
        changes = changes_of(cell.score(settings.score), plain.score(settings.score), rounding=plan.scores["rounding"])
        rows.append({
            "setting": control.setting, "heads": len(control.heads), "gain": mean_of(changes),
            "gain_interval": list(gain_interval(changes, seed=settings.seed)), **directions(changes),
            "mean_centred_gain": cell.centred_accuracy() - plain.centred_accuracy() if plain.labels else None,
        })  # fmt: skip
    return {"measures": plain.measures(), "measures_calibrated": found.measures(), "controls": rows}


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
            say(f"{row['task']}: {not_above_chance(row)}, so it is not searched")
    found: dict[str, Sequence[Sample]] = {
        row["task"]: tasks[row["task"]].samples for row in standings if row["above_chance"]
    }
    if not found:
        listed = ", ".join(f"{row['task']}: {not_above_chance(row)}" for row in standings)
        raise InputError(
            f"--task: {model} is not shown to be better than chance ({listed}), so there is nothing to search; use "
            "tasks it can solve, more --shots or more --samples"
        )
    return found
