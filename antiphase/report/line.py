"""Records of ``antiphase study`` → tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from antiphase.records import Record
from antiphase.report.benchmarks import ratio_text
from antiphase.report.tables import Column, Table, readable


def accuracies(record: Record) -> Table | None:
    """Accuracy of each model by dependency length."""
    rows = summary_of(record)
    if not rows:
        return None
    distances = sorted({row["distance"] for row in rows})
    held_out = {row["distance"] for row in rows if row["held_out"]}
    known = {(row["model"], row["distance"]): row for row in rows if row["trained"]}
    cells = [
        [model, *(_mean_or_counts(known.get((model, distance))) for distance in distances)]
        for model in record.values["models"]
    ]
    untrained = [row["accuracy"] for row in rows if not row["trained"]]
    columns = [
        Column("Model"),
        *(Column(f"{distance}{'*' if distance in held_out else ''}", "number") for distance in distances),
    ]
    note = (
        f"Per cent of right numbers of the verb by words between it and its subject, mean over {len(record.seeds)} seed"
        f"{'' if len(record.seeds) == 1 else 's'}; * was not in training. Guess: "
        f"{100 * record.values['guess_rate']:g} %, untrained models {100 * min(untrained):.0f} to "
        f"{100 * max(untrained):.0f} %."
    )
    if any(row.get("learned") for row in rows):
        note += " Where some seeds learned and others did not, a cell says how many did, in the place of a mean."
    return Table(title="Accuracy by dependency length", columns=columns, rows=cells, note=note, is_matrix=True)


def accuracy_details(record: Record) -> Table | None:
    """Every mean with its interval, and that on sentences whose nearest noun has the other number."""
    rows = [
        [
            row["model"], "trained" if row["trained"] else "untrained", row["distance"],
            "no" if row["held_out"] else "yes", *_with_interval(row), *_with_interval(row["misled"]),
        ]
        for row in summary_of(record)
    ]  # fmt: skip
    if not rows:
        return None
    columns = [
        Column("Model"), Column("State"), Column("Words between", "integer"), Column("In training"),
        Column("Accuracy", "percent"), Column("95 %", "number"), Column("Nearest noun misleads", "percent"),
        Column("95 % of these", "number"),
    ]  # fmt: skip
    kind = summary_of(record)[0]["interval_is"]
    return Table(title="Accuracy by dependency length in full", columns=columns, rows=rows, note=f"Intervals: {kind}.")


def dependency_runs(record: Record) -> Table | None:
    """One row for each model and seed."""
    if record.kind != "study-dependency":
        return None
    rows = [
        [run["model"], run["seed"], run["parameters"], run["development_accuracy"], run["best_epoch"], run["seconds"]]
        for run in record.values["runs"]
    ]
    columns = [
        Column("Model"), Column("Seed", "integer"), Column("Parameters", "integer"),
        Column("Development accuracy", "percent"), Column("Best epoch", "integer"), Column("Seconds", "integer"),
    ]  # fmt: skip
    return Table(title="Runs of the study", columns=columns, rows=rows)


def speeds(record: Record) -> Table | None:
    """Training tokens a second of each model by sequence length."""
    if record.kind != "study-throughput":
        return None
    lengths = sorted({row["length"] for row in record.values["speeds"]})
    known = {(row["model"], row["length"]): row["tokens_per_second"] for row in record.values["speeds"]}
    rows = [[name, *(f"{known[name, length] / 1000:.1f}" for length in lengths)] for name in record.values["models"]]
    threads = record.environment.get("threads")
    note = (
        f"Median over paired rounds of a step on {record.config['tokens']:,} tokens: forward, backward, Adam; "
        f"{threads} thread{'' if threads == 1 else 's'}."
    )
    columns = [Column("Model"), *(Column(f"{length:,}", "number") for length in lengths)]
    title = "Thousand training tokens per second by sequence length"
    return Table(title=title, columns=columns, rows=rows, note=note, is_matrix=True)


def speed_ratios(record: Record) -> Table | None:
    """Time of each model over the baseline's."""
    if record.kind != "study-throughput" or not record.values["rows"]:
        return None
    lengths = sorted({row["length"] for row in record.values["rows"]})
    known = {(row["subject"], row["length"]): row for row in record.values["rows"]}
    names = [name for name in record.values["models"] if name != record.values["baseline"]]
    return Table(
        title=f"Time against the {record.values['baseline']}",
        columns=[Column("Model"), *(Column(f"{length:,}", "number") for length in lengths)],
        rows=[[name, *(f"{known[name, length]['ratio']:.2f}" for length in lengths)] for name in names],
        note="Median over paired rounds; below 1 the model is faster.",
        is_matrix=True,
    )


def speed_details(record: Record) -> Table | None:
    """What was timed, in full."""
    if record.kind != "study-throughput":
        return None
    ratios = {(row["subject"], row["length"]): ratio_text(row) for row in record.values["rows"]}
    rows = [
        [
            row["model"], record.values["parameters"][row["model"]], row["length"], row["tokens_per_second"],
            f"{row['quartiles'][0]:,.0f}–{row['quartiles'][1]:,.0f}", 1000 * row["seconds"],
            ratios.get((row["model"], row["length"])), row["rounds"],
        ]
        for row in record.values["speeds"]
    ]  # fmt: skip
    columns = [
        Column("Model"), Column("Parameters", "integer"), Column("Tokens of a sequence", "integer"),
        Column("Tokens per second", "integer"), Column("Quartiles", "number"), Column("Step, ms", "number"),
        Column(f"Time against the {record.values['baseline']}", "number"),
        Column("Rounds", "integer"),
    ]  # fmt: skip
    return Table(title="Training speed in full", columns=columns, rows=rows)


def gradient_ratios(record: Record) -> Table | None:
    """How much larger the last layer's gradient is than the first one's, for each model, norm, place and step."""
    found = gradients_of(record)
    if not found:
        return None
    steps = sorted({step for _, _, _, step in found})
    forms = list(dict.fromkeys(key[:3] for key in found))
    rows = []
    for model, place, norm in forms:
        members = [found[model, place, norm, step] for step in steps]
        ratios = [geometric_mean([norms[-1] / norms[0] for norms, _ in one]) for one in members]
        losses = [statistics.fmean(loss for _, loss in one) for one in members]
        rows.append([model, place, norm and readable(norm), *ratios, losses[-1]])
    columns = [
        Column("Model"), Column("Norms"), Column("Kind"),
        *(Column(f"Step {step:,}", "number") for step in steps),
        Column("Loss", "loss"),
    ]  # fmt: skip
    shown = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    note = (
        "Gradient norm of the last layer over that of the first: geometric mean over seeds; far from 1 the layers "
        "learn at different speeds. Loss in nats, after the most steps."
    )
    return Table(
        title=f"Gradients of the last layer over the first, {record.values['layers']} layers",
        columns=[columns[index] for index in shown], rows=[[row[index] for index in shown] for row in rows], note=note,
    )  # fmt: skip


def gradient_details(record: Record) -> Table | None:
    """Gradient norms of every layer, seed and step."""
    if record.kind != "study-gradients":
        return None
    rows = [
        [row["model"], row["place"], row["norm"], row["seed"], row["step"], row["loss"], *row["gradient_norms"]]
        for row in record.values["rows"]
    ]
    layers = range(record.values["layers"])
    columns = [
        Column("Model"), Column("Norms"), Column("Kind"), Column("Seed", "integer"), Column("Step", "integer"),
        Column("Loss", "loss"), *(Column(f"Layer {layer}", "number") for layer in layers),
    ]  # fmt: skip
    return Table(title="Gradient norms by layer", columns=columns, rows=rows)


Form = tuple[str, str | None, str | None, int]
"""Model, place of its norms, kind of norm, step."""


def gradients_of(record: Record) -> dict[Form, list[tuple[list[float], float]]]:
    """Gradient norms by layer and the loss, of every seed; empty for other records."""
    found: dict[Form, list[tuple[list[float], float]]] = {}
    for row in record.values["rows"] if record.kind == "study-gradients" else []:
        key = (row["model"], row["place"], row["norm"], row["step"])
        found.setdefault(key, []).append((row["gradient_norms"], row["loss"]))
    return found


def geometric_mean(values: Sequence[float]) -> float | None:
    """None where a value is not above 0."""
    return statistics.geometric_mean(values) if min(values) > 0 else None


def summary_of(record: Record) -> list[dict[str, Any]]:
    """Means over seeds of a study of dependency lengths; empty for other records."""
    return list(record.values["summary"]) if record.kind == "study-dependency" else []


def _mean_or_counts(row: dict[str, Any] | None) -> str | None:
    """Per cent, or ``2 of 3`` where some seeds learned and others did not."""
    if row is None or not row.get("learned"):
        return _percent(None if row is None else row["accuracy"])
    return "{} of {}".format(*row["learned"])


def _with_interval(row: dict[str, Any]) -> list[Any]:
    """Mean and interval; counts, where some seeds learned and others did not."""
    if row.get("learned"):
        return ["learned: {} of {}".format(*row["learned"]), None]
    return [row["accuracy"], _interval(row["interval"])]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f}"


def _interval(bounds: Any) -> str | None:
    return None if not bounds else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f}"
