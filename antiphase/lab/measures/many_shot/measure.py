"""Accuracy over numbers and orders of labelled examples.

Decoding is restricted to the labels. Examples, orders and rows asked are the same for every model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.base.errors import InputError, NonFiniteError, named, within
from antiphase.base.randomness import keyed_generator
from antiphase.lab.measures.inputs import task_content
from antiphase.lab.measures.many_shot import AtShots, ManyShot, ManyShotSettings, OverOrders, TaskShots
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.scoring.constrained import choose_options
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.labelled import Row
from antiphase.lab.text.tasks.samples import Sample
from antiphase.lab.text.tasks.tasks import LabelledTask, LongPromptError, load_labelled_task
from antiphase.lab.text.tokenization import check_chat_template


@dataclass(frozen=True)
class RequestedTask:
    """A task and its settings."""

    path: str
    task: LabelledTask


def contents(settings: ManyShotSettings) -> dict[str, Any]:
    """Digests of the task files and of the data that they name."""
    return dict(task_content(settings.tasks, settings.columns))


def prepare(
    loaded: LoadedModel, settings: ManyShotSettings, output: Path, say: Callable[[str], None]
) -> dict[str, RequestedTask]:
    """Load all tasks by name, before anything is computed.

    Raises:
        InputError: a task cannot be used or has too few rows, or two tasks have the same name.
    """
    if settings.chat_template:
        check_chat_template(loaded.tokenizer, named("model", loaded.name))
    longest = context_length(loaded.model)
    found: dict[str, RequestedTask] = {}
    for path in settings.tasks:
        task = load_labelled_task(
            path, loaded.tokenizer, columns=settings.columns, seed=settings.seed, longest=longest,
            chat=settings.chat_template,
        )  # fmt: skip
        name = task.settings.name
        if task.settings.kind != "classification":
            raise InputError(
                f"--task {path}: many-shot learning needs a task of kind classification, not {task.settings.kind}"
            )
        if name in found:
            raise InputError(
                f"--task {path}: {found[name].path} has the name '{name}' too; give one of them another, for example "
                f"'name: {name}-2', or rename a table"
            )
        if len(task.rows) < settings.samples:
            raise InputError(
                f"--task {path}: --samples {settings.samples} is more than its {len(task.rows)} rows; lower it"
            )
        if _most_examples(settings, task) < min(settings.shots):
            beside = "" if task.has_own_examples else f" beside --samples {settings.samples}"
            raise InputError(
                f"--task {path}: there are too few rows for --shots {min(settings.shots)}{beside}; ask for fewer"
            )
        found[name] = RequestedTask(path, task)
    return found


def measure(
    loaded: LoadedModel, tasks: dict[str, RequestedTask], settings: ManyShotSettings, parts: Parts = UNSTORED
) -> ManyShot:
    """Measure every task with every number of examples for which there are rows."""
    found: dict[str, TaskShots] = {}
    for place, (name, asked) in enumerate(tasks.items()):
        most, own_parts = _most_examples(settings, asked.task), parts.within(place, len(tasks))
        with within("task", asked.path):
            own = many_shot(
                loaded.model, asked.task, shots=[count for count in settings.shots if count <= most],
                samples=settings.samples, orders=settings.orders, seed=settings.seed, parts=own_parts,
            )  # fmt: skip
        found[name] = replace(own.tasks[name], too_few_rows=[count for count in settings.shots if count > most])
    return ManyShot(found)


def _most_examples(settings: ManyShotSettings, task: LabelledTask) -> int:
    """Largest number of examples for which there are rows, in addition to those asked."""
    return len(task.pool) - (0 if task.has_own_examples else settings.samples)


def many_shot(
    model: PreTrainedModel,
    task: LabelledTask,
    *,
    shots: Sequence[int],
    samples: int,
    orders: int,
    seed: int,
    parts: Parts = UNSTORED,
) -> ManyShot:
    """Accuracy on a task by number of examples, and over orders of the largest number.

    A smaller number uses the first examples of a larger one. The largest number is shown in ``orders`` random orders,
    and in as many that alternate between the classes.

    Args:
        shots: numbers of examples; those that exceed the model's context are skipped.
        samples: number of rows asked, which are always the same.
        parts: a part is one number of examples, or one order of the largest.

    Raises:
        InputError: not even the smallest number of examples fits, there are too few rows, or a row cannot be used.
        NonFiniteError: logits are NaN.
    """
    largest = task.examples(max(shots))
    asked = task.asked(samples, largest)
    if len(asked) < samples:
        raise InputError(f"--samples {samples} is more than the {len(asked)} rows left to ask")
    fitting = _fitting(task, asked, largest, shots)
    done, whole = 0, len(fitting) + 2 * orders

    def answers_to(prompts: Sequence[Sample], *part: str | int) -> list[int]:
        nonlocal done
        answers = parts.stored(task.settings.name, *part, compute=partial(_answers, model, prompts))
        done += 1
        parts.report(done, whole)
        return answers

    rows = []
    targets = [sample.target for sample in next(iter(fitting.values()))]
    for count, prompts in fitting.items():
        answers = answers_to(prompts, "shots", count)
        right = sum(a == b for a, b in zip(answers, targets, strict=True))
        tokens = sorted(len(sample.prompt) for sample in prompts)
        interval = list(wilson_interval(right, samples))
        rows.append(
            AtShots(
                count, right / samples, interval, tokens[len(tokens) // 2], len(set(answers)),
                _label_shown(task, asked, largest[:count]),
            )
        )  # fmt: skip
    most = max(fitting)
    by_order: dict[str, OverOrders] = {}
    for kind, arrange in (("random", _shuffled), ("alternating", _alternating)) if most > 1 and orders else ():
        answers_by_order = []
        for number in range(orders):
            demonstrations = arrange(task, largest[:most], number, seed)
            answers_by_order.append(answers_to(task.samples(asked, demonstrations), kind, number))
        by_order[kind] = _over_orders(answers_by_order, targets, most)
    result = TaskShots(
        samples=samples,
        labels=len(task.labels),
        guess_rate=1 / len(task.labels),
        majority_rate=Counter(targets).most_common(1)[0][1] / samples,
        left_out=[count for count in shots if count not in fitting],
        rows=rows,
        orders=by_order,
    )
    return ManyShot({task.settings.name: result})


def _fitting(
    task: LabelledTask, asked: Sequence[int], largest: Sequence[Row], shots: Sequence[int]
) -> dict[int, list[Sample]]:
    """Prompts by number of examples, up to the largest number that fits in the model's context."""
    fitting: dict[int, list[Sample]] = {}
    for count in sorted(set(shots)):
        try:
            fitting[count] = task.samples(asked, largest[:count])
        except LongPromptError:
            if not fitting:
                raise
            break
    return fitting


def _label_shown(task: LabelledTask, asked: Sequence[int], demonstrations: Sequence[Row]) -> float:
    """Share of the rows asked whose label is among the examples."""
    labels = {task.label(row) for row in demonstrations}
    return sum(task.label(task.rows[number]) in labels for number in asked) / len(asked)


def _over_orders(answers_by_order: Sequence[Sequence[int]], targets: Sequence[int], shots: int) -> OverOrders:
    """Statistics over several orders of the same examples."""
    samples = len(targets)
    accuracies = [sum(a == b for a, b in zip(answers, targets, strict=True)) / samples for answers in answers_by_order]
    flips = sum(len(set(of_row)) > 1 for of_row in zip(*answers_by_order, strict=True))
    return OverOrders(
        shots=shots,
        accuracies=accuracies,
        mean_accuracy=sum(accuracies) / len(accuracies),
        margin=max(accuracies) - min(accuracies),
        flip_share=flips / samples,
        pair_flips=pair_flips(answers_by_order, targets),
    )


def pair_flips(answers_by_order: Sequence[Sequence[int]], targets: Sequence[int]) -> float:
    """Share of rows that are correct in one of two orders and wrong in the other, mean over pairs of orders."""
    orders = len(answers_by_order)
    right = [
        sum(answer == target for answer in of_row)
        for *of_row, target in zip(*answers_by_order, targets, strict=True)
    ]  # fmt: skip
    return sum(2 * count * (orders - count) for count in right) / (orders * (orders - 1)) / len(targets)


def flips_against_chance(flips: float, accuracy: float) -> float | None:
    """``pair_flips`` divided by 2p(1 - p), its value for independent answers that are correct with probability p.

    This allows comparisons at different accuracies: 0 means the same answers in every order, 1 means independent ones.
    None if all answers are correct, or all wrong.
    """
    expected = 2 * accuracy * (1 - accuracy)
    return flips / expected if expected > 0 else None


def _answers(model: PreTrainedModel, samples: Sequence[Sample]) -> list[int]:
    chosen = choose_options(model, [sample.prompt for sample in samples], [sample.options for sample in samples])
    if -1 in chosen:
        raise NonFiniteError(f"the model's logits for sample {chosen.index(-1)} (from 0) are not numbers")
    return chosen


def _shuffled(task: LabelledTask, demonstrations: Sequence[Row], number: int, seed: int) -> list[Row]:
    generator = keyed_generator(seed, "order", task.settings.name, number)
    return [demonstrations[index] for index in torch.randperm(len(demonstrations), generator=generator).tolist()]


def _alternating(task: LabelledTask, demonstrations: Sequence[Row], number: int, seed: int) -> list[Row]:
    """Examples that take one of each class in turn, with classes and rows in random order.

    Those of each class are spread evenly, so that a prompt does not end with the commonest classes.
    """
    by_label: dict[str, list[Row]] = {}
    for row in _shuffled(task, demonstrations, number, seed):
        by_label.setdefault(task.label(row), []).append(row)
    placed = [
        ((turn + place / len(by_label)) / len(rows), place, row)
        for place, rows in enumerate(by_label.values())
        for turn, row in enumerate(rows)
    ]
    return [row for _, _, row in sorted(placed, key=lambda one: one[:2])]
