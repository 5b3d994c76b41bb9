"""Find heads to calibrate, and use a plan, from request to record: ``antiphase calibrate search`` and ``apply``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.calibration.apply import calibrated
from antiphase.calibration.changes import changes_of, gain_interval, mean_of
from antiphase.calibration.plan import CalibrationPlan, fingerprint
from antiphase.calibration.search import (
    METHODS,
    NO_SINKS,
    HeadResult,
    Score,
    scores_of,
    search_calibration,
    split_samples,
)
from antiphase.errors import InputError, nearest
from antiphase.folders.contents import hash_of
from antiphase.folders.held import new_folder, undone_if_refused
from antiphase.folders.journal import append_line, read_lines
from antiphase.folders.work import Work, work_in
from antiphase.records import Record, finite
from antiphase.scoring.likelihood import generated_tokens
from antiphase.scoring.loading import LoadedModel, load_model, refused_by_model
from antiphase.tasks.samples import Sample, Task
from antiphase.tasks.task_scores import log_probabilities, probabilities, score_samples
from antiphase.tasks.tasks import load_task
from antiphase.training.device import choose_device
from antiphase.uncertainty.intervals import wilson_interval

SCORES: dict[str, Score] = {"metric": score_samples, "probability": probabilities}
"""What a search may raise: the task's own metric, or the probability of the right answer."""
HEADS = "heads.jsonl"
CHOSEN_ON = "chosen_on"
"""In a plan's scores: hashes of the samples that chose its heads."""
LEAST_JUDGES = 10
"""Samples of a task that a gain may rest on; fewer say nothing about its spread."""


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """Which tasks, and how much of them."""

    tasks: Sequence[str]
    """Task files."""
    samples: int = 200
    """Of each data set."""
    shots: int | None = None
    """None: what the task file says."""
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """Raise an InputError for a size out of range; it names the flag."""
        if not self.tasks:
            raise InputError("--task is missing: a YAML file, for example with 'template: trec' and 'data: FILE'")
        if len(set(self.tasks)) < len(self.tasks):
            raise InputError("--task must not name a file twice")
        if self.samples < 2:
            raise InputError(f"--samples must be at least 2, got {self.samples}")
        if self.shots is not None and self.shots < 0:
            raise InputError(f"--shots must not be below 0, got {self.shots}")


@dataclass(frozen=True, kw_only=True)
class SearchRequest(TaskRequest):
    """What ``antiphase calibrate search`` was asked for."""

    name: str
    """Local folder or Hub name of a model."""
    alpha: float = 5.0
    beta: float = 0.4
    mode: str = "prompt"
    method: str = "exhaustive"
    layers: Sequence[int] | None = None
    score: str = "metric"
    held_out: float = 0.5

    def check(self) -> None:
        """Raise an InputError for a value out of range; it names the flag."""
        super().check()
        if self.method not in METHODS:
            raise InputError(f"--method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.score not in SCORES:
            raise InputError(f"--score must be one of {', '.join(SCORES)}{nearest(self.score, SCORES)}")
        if not 0 < self.held_out < 1:
            raise InputError(f"--held-out must lie between 0 and 1, got {self.held_out}")
        CalibrationPlan({}, self.alpha, self.beta, self.mode)


def load_tasks(request: TaskRequest, loaded: LoadedModel) -> dict[str, Task]:
    """The tasks by name.

    Raises:
        InputError: a task cannot be used, or two have one name.
    """
    longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    found: dict[str, Task] = {}
    for path in request.tasks:
        task = load_task(
            path,
            loaded.tokenizer,
            samples=request.samples,
            shots=request.shots,
            seed=request.seed,
            longest=longest,
            run=loaded.settings,
        )
        if task.name in found:
            raise InputError(f"--task {path}: another task has the name {task.name} too; give it a name of its own")
        found[task.name] = task
    return found


def by_mode(score: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """A score that feeds labels as decoding would, where a call's own queries choose the sinks."""
    return partial(score, stepwise=mode == "paper")


def check_model(model: PreTrainedModel, tasks: Mapping[str, Task], mode: str) -> None:
    """Raise a ValueError for a model that cannot be calibrated, before anything long begins."""
    count = getattr(model.config.get_text_config(), "num_attention_heads", 0)
    plan = CalibrationPlan({0: range(max(1, count))}, alpha=NO_SINKS, mode=mode)
    with calibrated(model, plan):
        by_mode(score_samples, mode)(model, [next(iter(tasks.values())).samples[0]])


def check_judges(task: str, count: int) -> None:
    """Raise an InputError where so few samples are left to judge by that a gain would say nothing."""
    if count < LEAST_JUDGES:
        raise InputError(
            f"--task {task}: {count} samples are left to measure the gain, but {LEAST_JUDGES} are needed; give more "
            "data or --samples"
        )


def check_layers(layers: Sequence[int] | None, model: PreTrainedModel) -> None:
    """Raise an InputError for a layer that the model does not have."""
    last = getattr(model.config.get_text_config(), "num_hidden_layers", 0) - 1
    if layers is not None and max(layers) > last:
        raise InputError(f"--layers names layer {max(layers)}, but the model's layers are 0 to {last}")


def standing(task: Task, values: Tensor) -> dict[str, Any]:
    """A model's score beside what needs no reading of the prompt.

    It is above chance where a one-sided binomial test says so at 5 %, or, where chance is 0, where any is right.
    """
    score, count = float(values.mean()), len(values)
    found: dict[str, Any] = {"task": task.name, "metric": task.metric, "samples": count, "score": score}
    if task.chance:
        right = round(float(values.sum()))
        test = stats.binomtest(right, count, task.chance, alternative="greater")
        above = bool(test.pvalue < 0.05)
        found["interval"] = list(wilson_interval(right, count))
    else:
        above = score > 0
    return {**found, "chance": task.chance, "above_chance": above}


def search(
    request: SearchRequest,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Find the heads whose calibration raises the score on the tasks. Writes ``plan.json`` and ``record.json``.

    Every head's result is written as soon as it is known, so that a search can go on after a kill.

    Raises:
        InputError: a model, task or value that cannot be used, tasks at chance only, a folder with other contents.
    """
    request.check()
    heads = output / HEADS
    started = time.perf_counter()
    with work_in(output, request, resume=resume) as work:
        with undone_if_refused(output), refused_by_model(request.name):
            loaded = load_model(request.name, device=str(choose_device(request.device)))
            check_layers(request.layers, loaded.model)
            tasks = load_tasks(request, loaded)
            check_model(loaded.model, tasks, request.mode)
            begin(work, loaded.model, tasks)
            standings = []
            for name, task in tasks.items():
                say(f"{name}: how the model does without calibration")
                values = scores_of(loaded.model, score_samples, {name: task.samples})[name]
                standings.append(standing(task, values))
            searched = {row["task"]: tasks[row["task"]].samples for row in standings if row["above_chance"]}
            for row in standings:
                if not row["above_chance"]:
                    words = f"{100 * row['score']:.1f} % is not above chance ({100 * row['chance']:.1f} %)"
                    say(f"{row['task']}: {words}, so it is not searched")
            if not searched:
                listed = ", ".join(f"{row['task']} {100 * row['score']:.1f} %" for row in standings)
                raise InputError(
                    f"--task: {request.name} is no better than chance ({listed}), so there is nothing to search; use "
                    "tasks it can solve, more --shots or more --samples"
                )
            split = split_samples(searched, held_out=request.held_out, seed=request.seed)
            for name, judges in split.held_out.items():
                check_judges(name, len(judges))
        known = _known(heads)
        done = [len(known)]

        def keep(result: HeadResult, count: int) -> None:
            append_line(heads, asdict(result))
            done[0] += 1
            report(done[0], count)

        with refused_by_model(request.name):  # what has been found by then stays
            plan = search_calibration(
                loaded.model, by_mode(SCORES[request.score], request.mode), searched,
                alpha=request.alpha, beta=request.beta, mode=request.mode, method=request.method,
                layers=request.layers, surrogate=by_mode(log_probabilities, request.mode), held_out=request.held_out,
                seed=request.seed, known=known, report=keep,
            )  # fmt: skip
        known_samples = {name: sorted(map(hash_of_sample, some)) for name, some in split.search.items()}
        plan = replace(plan, scores={**plan.scores, CHOSEN_ON: known_samples})
        plan.save(output / "plan.json")
        record = Record(
            kind="calibrate-search",
            values=finite(
                {
                    "model": request.name,
                    "tasks": standings,
                    "heads_alone": plan.scores["heads"],
                    **{name: value for name, value in plan.scores.items() if name not in ("heads", CHOSEN_ON)},
                    "heads": {str(layer): maps for layer, maps in plan.heads.items()},
                }
            ),
            config=finite(asdict(request)),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def begin(work: Work, model: PreTrainedModel, tasks: dict[str, Task]) -> None:
    """Keep what is worked on, or refuse to go on with another model or other samples.

    Raises:
        InputError: the model or the tasks changed since the work began.
    """
    prompts = {
        name: hash_of([[s.prompt, s.options, s.answers, s.target, s.lengths, s.metric] for s in task.samples])
        for name, task in tasks.items()
    }
    work.begin(
        {"model": fingerprint(model), "samples": prompts},
        {"model": "MODEL holds other weights", "samples": "the tasks' data has changed"},
    )


def hash_of_sample(sample: Sample) -> str:
    """By what a sample is known again, behind other examples too: its own text, what may follow, what is right."""
    parts = {name: (start, stop) for name, start, stop in sample.spans}
    start, stop = parts.get("question", (0, len(sample.prompt)))
    options = [sample.decode(list(option)) for option in sample.options]
    text = sample.decode(list(sample.prompt[start:stop])).strip()
    return hash_of([text, options, sample.answers, sample.target])[:16]


def _known(path: Path) -> list[HeadResult]:
    return [HeadResult(**values) for values in read_lines(path)]


@dataclass(frozen=True, kw_only=True)
class ApplyRequest(TaskRequest):
    """What ``antiphase calibrate apply`` was asked for."""

    name: str
    plan: str
    texts: Sequence[str] = ()
    """Prompts to go on with."""
    max_new_tokens: int = 64

    def check(self) -> None:
        """Raise an InputError for a value out of range; it names the flag."""
        if not self.tasks and not self.texts:
            raise InputError("--task or --text is missing: give what the plan should be applied to")
        if self.tasks:
            super().check()
        if self.max_new_tokens < 1:
            raise InputError(f"--max-new-tokens must be at least 1, got {self.max_new_tokens}")


def apply(
    request: ApplyRequest,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """A model with and without a plan: scores on tasks, and texts gone on with. Writes ``record.json``.

    Raises:
        InputError: a model, plan or task that cannot be used, a folder that is not empty.
    """
    request.check()
    plan = CalibrationPlan.load(request.plan)
    started = time.perf_counter()
    with new_folder(output):
        loaded = load_model(request.name, device=str(choose_device(request.device)))
        try:
            plan.check(loaded.model)
        except InputError as error:
            raise InputError(f"--plan {request.plan}: {error}") from None
        tasks = load_tasks(request, loaded) if request.tasks else {}
        with refused_by_model(request.name):
            rows = [_compared(loaded.model, plan, task, request.seed, say) for task in tasks.values()]
            texts = [_continued(loaded, plan, text, request.max_new_tokens) for text in request.texts]
        applied = {name: value for name, value in asdict(plan).items() if name != "scores"}
        record = Record(
            kind="calibrate-apply",
            values=finite({"model": request.name, "plan": applied, "tasks": rows, "texts": texts}),
            config=finite(asdict(request)),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def _chosen_on(plan: CalibrationPlan) -> set[str]:
    """Hashes of the samples that chose a plan's heads."""
    listed = plan.scores.get(CHOSEN_ON, {})
    if not isinstance(listed, dict) or not all(isinstance(hashes, list) for hashes in listed.values()):
        raise InputError(f"--plan: {CHOSEN_ON} must list hashes by task, got {listed!r}")
    return {str(number) for hashes in listed.values() for number in hashes}


def _compared(
    model: PreTrainedModel, plan: CalibrationPlan, task: Task, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    known = _chosen_on(plan)
    judges = [sample for sample in task.samples if hash_of_sample(sample) not in known]
    left_out = len(task.samples) - len(judges)
    if left_out:
        say(f"{task.name}: {left_out} of {len(task.samples)} samples chose the plan's heads and are left out")
    check_judges(task.name, len(judges))
    samples: dict[str, list[Sample]] = {task.name: judges}
    say(f"{task.name}: without the plan")
    score = by_mode(score_samples, plan.mode)
    before = scores_of(model, score, samples)
    say(f"{task.name}: with the plan")
    with calibrated(model, plan):
        after = scores_of(model, score, samples)
    changes = changes_of(after, before)
    return {
        **standing(task, before[task.name]),
        "left_out": left_out,
        "calibrated": mean_of(after),
        "gain": mean_of(changes),
        "gain_interval": list(gain_interval(changes, seed=seed)),
        "improved": int((changes[task.name] > 0).sum()),
        "worsened": int((changes[task.name] < 0).sum()),
    }


@torch.no_grad()
def _continued(loaded: LoadedModel, plan: CalibrationPlan, text: str, longest: int) -> dict[str, str]:
    ids = [loaded.tokenizer(text)["input_ids"]]
    if not ids[0]:
        raise InputError("--text must not be empty")
    limit = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and len(ids[0]) + longest > limit:
        raise InputError(
            f"--text: {len(ids[0])} tokens and --max-new-tokens {longest} are more than the {limit} it can read"
        )
    plain = generated_tokens(loaded.model, ids, longest=longest)[0]
    with calibrated(loaded.model, plan):
        changed = generated_tokens(loaded.model, ids, longest=longest)[0]
    return {
        "text": text,
        "plain": loaded.tokenizer.decode(plain, skip_special_tokens=True),
        "calibrated": loaded.tokenizer.decode(changed, skip_special_tokens=True),
    }
