"""Many-shot in-context learning and its robustness to order (2410.05258, sections 3.4 and 3.5; figures 6 and 7).

Answers are decoded over the labels only. Examples, orders and asked rows are the same for every model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.data.labelled import Row
from antiphase.errors import InputError, NonFiniteError
from antiphase.evals.constrained import choose_options
from antiphase.evals.samples import Sample
from antiphase.evals.statistics import wilson_interval
from antiphase.evals.tasks import LabelledTask, LongPromptError
from antiphase.randomness import keyed_generator


def many_shot(
    model: PreTrainedModel,
    task: LabelledTask,
    *,
    shots: Sequence[int],
    samples: int,
    orders: int,
    seed: int,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> dict[str, Any]:
    """Accuracy over numbers of examples, and over their orders at the largest number.

    Fewer examples are the first of more. At the largest number the same examples are shown in ``orders`` random orders
    and in as many that alternate between the classes.

    Args:
        shots: numbers of examples; those that no longer fit the model's context are left out.
        samples: rows that are asked, the same everywhere.

    Returns:
        ``rows``: accuracy by number of examples; ``orders``: for ``random`` and ``alternating`` the accuracies, the
        margin (best minus worst), the share of rows whose answer is not the same in every order (a constant predictor
        has margin and share 0), and ``pair_flips``, for ``flips_against_chance``; ``left_out``: numbers of examples
        that are longer than the model reads; beside them ``guess_rate`` and ``majority_rate``.

    Raises:
        InputError: not even the smallest number of examples fits, there are too few rows, or a row cannot be used.
        NonFiniteError: logits that are not numbers.
    """
    largest = task.examples(max(shots))
    asked = task.asked(samples, largest)
    if len(asked) < samples:
        raise InputError(f"--samples {samples} is more than the {len(asked)} rows that are left to be asked")
    fitting: dict[int, list[Sample]] = {}
    for count in sorted(set(shots)):
        try:
            fitting[count] = task.samples(asked, largest[:count])
        except LongPromptError:
            if not fitting:
                raise
            break
    done, whole = 0, len(fitting) + 2 * orders
    rows = []
    targets = [sample.target for sample in next(iter(fitting.values()))]
    for count, prompts in fitting.items():
        answers = _answers(model, prompts)
        right = sum(a == b for a, b in zip(answers, targets, strict=True))
        tokens = sorted(len(sample.prompt) for sample in prompts)
        rows.append(
            {
                "shots": count,
                "accuracy": right / samples,
                "interval": list(wilson_interval(right, samples)),
                "tokens": tokens[len(tokens) // 2],
                "answers_given": len(set(answers)),
            }
        )
        done += 1
        report(done, whole)
    most = max(fitting)
    found: dict[str, Any] = {
        "samples": samples,
        "labels": len(task.labels),
        "guess_rate": 1 / len(task.labels),
        "majority_rate": Counter(targets).most_common(1)[0][1] / samples,
        "left_out": [count for count in shots if count not in fitting],
        "rows": rows,
        "orders": {},
    }
    for kind, arrange in (("random", _shuffled), ("alternating", _alternating)) if most > 1 and orders else ():
        answers_by_order = []
        for number in range(orders):
            shown = arrange(task, largest[:most], number, seed)
            answers_by_order.append(_answers(model, task.samples(asked, shown)))
            done += 1
            report(done, whole)
        accuracies = [sum(a == b for a, b in zip(answers, targets, strict=True)) / samples
                      for answers in answers_by_order]  # fmt: skip
        flips = sum(len(set(of_row)) > 1 for of_row in zip(*answers_by_order, strict=True))
        found["orders"][kind] = {
            "shots": most,
            "accuracies": accuracies,
            "mean_accuracy": sum(accuracies) / orders,
            "margin": max(accuracies) - min(accuracies),
            "flip_share": flips / samples,
            "pair_flips": pair_flips(answers_by_order, targets),
        }
    return found


def pair_flips(answers_by_order: Sequence[Sequence[int]], targets: Sequence[int]) -> float:
    """Share of rows that one of two different orders gets right and the other wrong, mean over pairs of orders."""
    orders = len(answers_by_order)
    right = [
        sum(answer == target for answer in of_row)
        for *of_row, target in zip(*answers_by_order, targets, strict=True)
    ]  # fmt: skip
    return sum(2 * count * (orders - count) for count in right) / (orders * (orders - 1)) / len(targets)


def flips_against_chance(flips: float, accuracy: float) -> float | None:
    """``pair_flips`` over 2p(1 - p), which answers that are right with probability p, drawn anew for each order, have.

    So spreads are compared at equal accuracy: 0 is the same answers in every order, 1 is a new draw for each. None
    where all answers are right, or all wrong.
    """
    expected = 2 * accuracy * (1 - accuracy)
    return flips / expected if expected > 0 else None


def _answers(model: PreTrainedModel, samples: Sequence[Sample]) -> list[int]:
    chosen = choose_options(model, [sample.prompt for sample in samples], [sample.options for sample in samples])
    if -1 in chosen:
        raise NonFiniteError(f"the model's logits for sample {chosen.index(-1)} (from 0) are not numbers")
    return chosen


def _shuffled(task: LabelledTask, shown: Sequence[Row], number: int, seed: int) -> list[Row]:
    generator = keyed_generator(seed, "order", task.settings.name, number)
    return [shown[index] for index in torch.randperm(len(shown), generator=generator).tolist()]


def _alternating(task: LabelledTask, shown: Sequence[Row], number: int, seed: int) -> list[Row]:
    """One of each class in turn, classes and rows in random order, until none is left."""
    by_label: dict[str, list[Row]] = {}
    for row in _shuffled(task, shown, number, seed):
        by_label.setdefault(task.label(row), []).append(row)
    queues = list(by_label.values())
    return [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]
