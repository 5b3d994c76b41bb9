"""What search, application and study share: tasks, the uncalibrated model, held-out samples, and the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.errors import InputError, named
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.work import Work
from antiphase.base.records import Record, finite
from antiphase.calibration.apply import calibrated
from antiphase.calibration.changes import Scores
from antiphase.calibration.plan import CalibrationPlan, fingerprint, heads_by_layer
from antiphase.calibration.search import NO_SINKS, Score, Split, split_samples
from antiphase.lab.measures.result import Result
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import LoadedModel, load_model, openings_of, origins
from antiphase.lab.scoring.task_scores import probabilities, score_samples
from antiphase.lab.statistics.intervals import mcnemar, wilson_interval
from antiphase.lab.studies.calibrate.settings import ChoiceSettings, SampleSettings
from antiphase.lab.text.tasks.samples import Sample, Task
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import check_chat_template
from antiphase.lab.training.device import loading_options

SCORES: dict[str, Score] = {"metric": score_samples, "probability": probabilities}
"""What a search may increase: the task's own metric, or the probability of the right answer."""
CHOSEN_ON = "chosen_on_texts"
"""The field of a plan's scores with the hashes of the samples that chose its heads."""
TIMED_TOKENS = 1000
"""Number of tokens by which time is estimated."""
LEAST_JUDGES = 10
"""Samples of a task that a gain may rest on; fewer say nothing about its spread."""


def check(settings: ChoiceSettings) -> None:
    """
    Raises:
        InputError: a value out of range.
    """
    settings.check()
    CalibrationPlan({}, settings.alpha, settings.beta, settings.mode)


def load_tasks(settings: SampleSettings, loaded: LoadedModel) -> dict[str, Task]:
    """The tasks by name.

    Raises:
        InputError: a task cannot be used, or two have one name.
    """
    if settings.chat_template:
        check_chat_template(loaded.tokenizer, named("model", loaded.name))
    longest = context_length(loaded.model)
    found: dict[str, Task] = {}
    for path in settings.tasks:
        task = load_task(
            path, loaded.tokenizer, columns=settings.columns, samples=settings.samples, shots=settings.shots,
            seed=settings.seed, longest=longest, run=loaded.settings, chat=settings.chat_template,
        )  # fmt: skip
        if task.name in found:
            remedy = f"give one of them another, for example 'name: {task.name}-2', or rename a table"
            raise InputError(f"{path}: another task has the name {task.name!r} too", remedy)
        found[task.name] = task
    return found


def by_mode(score: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """A score that feeds labels as decoding would, where a call's own queries choose the sinks."""
    return partial(score, stepwise=mode == "paper")


def check_model(model: PreTrainedModel, tasks: Mapping[str, Task], plan: CalibrationPlan) -> None:
    """Raise a ValueError for a model that cannot be calibrated by a plan, before anything long begins."""
    with calibrated(model, plan):
        by_mode(score_samples, plan.mode)(model, [next(iter(tasks.values())).samples[0]])


def check_judges(task: str, count: int) -> None:
    """Raise an InputError where so few samples are left to judge by that a gain would say nothing."""
    if count < LEAST_JUDGES:
        raise InputError(
            f"--task {task}: {count} samples are left to measure the gain, but {LEAST_JUDGES} are needed; give more "
            "data or --samples"
        )


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


def not_above_chance(row: Mapping[str, Any]) -> str:
    """Says of a ``standing`` that it is not above chance."""
    score = f"{100 * row['score']:.1f} % of {row['samples']} samples"
    return f"{score} is not shown to be above chance ({100 * row['chance']:.1f} %)"


def directions(changes: Scores) -> dict[str, float]:
    """How many samples changed for the better and for the worse, and the exact two-sided p that both are as likely.

    That is McNemar's test where samples are right or wrong, and the sign test for other scores.
    """
    flat = torch.cat(list(changes.values()))
    improved, worsened = int((flat > 0).sum()), int((flat < 0).sum())
    return {"improved": improved, "worsened": worsened, "p": mcnemar(improved, worsened)}


def measured_seconds(model: PreTrainedModel, samples: Sequence[Sample], mode: str) -> float:
    """About how long it takes to score some samples, from a few of them of every length."""
    ordered = sorted(samples, key=lambda sample: len(sample.prompt))
    total = tokens_of(samples)
    some = ordered[:: max(1, total // TIMED_TOKENS)]
    score = by_mode(score_samples, mode)
    score(model, some[:2])
    started = perf_counter()
    score(model, some)
    return (perf_counter() - started) * total / max(1, tokens_of(some))


def tokens_of(samples: Sequence[Sample]) -> int:
    """Number of tokens of the prompts."""
    return sum(len(sample.prompt) for sample in samples)


def spoken_time(seconds: float) -> str:
    """``about 1 h 20 min``."""
    minutes = max(1, round(seconds / 60))
    return f"about {minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"about {minutes} min"


def begin(work: Work, settings: ChoiceSettings, say: Callable[[str], None]) -> tuple[LoadedModel, dict[str, Task]]:
    """The model and its tasks; what they are is kept, and half precision is told.

    Raises:
        InputError: one of them cannot be used, or is another one than when the work began.
        ValueError: a model that cannot be calibrated.
    """
    loaded = load_model(settings.name, **loading_options(settings))
    last = getattr(loaded.model.config.get_text_config(), "num_hidden_layers", 0) - 1
    if settings.layers is not None and max(settings.layers) > last:
        raise InputError(f"--layers names layer {max(settings.layers)}, but the model's layers are 0 to {last}")
    tasks = load_tasks(settings, loaded)
    first = range(heads_by_layer(loaded.model).get(0, 1))
    check_model(loaded.model, tasks, CalibrationPlan({0: first}, alpha=NO_SINKS, mode=settings.mode))
    prompts = {
        name: hash_of([[s.prompt, s.options, s.answers, s.target, s.lengths, s.metric] for s in task.samples])
        for name, task in tasks.items()
    }
    # scores of two kinds of device differ by more than the two of one kind by which rounding is measured
    contents = {"model": fingerprint(loaded.model), "samples": prompts, "kind of device": loaded.model.device.type}
    work.begin(contents, {
        "model": "MODEL holds other weights", "samples": "the tasks' data has changed",
        "kind of device": "--device names another kind of device",
    })  # fmt: skip
    if torch.finfo(loaded.model.dtype).bits < 32:
        say(
            f"the model computes in {dtype_of(loaded.model)}, whose rounding is as large as the effect that is looked "
            "for; use float32"
        )
    return loaded, tasks


def dtype_of(model: PreTrainedModel) -> str:
    """For example ``float32``."""
    return str(model.dtype).removeprefix("torch.")


def judged_split(
    settings: ChoiceSettings, samples: Mapping[str, Sequence[Sample]], say: Callable[[str], None]
) -> Split:
    """Samples that choose heads, and enough others that judge the choice, without copies.

    Raises:
        InputError: too few.
    """
    split = split_samples(samples, held_out=settings.held_out, seed=settings.seed, key=hash_of_sample)
    for name, judges in split.held_out.items():
        left_out = split.left_out[name]
        if left_out:
            say(f"{name}: {left_out} of {len(judges) + left_out} held-out samples are copies of samples that choose "
                "heads, or of each other, and are left out")  # fmt: skip
        check_judges(name, len(judges))
    return split


def saved(
    result: type[Result],
    values: Mapping[str, Any],
    settings: SampleSettings,
    loaded: LoadedModel,
    output: Path,
    *,
    seconds: float,
) -> Record:
    """Write ``record.json`` of what was measured on a model.

    Raises:
        InputError: values that the result's own type could not read again.
    """
    record = Record(
        kind=result.measurement().kind, values=finite({"model": settings.name, **values}),
        config=finite({**asdict(settings), **origins([loaded]), **openings_of(loaded)}), seeds=[settings.seed],
        seconds=seconds,
    )  # fmt: skip
    result.read(record)
    record.save(output)
    return record


def hash_of_sample(sample: Sample) -> str:
    """Identifies a sample by its own text and the right answer, whatever examples precede it, in a chat or not.

    The other choices do not count: those of a continuation are drawn anew with every seed.
    """
    right = sample.decode(list(sample.options[sample.target])).strip() if sample.options else ""
    return hash_of([text_of(sample), sample.answers, right])[:16]


def text_of(sample: Sample) -> str:
    """The sample's own text, without examples before it."""
    parts = {name: (start, stop) for name, start, stop in sample.spans}
    start, stop = parts.get("question", (0, len(sample.prompt)))
    text: str = sample.decode(list(sample.prompt[start:stop])).strip()
    return text
