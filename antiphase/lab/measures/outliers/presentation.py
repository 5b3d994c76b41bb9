"""Records of ``antiphase evaluate outliers`` as a table, a figure and text."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from antiphase.lab.measures.outliers import Outliers
from antiphase.lab.pages.plots import COLOURS, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table


@Outliers.from_record
def largest(found: Outliers) -> Table | None:
    """Largest attention logits and hidden states, and their kurtosis, by layer."""
    if not found.rows:
        return None
    places = list(dict.fromkeys(place for row in found.rows for place in row.top))
    columns = [Column("Of"), Column("Layer"), *(Column(f"Top {place}", "number") for place in places),
               Column("Median", "number"), Column("Kurtosis", "number"),
               Column("Kurtosis over channels", "number")]  # fmt: skip
    cells = [
        [row.what, row.layer, *(row.top.get(place) for place in places), row.median, row.kurtosis, row.channel_kurtosis]
        for row in found.rows
    ]
    note = (
        "Sizes |q·k| · scale and |hidden|. Kurtosis: of all signed values of a layer, 3 if they are normal. Over "
        "channels: of their root mean squares over tokens, 1 if all are equal, the width if only one is not 0. "
        'Kurtoses of "all" are means over layers.'
    )
    return Table(title="Largest values", columns=columns, rows=cells, note=note)


@Outliers.from_record
@matplotlib.rc_context(STYLE)
def largest_by_layer(found: Outliers) -> Figure | None:
    """Largest and median magnitudes by layer."""
    rows = [row for row in found.rows if row.layer != "all"]
    if not rows:
        return None
    kinds = list(dict.fromkeys(row.what for row in rows))
    figure = Figure(figsize=(4.4 * len(kinds), 3.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        of_kind = [row for row in rows if row.what == kind]
        for index, place in enumerate(("1", "10", "100")):
            points = [(int(row.layer), row.top[place]) for row in of_kind if place in row.top]
            if points:  # few values have no such rank
                axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[index], label=f"top {place}")
        layers = [int(row.layer) for row in of_kind]
        axes.plot(layers, [row.median for row in of_kind], "o--", color="#555555", label="median")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(title=kind.capitalize(), xlabel="layer", ylabel="size")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=9)
    return figure


PRESENTATION = Presentation(
    introduction="The largest attention logits and hidden states, beside their medians and kurtosis.",
    tables=lambda record: [largest(record)],
    figures={
        "outliers": Drawing(
            draw=largest_by_layer,
            title="Largest values by layer",
            caption="The largest, tenth and hundredth largest sizes and the median, on a logarithmic scale.",
            alternative="Line charts over layers, attention logits and hidden states.",
        )
    },
)
