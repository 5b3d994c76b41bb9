"""Records → matplotlib figures, one function a figure; None where the record lacks the data.

Figures are built on ``Figure`` alone: no pyplot, no global state left behind, equal records give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart with any colour vision; given to arms in the order of display."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a token may be "$x^"
    "pdf.fonttype": 42,  # publishers refuse matplotlib's default
    "svg.hashsalt": "antiphase",  # else the ids in an SVG are random
}
LABELLED_TOKENS = 64
"""Most tokens of an attention map whose axes are labelled with them."""
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g} %")


def arm_colour(arms: Sequence[str], arm: str) -> str:
    """The colour of an arm in every figure and table."""
    return COLOURS[arms.index(arm) % len(COLOURS)]


def visible(text: str, longest: int = 24) -> str:
    """Text as it can be drawn: line breaks and tabs as signs, control characters escaped, cut when long."""
    text = str(text).replace("\n", "↵").replace("\t", "→")
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def mark_levels(axes: Axes, levels: dict[str, float | None]) -> None:
    """Dotted lines named in words beside the axes, where no curve can hide the words."""
    drawn = sorted((level, words) for words, level in levels.items() if level is not None)
    crowded = any(high - low < 0.1 for (low, _), (high, _) in pairwise(drawn))
    for index, (level, words) in enumerate(drawn):
        axes.axhline(level, color="#555555", linewidth=1.2, linestyle=":", label=f"_{words}")
        axes.text(
            1.01, level, f"{words}\n{100 * level:.3g} %", transform=axes.get_yaxis_transform(), fontsize=9.5,
            va=("bottom" if index else "top") if crowded else "center", color="#333333",
        )  # fmt: skip


def legend_below(figure: Figure, columns: int, handles: Sequence[Any] = (), **how: Any) -> None:
    """One legend for all panels, each name once, in fewer columns where the figure is too narrow for so many.

    Args:
        handles: what is named, if not all that the panels name.
        how: further arguments of matplotlib's ``Figure.legend``.
    """
    named = {handle.get_label(): handle for handle in handles}
    for axes in () if handles else figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if not named:
        return
    renderer = FigureCanvasAgg(figure).get_renderer()
    for count in range(columns, 0, -1):
        legend = figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=count, **{"handlelength": 3, **how}
        )
        if count == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            return
        legend.remove()


def signed_power(numbers: Any, power: float) -> Any:
    """A power of the size, with the sign."""
    return numpy.sign(numbers) * numpy.abs(numbers) ** power


def label_tokens(axis: Any, tokens: list[str], count: int, first: int) -> None:
    """Every token by its text where there are few, else by its number."""
    if tokens:
        axis.set_ticks(range(min(count, len(tokens))), tokens[:count])
        axis.set_tick_params(labelsize=9 if count <= 32 else 8 if count <= 48 else 7)
    else:
        axis.set_major_locator(MaxNLocator(8, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda place, _: f"{place + first:.0f}"))
