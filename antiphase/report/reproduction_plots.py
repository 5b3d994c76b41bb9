"""Records of ``antiphase reproduce`` → one figure of all claims."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.records import Record
from antiphase.report.plots import STYLE
from antiphase.report.reproduction import COLOURS, claims_of

XLABEL = "better than softmax by, in per cent of its mean\n(logarithmic beyond 10 %; bars: 95 %, dots: seeds)"


@matplotlib.rc_context(STYLE)
def claims(record: Record) -> Figure | None:
    """Differential against softmax, in per cent of the softmax arm's mean and turned so that better is to the right.

    Only what was put to the test; small dots are seeds.
    """
    rows = [
        row for row in claims_of(record)
        if (row.get("difference") is not None or row.get("learned"))
        and row.get("softmax") and row["verdict"] != "not testable"
    ]  # fmt: skip
    if not rows:
        return None
    figure = Figure(figsize=(9.2, 1.4 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        scale = (-100 if row["lower_is_better"] else 100) / abs(row["softmax"])
        colour = COLOURS[row["verdict"]]
        # accuracies of older records may be of models that learned and models that did not: seeds alone are drawn
        has_mean = row.get("difference") is not None and (row.get("floor") is None or "values" in row)
        if has_mean and row["interval"] is not None:
            axes.plot([scale * end for end in row["interval"]], [place, place], color=colour, linewidth=2.5)
        if has_mean:
            axes.plot(scale * row["difference"], place, "o", color=colour)
        seeds = [scale * value for value in row.get("differences") or []]
        axes.plot(seeds, [place + 0.25] * len(seeds), ".", color=colour, markersize=4, alpha=0.7)
    for word in dict.fromkeys(row["verdict"] for row in rows):
        axes.plot([], [], "o-", color=COLOURS[word], label=word)
    axes.axvline(0, color="#333333", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [row["claim"] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=10)
    low, high = axes.get_xlim()
    ticks = [-1000, -100, -10, 0, 10, 100, 1000] if max(-low, high) > 10 else [-10, -5, -2, 0, 2, 5, 10]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.set_xticklabels([f"{tick:+d} %" if tick else "0" for tick in ticks if low <= tick <= high])
    axes.set_title("Differential against softmax")
    axes.set_xlabel(XLABEL, loc="right")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="best", fontsize="small")
    return figure
