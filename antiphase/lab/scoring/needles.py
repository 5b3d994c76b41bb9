"""Multi-needle retrieval (2410.05258, section 3.3): what counts as a right answer about facts in the context.

In text, ``is_right``: the first whole numbers of the output are the answers in order. In sequences of symbols,
``correct_answers``: every token of an answer; the score is the accuracy of the first query's answer. Later answers are
only reported by position: with the earlier ones visible, answering with any number not yet used beats guessing without
retrieving anything.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.randomness import keyed_generator
from antiphase.lab.scoring.beginnings import depends_on_length
from antiphase.lab.scoring.division import Divide, alone
from antiphase.lab.scoring.likelihood import Predict, greedy_predictions
from antiphase.lab.statistics.crossings import crossed
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.haystacks import Context
from antiphase.lab.text.retrieval import RetrievalBatch, RetrievalTask

LEAST_SIZES = 3
"""Numbers of needles, or lengths, from which a crossing is fitted."""

TaskFactory = Callable[..., RetrievalTask]
"""Takes (needles=, queries=, sequence_length=) and returns a task with held-out filler."""


NUMBER = re.compile(r"[0-9]+")


def is_right(output: str, context: Context) -> bool:
    """Whether the first R whole numbers of the output are the answers in order. An empty output is wrong."""
    return tuple(numbers_of(output, len(context.answers))) == context.answers


def numbers_of(output: str, count: int) -> list[str]:
    """The first ``count`` whole numbers as written, or fewer if there are no more."""
    return NUMBER.findall(output)[:count]


def correct_answers(predict: Predict, batch: RetrievalBatch) -> Tensor:
    """Whether each answer is entirely correct, bool (B, R)."""
    positions = batch.answer_positions
    flat = positions.flatten(1)
    predicted = predict(batch.input_ids, flat).view(positions.shape)
    truth = batch.input_ids.gather(1, flat.clamp(min=0)).view(positions.shape)
    return ((predicted == truth) | (positions < 0)).all(-1)


def needle_cell(
    predict: Predict, task: RetrievalTask, *, depth: float | None, samples: int, seed: int
) -> dict[str, Any]:
    """One cell of the grid: counts and ``right`` (0 or 1 per sequence) for the first query, shares for later ones.

    Cells of equal size, depth and seed have the same sequences for every model.
    """
    sizes = (task.needles, task.queries, task.sequence_length, depth)
    batch = task.sample(samples, keyed_generator(seed, "needles", *sizes), depth=depth)
    correct = correct_answers(predict, batch)
    return {
        "needles": task.needles,
        "queries": task.queries,
        "length": task.sequence_length,
        "depth": depth,
        "samples": samples,
        "correct": int(correct[:, 0].sum()),
        "by_place": correct.float().mean(0).tolist(),
        "guess_rate": task.guess_rate,
        "right": correct[:, 0].int().tolist(),
    }


def needle_grid(
    predict: Predict, tasks: Sequence[RetrievalTask], *, depths: Sequence[float], samples: int, seed: int
) -> list[dict[str, Any]]:
    """The cells of every task and depth, plus one per task with random depth (None), without ``right``.

    Only the latter is compared with the guess rate. At a fixed depth the position can be guessed (at depth 1, answering
    with the last value is always correct), so an average over depths 0, 1/4, ..., 1 would credit systems that retrieve
    nothing.
    """
    cells = [
        needle_cell(predict, task, depth=depth, samples=samples, seed=seed)
        for task in tasks
        for depth in (*depths, None)
    ]
    return [{name: value for name, value in cell.items() if name != "right"} for cell in cells]


def summarize(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy by needles, queries, length and depth (None means random), over all models in the cells.

    ``interval`` is Wilson's for one model and the range for several, because samples of different seeds are not trials
    of one model.
    """
    groups: dict[tuple[int, int, int, float | None], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["needles"], cell["queries"], cell["length"], cell["depth"]), []).append(cell)
    rows = []
    for size in sorted(groups, key=lambda size: (*size[:3], size[3] is None, size[3] or 0.0)):
        needles, queries, length, depth = size
        members = groups[size]
        shares = [cell["correct"] / cell["samples"] for cell in members]
        is_one = len(members) == 1
        rows.append(
            {
                "needles": needles,
                "queries": queries,
                "length": length,
                "depth": depth,
                "accuracy": statistics.median(shares),
                "interval": list(wilson_interval(members[0]["correct"], members[0]["samples"]))
                if is_one
                else [min(shares), max(shares)],
                "interval_is": "Wilson 95 %" if is_one else "range over seeds",
                "models": len(members),
                "samples": members[0]["samples"],
                "guess_rate": members[0]["guess_rate"],
            }
        )
    return rows


def crossings(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """N50 and L50 of one model: where accuracy falls to 50 % over needles, and over length.

    Only cells at random depth count. There is one row for each number of queries and each value of what stays, where at
    least ``LEAST_SIZES`` of what grows were measured.
    """
    groups: dict[tuple[str, int, int], dict[int, Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["depth"] is None:
            for over, stays in (("needles", "length"), ("length", "needles")):
                groups.setdefault((over, cell[stays], cell["queries"]), {})[cell[over]] = cell
    found = []
    for (over, at, queries), members in sorted(groups.items(), key=lambda item: (item[0][0] == "length", *item[0][1:])):
        if len(members) < LEAST_SIZES:
            continue
        sizes = sorted(members)
        right, trials = ([members[size][what] for size in sizes] for what in ("correct", "samples"))
        fitted = crossed(sizes, right, trials)
        found.append(
            {
                "over": over, "at": at, "queries": queries, "sizes": sizes, "samples": sum(trials),
                "value": fitted.value, "beyond": fitted.beyond, "interval": list(fitted.interval),
            }
        )  # fmt: skip
    return found


def predictor(model: PreTrainedModel, divide: Divide = alone) -> Predict:
    """Greedy predictions of a model; ``divide`` says how several processes divide the forward passes."""
    return partial(greedy_predictions, model, divide=divide)


def first_query_accuracy(model: PreTrainedModel, batch: RetrievalBatch, divide: Divide = alone) -> float:
    """Accuracy on first queries, a cheap metric for the curve of a training run."""
    positions = batch.answer_positions[:, :1]
    read = batch.input_ids.shape[1]
    if not depends_on_length(model):  # a causal model predicts the same without what follows
        read = int(positions.max()) + 1
    first = RetrievalBatch(batch.input_ids[:, :read], positions, batch.prompt_end, batch.spans)
    return correct_answers(predictor(model, divide), first).double().mean().item()


def tasks_of(
    factory: TaskFactory, *, needles: Sequence[int | None], queries: Sequence[int | None], lengths: Sequence[int | None]
) -> list[RetrievalTask]:
    """One task for every combination of needles, queries and length; empty lists mean the training size."""
    return [
        factory(needles=count, queries=asked, sequence_length=length)
        for count in needles or [None]
        for asked in queries or [None]
        for length in lengths or [None]
    ]
