"""Arms trained on the same data in the same order, and what their attention does, compared with untrained models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record, finite
from antiphase.base.typed import build
from antiphase.lab.scoring.allocation import attention_map, batches_of
from antiphase.lab.scoring.effects import allocation_with_effects
from antiphase.lab.scoring.likelihood import Predict
from antiphase.lab.scoring.loading import load_model, refused_by_model
from antiphase.lab.scoring.needles import crossings, needle_grid, predictor, summarize
from antiphase.lab.scoring.perplexity import losses_by_sequence, perplexity
from antiphase.lab.settings.presets import Preset, RunSettings
from antiphase.lab.studies.claims import Registration, register, registered
from antiphase.lab.studies.compare import (
    RANDOM,
    STARTS,
    ComparedRun,
    Comparison,
    ComparisonSettings,
    Parameters,
    Picture,
    Sample,
)
from antiphase.lab.studies.compare.comparison import claim_of, compared
from antiphase.lab.studies.grid import Grid, needle_tasks
from antiphase.lab.studies.jobs import Job, Report
from antiphase.lab.studies.plan import Plan, described
from antiphase.lab.studies.runs import CurvePoint
from antiphase.lab.text.prepare import PreparedData
from antiphase.lab.text.retrieval import RetrievalBatch
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.run_folder import read_curve
from antiphase.lab.training.run_model import starting_model

FIRST_PAGE, NEXT_PAGES = 20.0, 30.0
"""Seconds of training after which an unfinished comparison is first shown, and between later ones."""
SAMPLES, SHOWN_TOKENS = 3, 8
"""Texts whose answers are shown, and how many tokens of each."""
MAP_QUERIES = 64
"""Rows of the pictured attention map: the last ones up to the end of the first question."""


def plan(settings: ComparisonSettings, output: Path) -> Plan:
    """``compare`` with these settings."""
    preset = settings.chosen_preset()
    work = partial(compare, preset, executor=executor_of(settings))
    return Plan.of_runs(work, Grid(preset, output).jobs, [described(preset)], is_watched=True)


def compare(
    preset: Preset,
    output: Path,
    *,
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
    executor: Executor = LOCAL,
    begin: Callable[[], None] = lambda: None,
    watch: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Train every arm with every seed, measure all, and write ``record.json`` in ``output``.

    Args:
        resume: continue the study that ``output`` holds.
        report: called when a run has new metrics.
        say: called with what happens outside the runs.
        executor: where the runs are made.
        begin: called before anything is read, to make what arms start from.
        watch: called now and then during training with a record of what there is so far: the curves; and once more if
            the work stops after that.

    Returns:
        The record of kind "compare".

    Raises:
        InputError: settings or files that cannot be used, or a folder that holds another study.
        Interrupted: Ctrl-C; ``resume`` continues from the checkpoints.
    """
    if len(preset.compare.arms) < 2:
        raise InputError("compare.arms must hold at least two arms")
    grid = Grid(preset, output, executor=executor)

    def first() -> None:
        if not any((output / job.name).exists() for job in grid.jobs):  # it is new, or was stopped before its first run
            register(output, claim_of(preset))
        begin()

    started = time.perf_counter()
    with grid.held(resume=resume, say=say, begin=first) as data, _showing(grid, data, report, watch) as show:
        grid.train(show, say)
        claim = registered(output, claim_of(preset))
        values, arrays = measure(grid, data, claim, say)
        record = grid.save("compare", values, started=started, arrays=arrays, claim=claim)
        Comparison.of(record)  # it can be read back
        return record


@contextmanager
def _showing(grid: Grid, data: PreparedData, report: Report, watch: Callable[[Record], None]) -> Iterator[Report]:
    """``report``, and from time to time ``watch`` with the curves so far; once more if the work stops."""
    due, is_shown, is_stopped = time.monotonic() + FIRST_PAGE, False, True

    def show(job: Job, step: int, values: dict[str, Any]) -> None:
        nonlocal due, is_shown
        report(job, step, values)
        if time.monotonic() >= due:
            record = unfinished(grid, guess_rate=data.task().guess_rate)
            if record is not None:
                watch(record)
                is_shown = True
            due = time.monotonic() + NEXT_PAGES

    try:
        yield show
        is_stopped = False
    except OSError:  # a page could not be written either, and would say less
        is_stopped = False
        raise
    finally:
        last = unfinished(grid, guess_rate=data.task().guess_rate, stopped=True) if is_shown and is_stopped else None
        if last is not None:
            watch(last)


def unfinished(grid: Grid, *, guess_rate: float, stopped: bool | None = None) -> Record | None:
    """What a comparison has so far: every run's evaluations; None before the second one. It is for pages, not kept."""
    curves = {job: [build(CurvePoint, point) for point in read_curve(grid.output / job.name)] for job in grid.jobs}
    if max(map(len, curves.values())) < 2:
        return None
    settings = grid.preset.compare
    runs = [ComparedRun(arm=job.arm, seed=job.seed, folder=job.name, curve=curve) for job, curve in curves.items()]
    done = sum(curve[-1].step for curve in curves.values() if curve)
    found = Comparison(
        arms=list(settings.arms), threshold=settings.threshold, guess_rate=guess_rate, runs=runs,
        unfinished=done / sum(job.settings.training.steps for job in grid.jobs), stopped=stopped,
    )  # fmt: skip
    return Record(kind="compare", values=finite(found), seeds=list(settings.seeds))


def measure(
    grid: Grid, data: PreparedData, claim: Registration | None, say: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All numbers of a finished comparison, and the arrays of its attention maps. A run that diverged has no model."""
    settings, run = grid.preset.compare, grid.preset.run
    cells: list[dict[str, Any]] = []
    crossed: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    ids, pictured = _picture(data)
    answers: dict[str, list[str]] = {}
    evaluation, tasks = run.evaluation, needle_tasks(run, data)
    asked = data.task().sample(evaluation.samples, keyed_generator("allocation"))
    held_out = data.validation(evaluation.validation_sequences)
    runs = []
    for number, job in enumerate(grid.jobs, start=1):
        say(f"measuring {job.name}, trained and untrained, {number} of {len(grid.jobs)}: retrieval, loss, attention")
        folder = str(grid.output / job.name)
        found = grid.result(job)
        device = choose_device(job.settings.training.device)
        trained = None if found.is_diverged else load_model(folder, device=str(device)).model
        untrained = starting_model(job.settings, data.tokenizer).eval().to(device)
        for model, is_trained in ((trained, True), (untrained, False)):
            if model is None:
                continue
            tags = {"arm": job.arm, "seed": job.seed, "trained": is_trained}
            with refused_by_model(folder):
                grid_cells = needle_grid(  # all arms of a seed read the same sequences, other seeds others
                    predictor(model), tasks, depths=evaluation.depths, samples=evaluation.samples, seed=job.seed
                )  # fmt: skip
                cells += [{**tags, **cell} for cell in grid_cells]
                crossed += [{**tags, **row} for row in crossings(grid_cells)]
                if _has_attention(job.settings):
                    allocated = allocation_with_effects(model, batches_of(asked))
                    rows += [{**tags, **row} for row in allocated]
                losses.append({**tags, **perplexity(model, held_out)})
        by_sequence: list[float | None] | None = None
        if trained is not None:
            by_sequence = [round(loss, 6) for loss in losses_by_sequence(trained, held_out)]
            if job.seed == settings.seeds[0]:
                answers[job.arm] = _answers(data, predictor(trained))
            if job.seed == settings.seeds[0] and _has_attention(job.settings):
                maps = attention_map(trained, ids, queries=slice(-MAP_QUERIES, None))
                arrays[f"attention_map.{job.arm}"] = maps.cpu().numpy()
        passes = found.first_passing(settings.threshold)
        runs.append(ComparedRun(arm=job.arm, passes=passes, by_sequence=by_sequence, **vars(found)))
    arms = list(settings.arms)
    untrained_are = dict.fromkeys(RANDOM if job.settings.training.start_from is None else STARTS for job in grid.jobs)
    guess_rate = data.task().guess_rate
    common = compared(settings, runs, guess_rate=guess_rate, claim=claim)
    values = {
        "source": run.data.source,
        "arms": arms,
        "baseline": arms[0],
        "threshold": settings.threshold,
        "guess_rate": guess_rate,
        "parameters": {run.arm: Parameters(total=run.parameters, attention_only=run.attention_only) for run in runs},
        "runs": runs,
        "untrained": " or ".join(untrained_are),
        "needles": {"cells": cells, "summary": _summaries(arms, cells), "crossings": crossed},
        "perplexity": losses,
        "allocation": rows,
        "attention_map": replace(
            pictured, layers=run.model.num_hidden_layers, arrays={name.partition(".")[2]: name for name in arrays}
        ),
        "samples": _samples(data, answers),
        **vars(common),
    }
    return finite(values), arrays


def _samples(data: PreparedData, answers: Mapping[str, Sequence[str]]) -> list[Sample]:
    """The texts of ``_shown_texts``, with the answers of each arm."""
    batch = _shown_texts(data)
    rights = _answers(data, lambda ids, positions: ids.gather(1, positions.clamp(min=0)))
    return [
        Sample(
            question=data.tokenizer.decode(ids[max(0, end - SHOWN_TOKENS + 1) : end + 1]),
            right=right,
            answers={arm: own[row] for arm, own in answers.items()},
        )
        for row, (ids, end, right) in enumerate(
            zip(batch.input_ids.tolist(), batch.prompt_end.tolist(), rights, strict=True)
        )
    ]


def _answers(data: PreparedData, predict: Predict) -> list[str]:
    """The answer to the first question of each shown text, by its most likely tokens after the right ones."""
    batch = _shown_texts(data)
    positions = batch.answer_positions[:, 0]
    found = predict(batch.input_ids, positions)
    return [data.tokenizer.decode(ids[own >= 0]).strip() for ids, own in zip(found.cpu(), positions, strict=True)]


def _shown_texts(data: PreparedData) -> RetrievalBatch:
    return data.task().sample(SAMPLES, keyed_generator("samples"))


def _summaries(arms: Sequence[str], cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The grid of needles of each arm, trained and untrained, over its seeds."""
    return [
        {"arm": arm, "trained": trained, **row}
        for arm in arms
        for trained in (True, False)
        for row in summarize([cell for cell in cells if (cell["arm"], cell["trained"]) == (arm, trained)])
    ]


def _has_attention(run: RunSettings) -> bool:
    """Whether a model has attention to look at; recurrent networks carry a state instead."""
    return run.model.kind == "transformer"


def _picture(data: PreparedData) -> tuple[torch.Tensor, Picture]:
    """One held-out retrieval prompt, up to the end of its first question: ids (1, N), and what is told of them."""
    batch = data.task().sample(1, keyed_generator("picture"), depth=0.5)
    end = int(batch.prompt_end[0]) + 1
    ids = batch.input_ids[:, :end]
    return ids, Picture(
        tokens=[data.tokenizer.decode([index]) for index in ids[0].tolist()],
        query=end - 1,
        rows=list(range(max(0, end - MAP_QUERIES), end)),
        answer=batch.spans["answer"][0, :end].nonzero().flatten().tolist(),
    )
