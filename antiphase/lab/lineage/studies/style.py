"""Colours, markers and lines of models in the figures of studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from antiphase.lab.lineage.names import CLASSIFIERS
from antiphase.lab.pages.plots import COLOURS, LINES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HUES = (*COLOURS, "#8B5A2B")


SIGNS = (*MARKERS, "*")


def style_of(name: str) -> dict[str, Any]:
    """Colour, marker and line of a model."""
    index = CLASSIFIERS.index(name) if name in CLASSIFIERS else 0
    return {"color": HUES[index], "marker": SIGNS[index], "linestyle": LINES[index % len(LINES)]}


def handles(models: Sequence[str]) -> list[Line2D]:
    """A legend of the models."""
    return [Line2D([], [], label=name, **style_of(name)) for name in models]


def plain_logarithm(axes: Axes) -> None:
    """Tick labels such as 20,000 instead of powers, at 1, 2 and 5."""
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
