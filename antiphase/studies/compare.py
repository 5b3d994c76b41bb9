"""Arms trained on the same data in the same order, and what their attention does then, beside untrained models."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from antiphase.config import CompareSettings, Preset, RunSettings, arm_run
from antiphase.data.prepare import PreparedData, check_task, prepare
from antiphase.data.retrieval import RetrievalTask
from antiphase.errors import InputError, naming
from antiphase.evals.allocation import allocation, attention_map, batches_of
from antiphase.evals.effects import with_effects
from antiphase.evals.loading import load_model, refused_by_model
from antiphase.evals.needles import needle_grid, predictor, summarize, tasks_of
from antiphase.evals.perplexity import losses_by_sequence, perplexity
from antiphase.folders.contents import check_content
from antiphase.folders.held import only_one, undone_if_refused
from antiphase.folders.work import Resumable
from antiphase.randomness import keyed_generator
from antiphase.records import Record, finite, write_atomically
from antiphase.studies.comparison import claims_of, compared
from antiphase.studies.jobs import Job, Report, is_diverged, parallel_runs, run_jobs
from antiphase.studies.registration import Registration, register, registered
from antiphase.training.loop import LanguageModel, build_model, check_settings, choose_device
from antiphase.training.run_folder import WITHOUT_EFFECT, read_curve
from antiphase.typed import build, dotted

SETTINGS = "compare.yaml"
STUDY = Resumable.named("study", SETTINGS)
MAY_CHANGE = ("run.description", "compare.processes", *(f"run.{name}" for name in WITHOUT_EFFECT))
"""Settings that a resumed study may change: they change no result."""
FIRST_PAGE, NEXT_PAGES = 20.0, 30.0
"""Seconds of training after which an unfinished comparison is first shown, and between later ones."""
MAP_QUERIES = 64
"""Rows of the pictured attention map: the last ones up to the end of the first question."""


@dataclass(frozen=True)
class Study:
    """A comparison that is about to run."""

    preset: Preset
    output: Path

    @property
    def jobs(self) -> list[Job]:
        """Runs in the order in which they start: all arms of a seed, then the next seed."""
        settings = self.preset.compare
        run = self.preset.run
        if run.data.source == "text":
            given = run.data.cache
            cache = given if given is not None and Path(given).is_dir() else str(self.output / "tokens")
            run = replace(run, data=replace(run.data, cache=cache))
        return [
            Job(f"{arm}-seed{seed}", arm, seed, arm_run(run, settings, arm, seed=seed))
            for seed in settings.seeds
            for arm in settings.arms
        ]


def compare(
    preset: Preset,
    output: Path,
    *,
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
    begin: Callable[[], None] = lambda: None,
    watch: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Train every arm with every seed, measure all, and write ``record.json`` in ``output``.

    Args:
        resume: go on with the study that ``output`` holds.
        report: called when a run has new metrics.
        say: called with what happens outside the runs.
        begin: called before anything is read, to make what arms start from.
        watch: called now and then during training with a record of what there is so far: the curves.

    Returns:
        The record of kind "compare".

    Raises:
        InputError: settings or files that cannot be used, or a folder that holds another study.
        Interrupted: Ctrl-C; ``resume`` goes on from the checkpoints.
    """
    if len(preset.compare.arms) < 2:
        raise InputError("compare.arms must hold at least two arms")
    study = Study(preset, output)
    jobs = study.jobs
    settings = {"run": asdict(preset.run), "compare": asdict(preset.compare)}
    check_study(output, settings, resume=resume)
    with only_one(output):
        started = time.perf_counter()
        is_new = not (output / SETTINGS).is_file()
        with setting_up(output, settings):
            if is_new:
                claims = claims_of(preset)
                register(output, primary=claims[0]["name"], seeds=preset.compare.seeds, claims=claims)
            begin()
            data = prepare(jobs[0].settings.data, output / "tokens", progress=say)
            check_sizes(preset, jobs, data)
            check_content(output, data.content)
        cores = os.cpu_count() or 1
        at_once = parallel_runs(jobs, preset.compare.processes, cores)
        showing = _showing(study, jobs, data, report, watch)
        run_jobs(jobs, output, processes=at_once, cores=cores, report=showing)
        say("measuring retrieval, loss and attention of every model, trained and untrained")
        registration = registered(output)
        values, arrays = measure(study, jobs, data, registration)
        record = Record(
            kind="compare",
            values=values,
            arrays=arrays,
            config=finite({
                "preset": preset.name, "run": preset.run, "compare": preset.compare,
                "registered": None if registration is None else registration.describe(),
            }),
            seeds=list(preset.compare.seeds),
            seconds=time.perf_counter() - started,
        )  # fmt: skip
        record.save(output)
    return record


def _showing(
    study: Study, jobs: Sequence[Job], data: PreparedData, report: Report, watch: Callable[[Record], None]
) -> Report:
    """``report``, and from time to time ``watch`` with the curves so far."""
    due = time.monotonic() + FIRST_PAGE

    def show(job: Job, step: int, values: dict[str, Any]) -> None:
        nonlocal due
        report(job, step, values)
        if time.monotonic() >= due:
            record = unfinished(study, jobs, guess_rate=data.task().guess_rate)
            if record is not None:
                watch(record)
            due = time.monotonic() + NEXT_PAGES

    return show


def unfinished(study: Study, jobs: Sequence[Job], *, guess_rate: float) -> Record | None:
    """What a comparison has so far: every run's evaluations; None before the second one. It is for pages, not kept."""
    curves = {job: read_curve(study.output / job.name) for job in jobs}
    if max(map(len, curves.values())) < 2:
        return None
    settings = study.preset.compare
    runs = [{"arm": job.arm, "seed": job.seed, "folder": job.name, "curve": curve} for job, curve in curves.items()]
    done = sum(curve[-1]["step"] for curve in curves.values() if curve)
    values = {
        "arms": list(settings.arms), "threshold": settings.threshold, "guess_rate": guess_rate, "runs": runs,
        "unfinished": done / sum(job.settings.training.steps for job in jobs),
    }  # fmt: skip
    return Record(kind="compare", values=values, seeds=list(settings.seeds))


def check_sizes(preset: Preset, jobs: Sequence[Job], data: PreparedData) -> None:
    """What would otherwise be refused by the first run, or after the last.

    Raises:
        InputError: a size or device that cannot be used; the message names the field.
    """
    for job in jobs[: len(preset.compare.arms)]:
        check_settings(job.settings, data.tokenizer)
    grid = {"needles": "data.needles", "queries": "data.queries", "lengths": "data.sequence_length"}
    with naming({field: f"evaluation.{name}" for name, field in grid.items() if getattr(preset.run.evaluation, name)}):
        for task in _tasks(preset.run, data):
            check_task(task)


def check_study(output: Path, settings: dict[str, Any], *, resume: bool) -> None:
    """Whether the folder can hold this study: it is free, or holds this very study and ``--resume`` was given.

    Raises:
        InputError: it holds something else, other settings, or this study without ``--resume``.
    """
    if STUDY.begun(output, resume=resume):
        before, now = dotted(_settings_of(output / SETTINGS)), dotted(yaml.safe_load(_settings_text(settings)))
        STUDY.check_same(output, before, now, free=MAY_CHANGE)


def _settings_of(path: Path) -> dict[str, Any]:
    """What a study was begun with; settings that did not exist then have their defaults.

    Raises:
        InputError: the file was changed into something that cannot be read.
    """
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
        run, compare = build(RunSettings, tree["run"]), build(CompareSettings, tree["compare"], path="compare")
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(
            f"--output {path.parent}: {path.name} cannot be read ({reason}); choose another folder"
        ) from None
    return {**tree, "run": asdict(run), "compare": asdict(compare)}


@contextmanager
def setting_up(output: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Write the study's settings; if what follows is refused, nothing stays behind."""
    with undone_if_refused(output):
        if not (output / SETTINGS).is_file():
            write_atomically(output / SETTINGS, _settings_text(settings).encode())
        yield


def _settings_text(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False)


def measure(
    study: Study, jobs: Sequence[Job], data: PreparedData, registration: Registration | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All numbers of a finished comparison, and the arrays of its attention maps. A run that diverged has no model."""
    settings, run = study.preset.compare, study.preset.run
    cells: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    pictured = _pictured_sequence(data)
    runs = []
    for job in jobs:
        folder = str(study.output / job.name)
        values = Record.load(folder).values
        device = choose_device(job.settings.training.device)
        trained = None if is_diverged(values) else load_model(folder, device=str(device)).model
        untrained = build_model(job.settings, data.tokenizer, seed=job.seed).eval().to(device)
        for model, is_trained in ((trained, True), (untrained, False)):
            if model is None:
                continue
            tags = {"arm": job.arm, "seed": job.seed, "trained": is_trained}
            with refused_by_model(folder):
                cells += [{**tags, **cell} for cell in _needles(model, run, data, seed=job.seed)]
                if _has_attention(job.settings):
                    rows += [{**tags, **row} for row in _allocation(model, run, data)]
                losses.append({**tags, **perplexity(model, data.validation(run.evaluation.validation_sequences))})
        if trained is not None and job.seed == settings.seeds[0] and _has_attention(job.settings):
            maps = attention_map(trained, pictured.input_ids, queries=slice(*pictured.rows))
            arrays[f"attention_map.{job.arm}"] = maps.cpu().numpy()
        by_sequence = None
        if trained is not None:
            held_out = data.validation(run.evaluation.validation_sequences)
            by_sequence = [round(loss, 6) for loss in losses_by_sequence(trained, held_out)]
        passes = first_passing(values["curve"], settings.threshold)
        runs.append({"arm": job.arm, **values, "passes": passes, "by_sequence": by_sequence})
    arms = list(settings.arms)
    summary = [
        {"arm": arm, "trained": trained, **row}
        for arm in arms
        for trained in (True, False)
        for row in summarize([cell for cell in cells if (cell["arm"], cell["trained"]) == (arm, trained)])
    ]
    values = {
        "source": run.data.source,
        "arms": arms,
        "baseline": arms[0],
        "threshold": settings.threshold,
        "guess_rate": data.task().guess_rate,
        "parameters": {
            arm: next(
                {"total": r["parameters"], "attention_only": r["attention_only"]} for r in runs if r["arm"] == arm
            )
            for arm in arms
        },
        "runs": runs,
        "needles": {"cells": cells, "summary": summary},
        "perplexity": losses,
        "allocation": rows,
        "attention_map": pictured.describe(
            [arm for arm in arms if f"attention_map.{arm}" in arrays], layers=run.model.num_hidden_layers
        ),
        **compared(
            settings,
            runs,
            guess_rate=data.task().guess_rate,
            curve_samples=run.evaluation.curve_samples,
            registered=registration,
        ),
    }
    return finite(values), arrays


def _tasks(run: RunSettings, data: PreparedData) -> list[RetrievalTask]:
    """Of the needle grid."""
    evaluation = run.evaluation
    return tasks_of(data.task, needles=evaluation.needles, queries=evaluation.queries, lengths=evaluation.lengths)


def _needles(model: LanguageModel, run: RunSettings, data: PreparedData, *, seed: int) -> list[dict[str, Any]]:
    """The needle grid; all arms of a seed meet the same sequences, other seeds meet others."""
    evaluation = run.evaluation
    return needle_grid(
        predictor(model),
        _tasks(run, data),
        depths=evaluation.depths,
        samples=evaluation.samples,
        seed=seed,
    )


def _has_attention(run: RunSettings) -> bool:
    """Whether there is anything to see of where a model looks: recurrent networks carry a state instead."""
    return run.model.kind == "transformer"


def _allocation(model: LanguageModel, run: RunSettings, data: PreparedData) -> list[dict[str, Any]]:
    batch = data.task().sample(run.evaluation.samples, keyed_generator("allocation"))
    return with_effects(allocation(model, batch), model, batches_of(batch))


def first_passing(curve: Iterable[dict[str, Any]], threshold: float) -> int | None:
    """Step of the first point of a curve whose accuracy is above the threshold; None where there is none."""
    for point in curve:
        if point.get("accuracy") is not None and point["accuracy"] > threshold:
            return int(point["step"])
    return None


@dataclass(frozen=True)
class _Pictured:
    """The sequence whose attention is drawn."""

    input_ids: torch.Tensor
    tokens: list[str]
    rows: tuple[int, int]
    answer: list[int]

    def describe(self, arms: Sequence[str], *, layers: int) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "query": self.rows[1] - 1,
            "rows": list(range(*self.rows)),
            "answer": self.answer,
            "layers": layers,
            "arrays": {arm: f"attention_map.{arm}" for arm in arms},
        }


def _pictured_sequence(data: PreparedData) -> _Pictured:
    """One held-out retrieval prompt, up to the end of its first question."""
    batch = data.task().sample(1, keyed_generator("picture"), depth=0.5)
    end = int(batch.prompt_end[0]) + 1
    ids = batch.input_ids[:, :end]
    return _Pictured(
        input_ids=ids,
        tokens=[data.tokenizer.decode([index]) for index in ids[0].tolist()],
        rows=(max(0, end - MAP_QUERIES), end),
        answer=batch.spans["answer"][0, :end].nonzero().flatten().tolist(),
    )
