"""Tables of trained arms: results, every compared number, runs and learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from antiphase.outcomes import LearnedThreshold, follows
from antiphase.records import Record
from antiphase.report.compared import entries_of, threshold_of
from antiphase.report.tables import (
    Column,
    Row,
    Table,
    arms_of,
    columns_of,
    format_value,
    grid_point,
    grid_points,
    needles_of,
    point_words,
    present,
    runs_of,
    state,
    threshold_text,
)

LARGEST_CURVE = 1500
"""Rows of the learning-curve table; a longer curve is thinned, so that the page stays small."""


def headline(record: Record) -> Table | None:
    """The results of the runs: one column for each arm, beside the guess rate and the untrained model."""
    runs, arms = runs_of(record), arms_of(record)
    if not runs:
        return None
    threshold = threshold_of(record)
    groups = {arm: [run for run in runs if run["arm"] == arm] for arm in arms}

    def row(name: str, cell: Callable[[list[dict[str, Any]]], str]) -> list[str]:
        return [name, *(cell(groups[arm]) for arm in arms)]

    def final(name: str) -> dict[str, list[float | None]]:
        return {arm: [(run.get("final") or {}).get(name) for run in group] for arm, group in groups.items()}

    guess_rate = record.values.get("guess_rate")
    accuracies = final("accuracy")
    rows = [
        ["Parameters", *(_parameters(record, arm, "total") for arm in arms)],
        ["Parameters of attention alone", *(_parameters(record, arm, "attention_only") for arm in arms)],
        _accuracy_row("First-query accuracy at the end", accuracies, threshold, " (higher is better)"),
        *_needle_rows(record, arms, threshold),
        ["Guess rate", *(format_value(guess_rate, "percent") for _ in arms)],
        row(
            f'Steps to {threshold_text(record)} accuracy, median; "never" counts as the largest (lower is better)',
            lambda group: steps_to_threshold([run.get("passes") for run in group]),
        ),
        _loss_row(final("loss"), accuracies, threshold),
        row("Diverged", _diverged),
        row(
            "Training speed, tokens per second, median",
            lambda group: median_and_range([run.get("tokens_per_second") for run in group], "integer"),
        ),
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


def _diverged(runs: Sequence[dict[str, Any]]) -> str:
    """``1 of 3, at step 12``; a dash where none did."""
    steps = [f"{run['diverged']['step']:,}" for run in runs if run.get("diverged")]
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


def median_and_range(values: Sequence[float | None], style: str, seeds: str = "seeds") -> str:
    """``81.2 % [79.0–83.1]``: median, smallest and largest; missing seeds are counted in words."""
    numbers = present(values)
    if not numbers:
        return "–"
    missing = f" ({len(numbers)} of {len(values)} {seeds})" if len(numbers) < len(values) else ""
    if len(numbers) == 1:
        return f"{format_value(numbers[0], style)}{missing or ' (one seed)'}"
    middle = format_value(statistics.median(numbers), style)
    return f"{middle} {_brackets(min(numbers), max(numbers), style)}{missing}"


def _brackets(low: float, high: float, style: str) -> str:
    """``[79.0–83.1]``; the per cent sign appears once, before the bracket."""
    return f"[{format_value(low, style)}–{format_value(high, style)}]".replace(" %", "")


def steps_to_threshold(passes: Sequence[int | None]) -> str:
    """Median step with its range, where a seed that never passes counts as later than every step.

    As all seeds are censored at the same last step, this is Kaplan and Meier's median.
    """
    if not passes:
        return "–"
    steps = sorted(math.inf if step is None else step for step in passes)
    middle, first, last = (
        "never" if math.isinf(step) else f"{step:,.0f}" for step in (statistics.median(steps), steps[0], steps[-1])
    )
    if len(steps) == 1:
        return f"{middle} (one seed)"
    spread = "" if first == last else f" [{first}–{last}]"
    return f"{middle}{spread}, {len(present(passes))} of {len(passes)} seeds"


def _parameters(record: Record, arm: str, part: str) -> str:
    """Parameter count of an arm: from the comparison, else from its first run."""
    listed = record.values.get("parameters")
    counts = listed.get(arm) if record.kind == "compare" and isinstance(listed, dict) else None
    if counts is None:
        counts = next((run.get("parameters") for run in runs_of(record) if run["arm"] == arm), None)
    if isinstance(counts, dict):
        return format_value(counts.get(part), "integer")
    return format_value(counts if part == "total" else None, "integer")


def _needle_rows(record: Record, arms: Sequence[str], threshold: LearnedThreshold | None) -> Iterator[list[str]]:
    """Trained and untrained accuracy with the needle anywhere, at the training number of needles if it is there."""
    summary = [row for row in needles_of(record, "summary") if row.get("depth") is None]
    cells_by_seed = [row for row in needles_of(record, "cells") if row.get("depth") is None and row.get("samples")]
    guess_rate = record.values.get("guess_rate")
    like_training = [row for row in summary if guess_rate and math.isclose(row.get("guess_rate") or 0, guess_rate)]
    summary = like_training or summary
    for point in grid_points(summary):
        for model in ("trained", "untrained"):
            name = f"Needle accuracy, {model} ({point_words(point)})"
            by_arm = {
                arm: [
                    row["correct"] / row["samples"]
                    for row in cells_by_seed
                    if (row["arm"], state(row), grid_point(row)) == (arm, model, point)
                ]
                for arm in arms
            }
            if like_training and threshold is not None and threshold.counts(by_arm):
                yield _accuracy_row(name, by_arm, threshold)
                continue
            cells = []
            for arm in arms:
                found = [row for row in summary if (row["arm"], state(row), grid_point(row)) == (arm, model, point)]
                cells.append(_with_interval(found[0]) if found else "–")
            yield [f"{name}, median", *cells]


def _with_interval(row: Row) -> str:
    low, high = row.get("interval") or (None, None)
    interval = f" {_brackets(low, high, 'percent')}" if low is not None and high is not None else ""
    return f"{format_value(row.get('accuracy'), 'percent')}{interval}"


def comparison(record: Record) -> Table | None:
    """Every compared number with its spread, the paired difference from the baseline, and the test of it."""
    rows, entries = [], entries_of(record)[: len(record.values.get("comparison") or [])]
    for entry in entries:
        unit = entry.get("unit") or ""
        style = "percent" if unit in ("share", "fraction") else "number"
        for arm, summary in entry.get("arms", {}).items():
            difference = (entry.get("differences") or {}).get(arm) or {}
            interval = [format_value(bound, style) for bound in difference.get("interval") or []]
            learned = (entry["learned"] or {}).get(arm)
            values = summary.get("values") or []
            censored = any(value is None for value in values)  # never: later than all, and no part of a mean
            median = statistics.median(math.inf if value is None else value for value in values) if censored else None
            mean = None if learned or censored else format_value(summary.get("mean"), style)
            spread = [format_value(summary.get("median"), style), mean]
            if median is not None:
                spread[0] = "none" if math.isinf(median) else format_value(median, style)
            spread += [format_value(summary.get(key), style) for key in ("minimum", "maximum")]
            change = format_value(difference.get("mean"), style) if difference else None
            paired = f"[{interval[0]}, {interval[1]}]" if len(interval) == 2 else None
            made = difference.get("interval_is") or {}
            covers = made.get("covers") or ("seeds" if paired else None)
            test = ((record.values.get("holm") or {}).get(entry["metric"]) or {}).get(arm) or {}
            better = "lower" if entry.get("lower_is_better") else "higher"
            listed = ", ".join(format_value(value, style) for value in values)
            counts = "{} of {}".format(*learned) if learned else None
            rows.append([
                entry["metric"], unit, better, arm, counts, *spread, change, paired, covers, made.get("method"),
                difference.get("seeds"), test.get("p"), test.get("p_holm"), test.get("verdict_holm"), listed,
            ])  # fmt: skip
    columns = columns_of(
        *("Metric", "Unit", "Better is", "Arm", "Learned|number", "Median|number", "Mean|number", "Smallest|number"),
        *("Largest|number", "Mean paired difference|number", "95 % interval|number", "Interval over", "By"),
        *("Pairs|number", "p|number", "p by Holm|number", "Verdict under Holm", "By seed|number"),
    )
    note = (
        f"Differences are arm minus {record.values.get('baseline') or 'baseline'}, paired by seed. Where models either "
        "learned or did not, there is no mean and no interval: seeds that learned are counted. A seed without a value "
        "is later than all in a median, none where that is half of them, and leaves no mean."
    )
    if rows and "holm" not in record.values:
        note += " An older record: intervals cover seeds alone, not the test sample, and p is not kept."
    return Table(title="Comparison in numbers", columns=columns, rows=rows, note=note) if rows else None


def runs_table(record: Record) -> Table | None:
    """One row for each training run."""
    rows = []
    for run in runs_of(record):
        final, best = run.get("final") or {}, run.get("best") or {}
        numbers = [run.get("learning_rate"), final.get("loss"), final.get("accuracy"), best.get("accuracy")]
        speed = [best.get("step"), run.get("passes"), run.get("tokens_per_second"), run.get("seconds")]
        rows.append([run["arm"], run.get("seed"), *numbers, *speed, run.get("folder")])
    columns = columns_of(
        *("Arm", "Seed|integer", "Learning rate|number", "Final loss|loss", "Final accuracy|percent"),
        *("Best accuracy|percent", "at step|integer", f"Passed {threshold_text(record)} at step|integer"),
        *("Tokens per second|integer", "Seconds|number", "Folder"),
    )
    return Table(title="Runs", columns=columns, rows=rows) if rows else None


def curve_table(record: Record) -> Table | None:
    """Every evaluation of every run."""
    rows = [
        [run["arm"], run.get("seed"), *(point.get(key) for key in ("step", "train_loss", "loss", "accuracy"))]
        for run in runs_of(record)
        for point in run.get("curve") or []
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
    return Table(title="Learning curves", columns=columns, rows=rows, note=note) if rows else None


def by_layer(record: Record, key: str, title: str) -> Table | None:
    """A number for each layer and run: ``lambdas`` or ``gradient_norms``."""
    runs = [run for run in runs_of(record) if present(run.get(key) or [])]
    width = max((len(run[key]) for run in runs), default=0)
    # Arms may differ in depth.
    rows = [[run["arm"], run.get("seed"), *run[key], *[None] * (width - len(run[key]))] for run in runs]
    columns = columns_of("Arm", "Seed|integer", *(f"Layer {layer}|number" for layer in range(width)))
    return Table(title=title, columns=columns, rows=rows) if rows else None
