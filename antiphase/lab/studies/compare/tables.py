"""Tables of trained arms: results, every compared number, runs and learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from antiphase.lab.measures.retrieval_presentation import grid_point, grid_points, point_words, state
from antiphase.lab.measures.retrieval_results import Accuracy
from antiphase.lab.pages.tables import Column, Table, columns_of, format_value, present, table_of
from antiphase.lab.studies.compare import ComparedRun, Comparison, Parameters
from antiphase.lab.studies.compare.reading import threshold_of
from antiphase.lab.studies.metrics import Difference
from antiphase.lab.studies.outcomes import LearnedThreshold, follows

LARGEST_CURVE = 1500
"""Rows of the learning-curve table; a longer curve is thinned, so that the page stays small."""


def headline(found: Comparison) -> Table | None:
    """The results of the runs: one column for each arm, beside the guess rate and the untrained model."""
    if not found.runs:
        return None
    threshold, arms = threshold_of(found), found.arms
    groups = {arm: found.runs_of(arm) for arm in arms}

    def row(name: str, cell: Callable[[list[ComparedRun]], str]) -> list[str]:
        return [name, *(cell(runs) for runs in groups.values())]

    accuracies = {arm: [run.final.accuracy for run in runs] for arm, runs in groups.items()}
    losses = {arm: [run.final.loss for run in runs] for arm, runs in groups.items()}
    parameters = [found.parameters.get(arm, Parameters()) for arm in arms]
    rows = [
        ["Parameters", *(format_value(counts.total, "integer") for counts in parameters)],
        [
            "Parameters of this attention only",
            *(format_value(counts.attention_only, "integer") for counts in parameters),
        ],
        _accuracy_row("First-query accuracy at the end", accuracies, threshold, " (higher is better)"),
        *_needle_rows(found, threshold),
        ["Guess rate", *(format_value(found.guess_rate, "percent") for _ in arms)],
        row(
            f'Steps to {threshold_text(found)} accuracy, median; "never" counts as the largest (lower is better)',
            lambda runs: "–" if found.threshold is None else steps_to_threshold([run.passes for run in runs]),
        ),
        _loss_row(losses, accuracies, threshold),
        row("Diverged", _diverged),
        row(
            "Training speed, tokens per second, median",
            lambda runs: median_and_range([run.tokens_per_second for run in runs], "integer"),
        ),
        row("Peak memory of the process, MiB, median", lambda runs: _mebibytes([run.peak_memory for run in runs])),
        row("Peak memory on the GPU, MiB, median", lambda runs: _mebibytes([run.peak_gpu_memory for run in runs])),
    ]
    measured = [row for row in rows if any(cell != "–" for cell in row[1:])]
    return Table(
        title="Headline",
        columns=[Column("Measure"), *(Column(arm, "number") for arm in arms)],
        rows=measured,
        note="Each row says what it is; in brackets the smallest and the largest seed, for needle accuracy with one "
        "seed the Wilson 95 % interval over its samples. Where models either learned or did not, seeds that learned "
        "are counted. A dash means not measured.",
    )


def _mebibytes(sizes: Sequence[int | None]) -> str:
    """Median and range of sizes in bytes."""
    return median_and_range([None if size is None else size / 2**20 for size in sizes], "integer")


def threshold_text(found: Comparison) -> str:
    """The accuracy whose first passing counts, such as ``50 %``."""
    return "the threshold" if found.threshold is None else f"{100 * found.threshold:g} %"


def _diverged(runs: Sequence[ComparedRun]) -> str:
    """``1 of 3, at step 12``; a dash where none did."""
    steps = [f"{run.diverged.step:,}" for run in runs if run.diverged]
    return f"{len(steps)} of {len(runs)}, at step {', '.join(steps)}" if steps else "–"


def _accuracy_row(
    name: str, by_arm: Mapping[str, Sequence[float | None]], threshold: LearnedThreshold | None, better: str = ""
) -> list[str]:
    """Medians, or counts where an arm's seeds are split."""
    counts = None if threshold is None else threshold.counts(by_arm)
    if counts is None or threshold is None:
        return [f"{name}, median{better}", *(median_and_range(values, "percent") for values in by_arm.values())]
    cells = []
    for arm, values in by_arm.items():
        known = present(values)
        spread = f" {_brackets(min(known), max(known), 'percent')}" if known else ""
        cells.append("{} of {} seeds".format(*counts[arm]) + spread)
    return [f"{name}: seeds that learned (above {100 * threshold.at:g} %)", *cells]


def _loss_row(
    losses: Mapping[str, Sequence[float | None]],
    accuracies: Mapping[str, Sequence[float | None]],
    threshold: LearnedThreshold | None,
) -> list[str]:
    """Medians; for an arm whose losses depend on which seeds learned, those of both groups."""
    split = {
        arm: threshold is not None and follows(values, accuracies[arm], threshold) for arm, values in losses.items()
    }
    cells = []
    for arm, values in losses.items():
        if threshold is None or not split[arm]:
            cells.append(median_and_range(values, "loss"))
            continue
        pairs = [
            (loss, accuracy)
            for loss, accuracy in zip(values, accuracies[arm], strict=True)
            if loss is not None and accuracy is not None
        ]
        groups = [
            [loss for loss, accuracy in pairs if (accuracy > threshold.at) == learned] for learned in (True, False)
        ]
        cells.append(" and ".join(
            format_value(group[0], "loss") if len(group) == 1
            else f"{format_value(min(group), 'loss')}–{format_value(max(group), 'loss')}"
            for group in groups
        ))  # fmt: skip
    name = "Held-out loss at the end, nats per token, median"
    return [f"{name}{'; learned and not' if any(split.values()) else ''} (lower is better)", *cells]


def median_and_range(values: Sequence[float | None], style: str) -> str:
    """``81.2 % [79.0–83.1]``: median, smallest and largest; missing seeds are counted in words."""
    numbers = present(values)
    if not numbers:
        return "–"
    missing = f" ({len(numbers)} of {len(values)} seeds)" if len(numbers) < len(values) else ""
    if len(numbers) == 1:
        return f"{format_value(numbers[0], style)}{missing or ' (one seed)'}"
    middle = format_value(statistics.median(numbers), style)
    return f"{middle} {_brackets(min(numbers), max(numbers), style)}{missing}"


def _brackets(low: float, high: float, style: str) -> str:
    """``[79.0–83.1]``; the per cent sign appears once, before the bracket."""
    return f"[{format_value(low, style)}–{format_value(high, style)}]".replace(" %", "")


def steps_to_threshold(passes: Sequence[int | None]) -> str:
    """Kaplan and Meier's median step, by which half of the seeds had passed, and the range with "never" as latest."""
    if not passes:
        return "–"
    steps = sorted(math.inf if step is None else step for step in passes)
    middle, first, last = (
        "never" if math.isinf(step) else f"{step:,.0f}" for step in (statistics.median_low(steps), steps[0], steps[-1])
    )
    if len(steps) == 1:
        return f"{middle} (one seed)"
    spread = "" if first == last else f" [{first}–{last}]"
    return f"{middle}{spread}, {len(present(passes))} of {len(passes)} seeds"


def _needle_rows(found: Comparison, threshold: LearnedThreshold | None) -> Iterator[list[str]]:
    """Trained and untrained accuracy with the needle anywhere, at the training number of needles if it is there."""
    summary = [row for row in found.needles.summary if row.depth is None]
    guess_rate = found.guess_rate
    like_training = [row for row in summary if guess_rate and math.isclose(row.guess_rate, guess_rate)]
    summary = like_training or summary
    for point in grid_points(summary):
        for model in ("trained", "untrained"):
            name = f"Needle accuracy, {model} ({point_words(point)})"
            by_arm = {
                arm: [
                    cell.correct / cell.samples
                    for cell in found.needles.cells
                    if (cell.depth, cell.arm, state(cell), grid_point(cell)) == (None, arm, model, point)
                ]
                for arm in found.arms
            }
            if like_training and threshold is not None and threshold.counts(by_arm):
                yield _accuracy_row(name, by_arm, threshold)
                continue
            own = {row.arm: row for row in summary if (state(row), grid_point(row)) == (model, point)}
            yield [f"{name}, median", *(_with_interval(own[arm]) if arm in own else "–" for arm in found.arms)]


def _with_interval(row: Accuracy) -> str:
    low, high = row.interval
    return f"{format_value(row.accuracy, 'percent')} {_brackets(low, high, 'percent')}"


def comparison(found: Comparison) -> Table | None:
    """Every compared number with its spread, the paired difference from the baseline, and what could be seen."""
    rows = []
    for entry in found.comparison:
        text = partial(_text_in, entry.unit)
        for arm, summary in entry.arms.items():
            difference = entry.differences.get(arm) or Difference()
            interval = [text(bound) for bound in difference.interval or []]
            learned = (entry.learned or {}).get(arm)
            values = summary.values
            median = summary.median if entry.survival is None else entry.survival[arm].median
            mean = None if learned or None in values else summary.mean
            cells = [text(value) for value in (median, mean, summary.minimum, summary.maximum)]
            plus = "+" if (difference.mean or 0) > 0 else ""
            change = f"{plus}{text(difference.mean)}" if arm in entry.differences else None
            paired = f"[{interval[0]}, {interval[1]}]" if interval else None
            detectable = None if difference.detectable is None else text(difference.detectable)
            ratio = (entry.hazard_ratios or {}).get(arm)
            hazard = None if ratio is None else f"{ratio.ratio:.2f} [{ratio.interval[0]:.2f}, {ratio.interval[1]:.2f}]"
            listed = ", ".join(text(value) for value in values)
            counts = "{} of {}".format(*learned) if learned else None
            rows.append([
                entry.metric, entry.unit, "lower" if entry.lower_is_better else "higher", arm, counts, *cells, change,
                paired, detectable, difference.seeds if arm in entry.differences else None,
                None if paired is None else "yes" if entry.is_pooled else "no", hazard, listed,
            ])  # fmt: skip
    columns = columns_of(
        *("Metric", "Unit", "Better is", "Arm", "Learned|number", "Median|number", "Mean|number", "Smallest|number"),
        *("Largest|number", "Mean paired difference|number", "95 % interval|number", "MDE|number", "Pairs|number"),
        *("Pooled", "Hazard ratio|number", "By seed|number"),
    )
    note = (
        f"Differences are arm minus {found.baseline}, paired by seed; intervals are Student's over seeds, with the "
        "residuals of all arms pooled where John's test of sphericity does not object (p of 0.1 or more). MDE: the "
        "difference that is seen with a power of 80 %. Steps are compared by hazard ratios: above 1 an arm is sooner. "
        "Their median is the first by which half of the seeds had passed. Where models either learned or did not, "
        "there is no mean and no interval: seeds that learned are counted. A seed without a value leaves no mean."
    )
    return table_of("Comparison in numbers", columns, rows, note)


def _text_in(unit: str, value: float | None) -> str:
    """A value, or a difference of two, in the unit of its row; shares count in points."""
    if unit == "points" and value is not None:
        return f"{100 * value:.1f}"
    return format_value(value, "number")


def samples(found: Comparison) -> Table | None:
    """What the arms answered in a few texts."""
    if not found.samples:
        return None
    arms = list(found.samples[0].answers)
    return Table(
        title="Answers", columns=[Column("… the end of the text"), Column("Right"), *map(Column, arms)],
        rows=[[one.question, one.right, *one.answers.values()] for one in found.samples],
        note="Held-out texts; models of the first seed, their most likely tokens after the right ones.",
    )  # fmt: skip


def runs_table(found: Comparison) -> Table | None:
    """One row for each training run."""
    rows = [
        [run.arm, run.seed, run.learning_rate, run.final.loss, run.final.accuracy,
         *((run.best.accuracy, run.best.step) if run.best else (None, None)), run.passes, run.tokens_per_second,
         run.seconds, run.folder]
        for run in found.runs
    ]  # fmt: skip
    columns = columns_of(
        *("Arm", "Seed|integer", "Learning rate|number", "Final loss|loss", "Final accuracy|percent"),
        *("Best accuracy|percent", "at step|integer", f"Passed {threshold_text(found)} at step|integer"),
        *("Tokens per second|integer", "Seconds|number", "Folder"),
    )
    precisions = sorted({run.precision for run in found.runs if run.precision})
    note = (
        f"The runs were made in {' and '.join(precisions)}, because their machines differ, so the arms are not equal "
        "in that."
    )
    return table_of("Runs", columns, rows, note if len(precisions) > 1 else "")


def curve_table(found: Comparison) -> Table | None:
    """Every evaluation of every run."""
    rows: list[list[Any]] = [
        [run.arm, run.seed, point.step, point.train_loss, point.loss, point.accuracy]
        for run in found.runs
        for point in run.curve
    ]
    note = ""
    if len(rows) > LARGEST_CURVE:
        rows = [row for row in rows if present(row[4:])] or rows
        stride = math.ceil(len(rows) / LARGEST_CURVE)
        rows = rows[::stride]
        note = "Shortened: the record holds every step."
    columns = columns_of(
        *("Arm", "Seed|integer", "Step|integer", "Training loss|loss", "Held-out loss|loss"),
        "First-query accuracy|percent",
    )
    return table_of("Learning curves", columns, rows, note)


def by_layer(
    found: Comparison, values: Callable[[ComparedRun], Sequence[float | None] | None], title: str
) -> Table | None:
    """A number for each layer and run."""
    listed = [(run, layers) for run in found.runs if present(layers := values(run) or [])]
    width = max((len(layers) for _, layers in listed), default=0)
    # Arms may differ in depth.
    rows: list[list[Any]] = [[run.arm, run.seed, *layers, *[None] * (width - len(layers))] for run, layers in listed]
    columns = columns_of("Arm", "Seed|integer", *(f"Layer {layer}|number" for layer in range(width)))
    return table_of(title, columns, rows)
