"""Records of ``antiphase evaluate`` → figures, but for those that comparisons have too."""

from __future__ import annotations

import statistics
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from antiphase.records import Record
from antiphase.report.plots import COLOURS, PERCENT, STYLE, visible
from antiphase.report.retrieval import LAST_MAPS, depth_rows, mass


@matplotlib.rc_context(STYLE)
def loss_by_length(record: Record) -> Figure | None:
    """Cumulative loss over growing context, with its interval over windows."""
    rows = record.values.get("curve") if record.kind == "evaluate-long-context" else None
    if not rows:
        return None
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    places = [row["position"] for row in rows]
    axes.plot(places, [row["loss"] for row in rows], "o-", color=COLOURS[0])
    if all(row["interval"] for row in rows):
        low, high = zip(*(row["interval"] for row in rows), strict=True)
        axes.fill_between(places, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.set(title="Loss over all tokens up to a position", xlabel="tokens of context", ylabel="nats per token")
    return figure


@matplotlib.rc_context(STYLE)
def largest_by_layer(record: Record) -> Figure | None:
    """Largest and median sizes by layer."""
    rows = record.values.get("rows") if record.kind == "evaluate-outliers" else None
    rows = [row for row in rows or [] if row["layer"] != "all"]
    if not rows:
        return None
    kinds = list(dict.fromkeys(row["what"] for row in rows))
    figure = Figure(figsize=(4.4 * len(kinds), 3.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        of_kind = [row for row in rows if row["what"] == kind]
        layers = [int(row["layer"]) for row in of_kind]
        for index, place in enumerate(("1", "10", "100")):
            points = [
                (layer, row["top"][place]) for layer, row in zip(layers, of_kind, strict=True) if place in row["top"]
            ]
            axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[index], label=f"top {place}")
        axes.plot(layers, [row["median"] for row in of_kind], "o--", color="#555555", label="median")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(title=kind.capitalize(), xlabel="layer", ylabel="size")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=9)
    return figure


@matplotlib.rc_context(STYLE)
def loss_by_bits(record: Record) -> Figure | None:
    """Loss and retrieval with attention logits in few bits, beside all bits."""
    rows = record.values.get("rows") if record.kind == "evaluate-quantization" else None
    if not rows:
        return None
    few = sorted((row for row in rows if row["bits"] is not None), key=lambda row: row["bits"])
    whole = next(row for row in rows if row["bits"] is None)
    places = range(len(few))
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(places, [row["loss"] for row in few], "o-", color=COLOURS[0])
    left.axhline(whole["loss"], color="#333333", linewidth=1.2, linestyle="--", label="all bits")
    left.set(title="Held-out loss", ylabel="nats per token")
    errors = [
        [row["retrieval"] - row["interval"][0] for row in few],
        [row["interval"][1] - row["retrieval"] for row in few],
    ]
    right.errorbar(places, [row["retrieval"] for row in few], yerr=errors, fmt="o-", color=COLOURS[0], capsize=3)
    right.axhline(whole["retrieval"], color="#333333", linewidth=1.2, linestyle="--", label="all bits")
    right.axhline(record.values["guess_rate"], color="#999999", linewidth=1.2, linestyle=":", label="guess")
    right.set(title="Retrieval", ylim=(-0.03, 1.03))
    right.yaxis.set_major_formatter(PERCENT)
    for axes in (left, right):
        axes.set_xticks(places, [str(row["bits"]) for row in few])
        axes.set_xlabel("bits of attention logits")
        axes.legend(fontsize=9)
    return figure


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
