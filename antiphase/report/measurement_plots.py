"""Records of ``antiphase evaluate`` → figures, but for those that comparisons have too."""

from __future__ import annotations

import statistics
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.records import Record
from antiphase.report.plots import COLOURS, PERCENT, STYLE, visible
from antiphase.report.retrieval import LAST_MAPS, depth_rows, mass


def _mean_task(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Many tasks as one: means over them; the interval is that between their quartiles, an order's dots are tasks."""
    rows = []
    for of_count in zip(*(task["rows"] for task in tasks), strict=False):
        accuracies = [row["accuracy"] for row in of_count]
        low, _, high = statistics.quantiles(accuracies, n=4)
        rows.append({"shots": of_count[0]["shots"], "accuracy": statistics.fmean(accuracies), "interval": [low, high]})
    orders = {}
    for kind in tasks[0]["orders"]:
        means = [task["orders"][kind]["mean_accuracy"] for task in tasks if kind in task["orders"]]
        orders[kind] = {"accuracies": means, "mean_accuracy": statistics.fmean(means)}
    return {
        "rows": rows, "orders": orders, "majority_rate": statistics.fmean(task["majority_rate"] for task in tasks),
    }  # fmt: skip


@matplotlib.rc_context(STYLE)
def accuracy_by_shots(record: Record) -> Figure | None:
    """Accuracy over numbers of examples, and over their orders; of many tasks their mean."""
    tasks = record.values.get("tasks") if record.kind == "evaluate-many-shot" else None
    if not tasks:
        return None
    if len(tasks) > len(COLOURS):
        tasks = {f"mean of {len(tasks)} tasks": _mean_task(list(tasks.values()))}
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    counts = sorted({row["shots"] for found in tasks.values() for row in found["rows"]})
    apart = min(0.12, 0.6 / len(tasks))
    for index, (name, found) in enumerate(tasks.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [counts.index(row["shots"]) for row in found["rows"]]
        left.plot(places, [row["accuracy"] for row in found["rows"]], "o-", color=colour, label=name)
        low, high = zip(*(row["interval"] for row in found["rows"]), strict=True)
        left.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        left.axhline(found["majority_rate"], color=colour, linewidth=1.2, linestyle=":")
        for place, row in enumerate(found["orders"].values()):
            x = place + apart * index
            right.plot([x] * len(row["accuracies"]), row["accuracies"], "o", color=colour, alpha=0.5)
            right.plot(x, row["mean_accuracy"], "_", color=colour, markersize=22, markeredgewidth=2)
    left.set_xticks(range(len(counts)), [f"{count:,}" for count in counts])
    left.set(title="Accuracy by number of examples", xlabel="examples (dotted: commonest label)")
    left.legend(fontsize=9)
    kinds = list(dict.fromkeys(kind for found in tasks.values() for kind in found["orders"]))
    right.set_xticks(range(len(kinds)), kinds)
    right.set_xlim(-0.5, max(1, len(kinds)) - 0.5 + apart * len(tasks))
    right.set(title="Same examples, other orders")
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PERCENT)
    return figure


@matplotlib.rc_context(STYLE)
def allocation_by_depth(record: Record) -> Figure | None:
    """Share of Σ|A| on the answer and on the noise over the depth of the answer; untrained models dashed."""
    rows = [
        row for row in depth_rows(record)
        if row["layer"] == "all" and row["map"] in LAST_MAPS and row["depth"] is not None
    ]  # fmt: skip
    if not rows:
        return None
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("answer", "noise"), strict=True):
        for index, arm in enumerate(arms):
            for trained in (True, False):
                found = sorted(
                    (row["depth"], mass(row, name, "share"))
                    for row in rows
                    if row["arm"] == arm and row["trained"] is trained
                )
                axes.plot(
                    *zip(*found, strict=True), "o-" if trained else "o--", color=COLOURS[index % len(COLOURS)],
                    markerfacecolor=None if trained else "white",
                    label=f"{visible(arm)}, {'trained' if trained else 'untrained'}",
                )  # fmt: skip
        axes.set(title=f"On the {name}", xlabel="depth of the answer", ylabel="share of Σ|A|")
        axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({row["depth"] for row in rows}))
        axes.yaxis.set_major_formatter(PERCENT)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9)
    return figure
