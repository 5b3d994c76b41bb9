"""Records of ``antiphase evaluate`` → figures, but for those that comparisons have too."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.records import Record
from antiphase.report.plots import COLOURS, PERCENT, STYLE, visible
from antiphase.report.retrieval import LAST_MAPS, depth_rows, mass


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
