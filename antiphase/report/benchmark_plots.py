"""Records of ``antiphase benchmark`` → figures."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.records import Record
from antiphase.report.benchmarks import SHORT_TYPES, is_ordinary, relative_seconds
from antiphase.report.plots import COLOURS, STYLE, legend_below

TALLEST_BAR = 2.6
"""Of times relative to the ordinary way; a longer bar is cut and its number stands above it."""
MOST_LEVEL_NUMBERS = 18
"""Of bars in a panel; the numbers over more of them stand upright."""


@matplotlib.rc_context(STYLE)
def relative_times(record: Record) -> Figure | None:
    """Bars: time of each way, divided by that of the ordinary one, by length; a panel for each task and dtype."""
    panels = relative_seconds(record)
    if not panels:
        return None
    tasks, types = (list(dict.fromkeys(key[index] for key in panels)) for index in (0, 1))
    names = list(dict.fromkeys(name for group in panels.values() for times in group.values() for name in times))
    ordinary = next((name for name in names if is_ordinary(name)), None)
    if ordinary is None:
        return None
    drawn = [name for name in names if name != ordinary]
    figure = Figure(figsize=(4.6 * len(tasks) + 0.6, 3.1 * len(types) + 0.9), layout="constrained")
    grid = figure.subplots(len(types), len(tasks), squeeze=False, sharey=True)
    for (row, dtype), (column, task) in ((r, c) for r in enumerate(types) for c in enumerate(tasks)):
        axes = grid[row][column]
        lengths = {length: times for length, times in panels.get((task, dtype), {}).items() if ordinary in times}
        for place, length in enumerate(sorted(lengths)):
            times = lengths[length]
            here = [name for name in drawn if name in times]
            width = 0.8 / max(1, len(here))
            for index, name in enumerate(here):
                ratio = times[name] / times[ordinary]
                x = place + (index - (len(here) - 1) / 2) * width
                axes.bar(
                    x,
                    min(ratio, TALLEST_BAR),
                    0.92 * width,
                    color=COLOURS[drawn.index(name) % len(COLOURS)],
                    hatch="///" if drawn.index(name) >= len(COLOURS) else None,
                    edgecolor="white",
                    linewidth=0,
                    label=name,
                )
                axes.annotate(
                    f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}", (x, min(ratio, TALLEST_BAR)), xytext=(0, 2),
                    textcoords="offset points", ha="center", fontsize=8.5,
                    rotation=90 if len(drawn) * len(lengths) > MOST_LEVEL_NUMBERS else 0,
                )  # fmt: skip
            axes.set_xticks(range(len(lengths)), [f"{found:,}" for found in sorted(lengths)])
        axes.axhline(1.0, color="#333333", linewidth=1.4, label=ordinary)
        axes.set(title=f"{task}, {SHORT_TYPES.get(dtype, dtype)}", ylim=(0, TALLEST_BAR * 1.18))
        axes.grid(visible=False, axis="x")
        if row == len(types) - 1:
            axes.set_xlabel("cached tokens" if task == "decode" else "tokens")
        if column == 0:
            axes.set_ylabel("time, ordinary way = 1")
    legend_below(figure, 3)
    return figure
