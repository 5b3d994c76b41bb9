"""Records of ``antiphase evaluate harness`` → tables, with the paper's numbers beside them."""

from __future__ import annotations

from typing import Any

from antiphase.records import Record
from antiphase.report.tables import Column, Table, interval_text

SEVEN = {
    "arc_challenge": "ARC-C", "arc_easy": "ARC-E", "boolq": "BoolQ", "hellaswag": "HellaSwag", "openbookqa": "OBQA",
    "piqa": "PIQA", "winogrande": "WinoGrande",
}  # fmt: skip
"""The paper's tasks by their names in lm-eval, in the order of its tables."""
PAIR = ("Transformer-3B", "DIFF-3B")
PUBLISHED_PAIR: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    0: ((32.2, 66.8, 62.9, 63.4, 26.2, 74.5, 61.6), (33.0, 68.3, 60.1, 66.2, 27.6, 75.5, 62.7)),
    5: ((34.0, 69.5, 65.3, 63.4, 25.0, 75.2, 62.6), (35.0, 69.5, 67.2, 66.9, 27.6, 76.1, 63.8)),
}
"""Accuracies in per cent by number of examples, in the order of ``SEVEN``: models of equal size after 350B tokens
(2410.05258, table 8)."""
PUBLISHED_MODELS: dict[str, tuple[float, ...]] = {
    "OpenLLaMA-3B-v2": (33.9, 67.6, 65.7, 70.0, 26.0, 76.7, 62.9),
    "StableLM-base-alpha-3B-v2": (32.4, 67.3, 64.6, 68.6, 26.4, 76.0, 62.1),
    "DIFF-3B": (37.8, 72.9, 69.0, 71.4, 29.0, 76.8, 67.1),
}
"""The same without examples after 1T tokens (table 1)."""


def rows_of(record: Record) -> list[dict[str, Any]]:
    """One row for each model, task and number of examples."""
    return list(record.values.get("rows") or []) if record.kind == "evaluate-harness" else []


def shots_of(record: Record) -> list[int]:
    """Numbers of examples, in the order of the command."""
    return list(dict.fromkeys(row["shots"] for row in rows_of(record)))


def tasks_of(record: Record) -> list[str]:
    """Names of the tasks, in the order of the command."""
    return list(dict.fromkeys(row["task"] for row in rows_of(record)))


def short_names(record: Record) -> list[str]:
    """Names of the models: the last parts of their paths, where these tell them apart."""
    last = [str(name).rstrip("/").rpartition("/")[2] for name in record.values["models"]]
    return last if len(set(last)) == len(last) else list(record.values["models"])


def value_of(row: dict[str, Any]) -> float | None:
    """The metric that stands for a task."""
    return row["metrics"][row["metric"]]["value"] if row["metric"] is not None else None


def published(numbers: tuple[float, ...], tasks: list[str]) -> list[float | None]:
    """The paper's shares on these tasks."""
    known = dict(zip(SEVEN, numbers, strict=True))
    return [known[task] / 100 if task in known else None for task in tasks]


def downstream(record: Record) -> Table | None:
    """Tasks by models, beside what guessing reaches and the paper's pair."""
    rows, tasks = rows_of(record), tasks_of(record)
    if not rows:
        return None
    models = record.values["models"]
    pair = any(task in SEVEN for task in tasks) and any(shots in PUBLISHED_PAIR for shots in shots_of(record))
    unpublished: list[float | None] = [None] * len(tasks)
    lines: list[list[Any]] = []
    for shots in shots_of(record):
        here = {(row["model"], row["task"]): row for row in rows if row["shots"] == shots}
        first = [next((row for (_, name), row in here.items() if name == task), None) for task in tasks]
        columns = [
            [value_of(here[model, task]) if (model, task) in here else None for task in tasks] for model in models
        ]
        columns += [[None if row is None else row[key] for row in first] for key in ("guess_rate", "constant_rate")]
        if pair:
            known = [published(numbers, tasks) for numbers in PUBLISHED_PAIR.get(shots, ())]
            columns += known or [unpublished, unpublished]
        names = [*(SEVEN.get(task, task) for task in tasks), "average"]
        whole = zip(names, zip(*([*column, _mean(column)] for column in columns), strict=True), strict=True)
        lines += [[shots, name, *values] for name, values in whole if name != "average" or len(tasks) > 1]
    heads = [*short_names(record), "Chance", "Constant", *(f"paper: {name}" for name in PAIR if pair)]
    note = "Accuracy; of HellaSwag, as in the paper, by length of the choices (acc_norm)."
    others = {row["task"]: row["metric"] for row in rows if row["metric"] not in ("acc", "acc_norm")}
    if others:
        note = f"Accuracy, but {', '.join(f'{metric} of {task}' for task, metric in others.items())}."
    limit = record.config.get("limit")
    if limit is not None:
        note += f" Only {limit:g} rows of each task." if limit >= 1 else f" Only {100 * limit:g} % of each task's rows."
    cut = [row for row in rows if row["cut"]]
    if cut:
        worst = max(cut, key=lambda row: row["cut"])
        note += (
            f" Longer than the model reads, so lm-eval left out their beginning: up to {100 * worst['cut']:.3g} % of "
            f"the requests ({worst['task']}, {worst['shots']} examples, {worst['model']})."
        )
    note += " Chance: choosing uniformly. Constant: always the commonest place among the choices."
    if pair:
        note += " Paper: 2410.05258, table 8, 350B training tokens."
    shown = [Column("Shots", "integer"), Column("Task"), *(Column(head, "percent") for head in heads)]
    return Table(title="Downstream tasks", columns=shown, rows=lines, note=note)


def paper(record: Record) -> Table | None:
    """The paper's table 1, of the tasks that were measured without examples."""
    tasks = [task for task in tasks_of(record) if task in SEVEN] if 0 in shots_of(record) else []
    if not tasks:
        return None
    columns = [published(numbers, tasks) for numbers in PUBLISHED_MODELS.values()]
    rows: list[list[Any]] = [
        [SEVEN[task], *values] for task, values in zip(tasks, zip(*columns, strict=True), strict=True)
    ]
    if len(tasks) > 1:
        rows.append(["average", *map(_mean, columns)])
    shown = [Column("Task"), *(Column(name, "percent") for name in PUBLISHED_MODELS)]
    note = "2410.05258, table 1: no examples, 1T training tokens."
    return Table(title="The paper's larger runs", columns=shown, rows=rows, note=note)


def details(record: Record) -> Table | None:
    """Every metric, with its standard error and interval."""
    rows = rows_of(record)
    if not rows:
        return None
    columns = [Column("Task"), Column("Version"), Column("Examples", "integer"), Column("Model"), Column("Metric"),
               Column("Value", "number"), Column("Standard error", "number"), Column("95 %"),
               Column("Rows", "integer"), Column("Against the first model"), Column("Cut", "percent")]  # fmt: skip
    lines = [
        [
            row["task"], row["version"], row["shots"], row["model"], metric, found["value"], found["stderr"],
            interval_text(found["interval"]), row["samples"],
            _difference(row["difference"]) if metric == row["metric"] else None, row["cut"],
        ]
        for row in rows
        for metric, found in row["metrics"].items()
    ]  # fmt: skip
    note = (
        f"lm-eval {record.values['lm_eval']}; standard errors are its own, intervals Wilson's; differences are paired "
        "over the same rows, with Student's 95 % interval. Cut: requests whose beginning the model could not read."
    )
    return Table(title="Downstream tasks, every metric", columns=columns, rows=lines, note=note)


def _difference(difference: dict[str, Any] | None) -> str | None:
    if difference is None:
        return None
    return f"{difference['value']:+.3f} ({interval_text(difference['interval'])})"


def _mean(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None
