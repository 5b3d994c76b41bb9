"""Records of ``antiphase evaluate harness`` as tables and a figure, with the paper's numbers."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.measures.harness import Harness, RowDifference
from antiphase.lab.pages.plots import COLOURS, MARKERS, PERCENT, STYLE, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, format_value, interval_text

SEVEN = {
    "arc_challenge": "ARC-C", "arc_easy": "ARC-E", "boolq": "BoolQ", "hellaswag": "HellaSwag", "openbookqa": "OBQA",
    "piqa": "PIQA", "winogrande": "WinoGrande",
}  # fmt: skip
"""The paper's tasks by their names in lm-eval, in the order of its tables."""
SHARES = ("acc", "acc_norm", "exact_match", "f1")
"""Measures of lm-eval that are shares, which per cent and averages are for; others are perplexities, for example."""
PAIR = ("Transformer-3B", "DIFF-3B")
PUBLISHED_PAIR: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    0: ((32.2, 66.8, 62.9, 63.4, 26.2, 74.5, 61.6), (33.0, 68.3, 60.1, 66.2, 27.6, 75.5, 62.7)),
    5: ((34.0, 69.5, 65.3, 63.4, 25.0, 75.2, 62.6), (35.0, 69.5, 67.2, 66.9, 27.6, 76.1, 63.8)),
}
"""Accuracies in per cent by number of examples; models of equal size after 350B tokens (2410.05258, table 8)."""
PUBLISHED_MODELS: dict[str, tuple[float, ...]] = {
    "OpenLLaMA-3B-v2": (33.9, 67.6, 65.7, 70.0, 26.0, 76.7, 62.9),
    "StableLM-base-alpha-3B-v2": (32.4, 67.3, 64.6, 68.6, 26.4, 76.0, 62.1),
    "DIFF-3B": (37.8, 72.9, 69.0, 71.4, 29.0, 76.8, 67.1),
}
"""The same without examples, after 1T tokens (table 1)."""


def published(numbers: tuple[float, ...], tasks: list[str]) -> list[float | None]:
    """The paper's accuracies on these tasks, as shares."""
    known = dict(zip(SEVEN, numbers, strict=True))
    return [known[task] / 100 if task in known else None for task in tasks]


def is_share(metric: str | None) -> bool:
    """Whether a task's main measure, such as ``exact_match (strict)``, is a share."""
    return metric is not None and metric.partition(" ")[0] in SHARES


def downstream(record: Record) -> Table | None:
    """Tasks by models, with the guess rate and the paper's pair."""
    found = Harness.read(record)
    if found is None or not found.rows:
        return None
    rows, tasks, models = found.rows, found.tasks(), found.models
    pair = any(task in SEVEN for task in tasks) and any(shots in PUBLISHED_PAIR for shots in found.shots())
    unpublished: list[float | None] = [None] * len(tasks)
    lines: list[list[Any]] = []
    for shots in found.shots():
        here = {(row.model, row.task): row for row in rows if row.shots == shots}
        first = [next((row for (_, name), row in here.items() if name == task), None) for task in tasks]
        columns = [[here[model, task].value if (model, task) in here else None for task in tasks] for model in models]
        columns += [
            [None if row is None else getattr(row, key) for row in first] for key in ("guess_rate", "constant_rate")
        ]
        if pair:
            known = [published(numbers, tasks) for numbers in PUBLISHED_PAIR.get(shots, ())]
            columns += known or [unpublished, unpublished]
        shares = [row is None or is_share(row.metric) for row in first]
        for task, share, values in zip(tasks, shares, zip(*columns, strict=True), strict=True):
            cells = values if share else tuple(format_value(value) for value in values)
            lines.append([shots, SEVEN.get(task, task), *cells])
        if sum(shares) > 1:
            means = [_mean([value for value, one in zip(c, shares, strict=True) if one]) for c in columns]
            lines.append([shots, "average", *means])
    heads = [*found.short_names(), "Chance", "Constant", *(f"paper: {name}" for name in PAIR if pair)]
    note = "Accuracy; of HellaSwag, as in the paper, by length of the choices (acc_norm)."
    others = {row.task: row.metric for row in rows if row.metric not in ("acc", "acc_norm")}
    if others:
        note += "" if all(map(is_share, others.values())) else " The average is over shares alone."
        note += f" Other measures: {', '.join(f'{metric} of {task}' for task, metric in others.items())}."
    limit = record.config.get("limit")
    if limit is not None:
        note += f" Only {limit:g} rows of each task." if limit >= 1 else f" Only {100 * limit:g} % of each task's rows."
    cut = [row for row in rows if row.cut]
    if cut:
        worst = max(cut, key=lambda row: row.cut)
        note += (
            f" Longer than the model reads, so lm-eval left out their beginning: up to {100 * worst.cut:.3g} % of "
            f"the requests ({worst.task} with all of its group, {worst.shots} examples, {worst.model})."
        )
    note += " Chance: choosing uniformly. Constant: always the commonest place among the choices."
    if pair:
        note += " Paper: 2410.05258, table 8, 350B training tokens."
    shown = [Column("Shots", "integer"), Column("Task"), *(Column(head, "percent") for head in heads)]
    return Table(title="Downstream tasks", columns=shown, rows=lines, note=note)


@Harness.from_record
def paper(found: Harness) -> Table | None:
    """The paper's table 1, for the tasks that were measured without examples."""
    tasks = [task for task in found.tasks() if task in SEVEN] if 0 in found.shots() else []
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


@Harness.from_record
def details(read: Harness) -> Table | None:
    """All metrics with standard errors and intervals."""
    if not read.rows:
        return None
    columns = [Column("Task"), Column("Version"), Column("Examples", "integer"), Column("Model"), Column("Metric"),
               Column("Value", "number"), Column("Standard error", "number"), Column("95 %"),
               Column("Rows", "integer"), Column("Against the first model"), Column("Cut", "percent")]  # fmt: skip
    lines = [
        [
            row.task, row.version, row.shots, row.model, metric, found.value, found.stderr,
            interval_text(found.interval), row.samples, _difference(row.difference) if metric == row.metric else None,
            row.cut,
        ]
        for row in read.rows
        for metric, found in row.metrics.items()
    ]  # fmt: skip
    note = (
        f"lm-eval {read.lm_eval}; standard errors are its own, intervals Wilson's; differences are paired "
        "over the same rows, with Student's 95 % interval. Cut: requests whose beginning the model could not read."
    )
    return Table(title="Downstream tasks, every metric", columns=columns, rows=lines, note=note)


def _difference(difference: RowDifference | None) -> str | None:
    if difference is None:
        return None
    return f"{difference.value:+.3f} ({interval_text(difference.interval)})"


def _mean(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None


@Harness.from_record
@matplotlib.rc_context(STYLE)
def scores_by_task(found: Harness) -> Figure | None:
    """A panel per number of examples: models by tasks, guess rates, and the paper's pair."""
    rows = [row for row in found.rows if is_share(row.metric)]
    tasks = [task for task in found.tasks() if any(row.task == task for row in rows)]
    if not rows:
        return None
    models, names, panels = found.models, found.short_names(), found.shots()
    width = max(4.2, 1.2 + 0.17 * len(tasks) * (len(models) + 2))
    figure = Figure(figsize=(width * len(panels), 4.4), layout="constrained")
    for axes, shots in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        numbers = PUBLISHED_PAIR.get(shots, ()) if any(task in SEVEN for task in tasks) else ()
        paper = [(name, published(given, tasks)) for name, given in zip(PAIR, numbers, strict=False)]
        count = len(models) + len(paper)
        for place, task in enumerate(tasks):
            here = [row for row in rows if row.task == task and row.shots == shots]
            guess = max((row.guess_rate or 0 for row in here), default=0)
            if guess:
                axes.hlines(guess, place - 0.42, place + 0.42, color="#777777", linewidth=1.4, linestyle=":",
                            label="choosing at random")  # fmt: skip
            for row in here:
                index, share = models.index(row.model), row.value
                if share is None or row.metric is None:
                    continue
                low, high = row.metrics[row.metric].interval or (share, share)
                axes.errorbar(
                    place + 0.8 * ((index + 0.5) / count - 0.5), share, [[max(0, share - low)], [max(0, high - share)]],
                    fmt=MARKERS[index % len(MARKERS)], color=COLOURS[index % len(COLOURS)], capsize=2,
                    label=visible(names[index], 40),
                )  # fmt: skip
        for index, (name, shares) in enumerate(paper, start=len(models)):
            points = [
                (place + 0.8 * ((index + 0.5) / count - 0.5), share)
                for place, share in enumerate(shares)
                if share is not None
            ]
            axes.plot(*zip(*points, strict=True), "x" if "DIFF" not in name else "+", color="#333333",
                      label=f"paper: {name}", markersize=8)  # fmt: skip
        axes.set_xticks(range(len(tasks)), [SEVEN.get(task, visible(task)) for task in tasks], rotation=30, ha="right")
        axes.set_xlim(-0.6, len(tasks) - 0.4)
        axes.set(title="Zero-shot" if shots == 0 else f"{shots}-shot", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PERCENT)
        axes.grid(visible=False, axis="x")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))  # one entry per label
    order = sorted(once, key=lambda label: (label.startswith("paper"), label == "choosing at random"))
    figure.legend([once[label] for label in order], order, loc="outside lower center", fontsize=9, ncols=2)
    return figure


PRESENTATION = Presentation(
    introduction="Tasks of EleutherAI's lm-eval: the model chooses the answer that it finds likeliest, "
    "after no examples and after some. Read every share beside what choosing at random reaches.",
    tables=lambda record: [downstream(record), paper(record)],
    figures={
        "harness": Drawing(
            draw=scores_by_task,
            title="Downstream tasks",
            caption="Points are shares of right answers with their 95 % intervals over rows. Dotted: choosing at "
            "random. Crosses: the paper's pair of equal size and training (table 8), models of 3B parameters.",
            alternative="Dots with intervals for each task and model, a panel for each number of examples.",
        )
    },
    details=lambda record: [details(record)],
)
