"""Records of ``antiphase evaluate many-shot`` as tables, a figure and text."""

from __future__ import annotations

import statistics
from dataclasses import replace

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.measures.many_shot import ManyShot, TaskShots
from antiphase.lab.pages.plots import COLOURS, PERCENT, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation, by_model
from antiphase.lab.pages.tables import Column, Table, percents_text, table_of


@ManyShot.from_record
def shots(read: ManyShot) -> Table | None:
    """Accuracy by number of examples."""
    tasks = read.tasks
    columns = [Column("Task"), Column("Examples", "integer"), Column("Tokens", "integer"),
               Column("Accuracy", "percent"), Column("95 %"), Column("Guess", "percent"),
               Column("Commonest label", "percent"), Column("Label shown", "percent")]  # fmt: skip
    rows = [
        [
            name, row.shots, row.tokens, row.accuracy,
            percents_text(row.interval), found.guess_rate,
            found.majority_rate, row.label_shown,
        ]
        for name, found in tasks.items()
        for row in found.rows
    ]  # fmt: skip
    note = (
        "Answers are decoded over the labels only. Tokens: the median prompt's. Label shown: questions whose label is "
        "among the examples."
    )
    for field, reason in (("left_out", "Longer than the model reads"), ("too_few_rows", "Too few rows for")):
        counts = sorted({count for found in tasks.values() for count in getattr(found, field)})
        if counts:
            note += f" {reason}: {', '.join(map(str, counts))} examples."
    return Table(title="Accuracy by number of examples", columns=columns, rows=rows, note=note)


@ManyShot.from_record
def orders(read: ManyShot) -> Table | None:
    """Accuracy over orders of the same examples."""
    rows = [
        [
            name, kind, row.shots, len(row.accuracies), row.mean_accuracy, row.margin, row.flip_share,
            row.pair_flips, 2 * row.mean_accuracy * (1 - row.mean_accuracy), found.samples,
            found.majority_rate,
        ]
        for name, found in read.tasks.items()
        for kind, row in found.orders.items()
    ]  # fmt: skip
    columns = [Column("Task"), Column("Order"), Column("Examples", "integer"), Column("Orders", "integer"),
               Column("Mean accuracy", "percent"), Column("Best - worst", "percent"),
               Column("Answers that flip", "percent"), Column("Between two orders", "percent"),
               Column("Expected by chance", "percent"), Column("Asked", "integer"),
               Column("Commonest label", "percent")]  # fmt: skip
    note = (
        "A model that always gives one answer has margin 0: read it beside accuracy, flips and the commonest label. "
        "Expected by chance: 2p(1-p), the share that would flip between right and wrong if answers of the same "
        "accuracy were drawn at random for each order. Fewer than 200 questions decide nothing about orders."
    )
    return table_of("The same examples in other orders", columns, rows, note)


def _mean_task(tasks: list[TaskShots]) -> TaskShots:
    """Means over many tasks; intervals become quartiles, and the dots of an order are tasks."""
    rows = []
    for count in sorted({row.shots for task in tasks for row in task.rows}):
        of_count = [row for task in tasks for row in task.rows if row.shots == count]
        if len(of_count) < len(tasks):  # the mean of fewer tasks would be no point of the same line
            continue
        accuracies = [row.accuracy for row in of_count]
        low, _, high = statistics.quantiles(accuracies, n=4, method="inclusive")
        rows.append(replace(of_count[0], accuracy=statistics.fmean(accuracies), interval=[low, high]))
    orders = {}
    for kind, first in tasks[0].orders.items():
        means = [task.orders[kind].mean_accuracy for task in tasks if kind in task.orders]
        orders[kind] = replace(first, accuracies=means, mean_accuracy=statistics.fmean(means))
    majority = statistics.fmean(task.majority_rate for task in tasks)
    return replace(tasks[0], rows=rows, orders=orders, majority_rate=majority)


def _lines(record: Record) -> dict[str, TaskShots]:
    """A line for each task; for each model where there are several, or one for all tasks where they are too many."""
    read = {name: ManyShot.read(own) for name, own in by_model(record).items()}
    models = {name: found.tasks for name, found in read.items() if found is not None and found.tasks}
    if len(models) == 1 and len(tasks := next(iter(models.values()))) <= len(COLOURS):
        return tasks
    if len(models) == 1:
        models = {f"mean of {len(tasks)} tasks": tasks}
    return {
        name: _mean_task(list(own.values())) if len(own) > 1 else next(iter(own.values()))
        for name, own in models.items()
    }


@matplotlib.rc_context(STYLE)
def accuracy_by_shots(record: Record) -> Figure | None:
    """Accuracy by number of examples, and over their orders; for several models or many tasks, means over tasks."""
    tasks = _lines(record)
    if not tasks:
        return None
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    counts = sorted({row.shots for found in tasks.values() for row in found.rows})
    apart = min(0.12, 0.6 / len(tasks))
    for index, (name, found) in enumerate(tasks.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [counts.index(row.shots) for row in found.rows]
        left.plot(places, [row.accuracy for row in found.rows], "o-", color=colour, label=name)
        low, high = zip(*(row.interval for row in found.rows), strict=True)
        left.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        left.axhline(found.majority_rate, color=colour, linewidth=1.2, linestyle=":")
        for place, row in enumerate(found.orders.values()):
            x = place + apart * index
            right.plot([x] * len(row.accuracies), row.accuracies, "o", color=colour, alpha=0.5)
            right.plot(x, row.mean_accuracy, "_", color=colour, markersize=22, markeredgewidth=2)
    left.set_xticks(range(len(counts)), [f"{count:,}" for count in counts])
    left.set(title="Accuracy by number of examples", xlabel="examples (dotted: commonest label)")
    left.legend(fontsize=9)
    kinds = list(dict.fromkeys(kind for found in tasks.values() for kind in found.orders))
    right.set_xticks(range(len(kinds)), kinds)
    right.set_xlim(-0.5, max(1, len(kinds)) - 0.5 + apart * len(tasks))
    right.set(title="Same examples, other orders")
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PERCENT)
    return figure


PRESENTATION = Presentation(
    introduction="Labelled examples before each question: accuracy over their number, and the same "
    "examples in other orders. Read every margin beside the accuracy and the share of answers that flip.",
    tables=lambda record: [shots(record), orders(record)],
    figures={
        "many-shot": Drawing(
            draw=accuracy_by_shots,
            title="Learning in context",
            caption="Left: accuracy with its 95 % interval; dotted: naming the commonest label. Right: each dot is an "
            "order. Many tasks, or the tasks of each of several models, are shown by their mean, with their quartiles, "
            "and each dot is a task.",
            alternative="Line chart of accuracy over numbers of examples, and dots for orders of the same examples.",
        )
    },
)
