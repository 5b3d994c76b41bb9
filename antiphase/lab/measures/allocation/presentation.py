"""Records of ``antiphase evaluate allocation`` as tables, with the paper's values, and a figure."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.measures import retrieval_presentation
from antiphase.lab.measures.allocation import Allocation
from antiphase.lab.measures.retrieval_presentation import Retrieval, allocation_drawing, state
from antiphase.lab.measures.retrieval_results import MapAllocation
from antiphase.lab.pages.plots import COLOURS, PERCENT, STYLE, legend_below, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, depth_text, format_value

PAPER_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PAPER: dict[tuple[str, str], tuple[float, ...]] = {
    ("softmax", "answer"): (0.03, 0.03, 0.03, 0.07, 0.09),
    ("softmax", "noise"): (0.51, 0.54, 0.52, 0.49, 0.49),
    ("differential", "answer"): (0.27, 0.30, 0.31, 0.32, 0.40),
    ("differential", "noise"): (0.01, 0.02, 0.02, 0.02, 0.01),
}
"""Attention on the answer and on the rest of the context by depth of the answer (2410.05258, table 3)."""
RATIO = "answer ÷ noise"


@Allocation.from_record
def by_depth(allocation: Allocation) -> Table | None:
    """Attention to answer and noise by depth of the answer, as share of Σ|A| and as signed sum."""
    rows = allocation.last()
    depths = list(dict.fromkeys(row.depth for row in rows))
    groups: dict[tuple[str, str], dict[float | None, MapAllocation]] = {}
    for row in rows:
        groups.setdefault((row.arm, state(row)), {})[row.depth] = row
    cells: list[list[Any]] = []
    for key, found in groups.items():
        for measure, style in (("share", "percent"), ("signed", "signed"), ("contribution", "percent")):
            for name in ("answer", "noise", *((RATIO,) if measure != "contribution" else ())):
                values = [_figure(found[depth], name, measure) if depth in found else None for depth in depths]
                shown = "number" if name == RATIO else style
                cells.append([*key, measure, name, *(format_value(value, shown) for value in values)])
    if not cells:
        return None
    if allocation.task == "text":
        for (kind, name), known in PAPER.items():
            listed = dict(zip(PAPER_DEPTHS, known, strict=True))
            printed = [None if depth not in listed else f"{listed[depth]:.2f}" for depth in depths]
            cells.append([f"the paper, {kind}", "trained", "", name, *printed])
    names = ["Anywhere" if depth is None else f"Depth {depth_text(depth)}" for depth in depths]
    columns = [*(Column(name) for name in ("Model", "", "Measure", "On")), *(Column(name, "number") for name in names)]
    note = (
        "Mean over layers and heads of the map that multiplies the values, seen from the last token of the question; "
        "share is of Σ|A|, signed the sum of the weights, contribution the part of a layer's output along the whole of "
        "it, noise the other needles and the filler. Signed figures are small for any two maps that cancel: read the "
        "share and the untrained model beside them. The paper's (table 3, 3B parameters) are normalized scores."
    )
    return Table(title="Attention by depth of the answer", columns=columns, rows=cells, note=note)


def _figure(row: MapAllocation, name: str, measure: str) -> float | None:
    if name != RATIO:
        return row.on(name, measure)
    ratio: float | None = None if row.answer_to_noise is None else getattr(row.answer_to_noise, measure)
    return ratio


@Allocation.from_record
@matplotlib.rc_context(STYLE)
def share_by_depth(found: Allocation) -> Figure | None:
    """Share of Σ|A| on the answer and on the noise by depth of the answer; untrained models have dashed lines."""
    rows = [(row.depth, row) for row in found.last() if row.depth is not None]
    if not rows:
        return None
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("answer", "noise"), strict=True):
        for index, arm in enumerate(dict.fromkeys(row.arm for _, row in rows)):
            for trained in (True, False):
                own = {depth: row for depth, row in rows if (row.arm, row.trained) == (arm, trained)}
                points = [(depth, row.on(name, "share")) for depth, row in sorted(own.items())]
                if not points:
                    continue
                axes.plot(
                    *zip(*points, strict=True), "o-" if trained else "o--", color=COLOURS[index % len(COLOURS)],
                    markerfacecolor=None if trained else "white",
                    label=f"{visible(arm)}, {'trained' if trained else 'untrained'}",
                )  # fmt: skip
        axes.set(title=f"On the {name}", xlabel="depth of the answer", ylabel="share of Σ|A|")
        axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({depth for depth, _ in rows}))
        axes.yaxis.set_major_formatter(PERCENT)
    legend_below(figure, 4, fontsize=9)
    return figure


def retrieval_of(record: Record) -> Retrieval:
    """Where attention went; nothing of other records."""
    rows = (Allocation.read(record) or Allocation(rows=[])).rows
    return Retrieval(list(dict.fromkeys(row.arm for row in rows if row.depth is None)), allocation=rows)


def _tables(record: Record) -> list[Table | None]:
    found = retrieval_of(record)
    return [by_depth(record), retrieval_presentation.allocation(found), retrieval_presentation.knockouts(found)]


PRESENTATION = Presentation(
    introduction="Where the last prompt token attends (as a share of Σ|A| and as a signed sum), what this adds to the "
    "layers' outputs, and how much the answer's log-probability loses without it. The signed sum alone flatters maps "
    "that subtract: read them together, and the untrained model beside them.",
    tables=_tables,
    figures={
        "allocation": allocation_drawing(retrieval_of),
        "allocation-by-depth": Drawing(
            draw=share_by_depth,
            title="Where attention went, by depth of the answer",
            caption="Share of Σ|A|, mean over layers and heads; dashed: the same models untrained.",
            alternative="Line charts of attention on the answer and on the noise over the depth of the answer.",
        ),
    },
    arms=lambda record: retrieval_of(record).arms,
)
