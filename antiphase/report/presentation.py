"""What a measurement's folder says of how its records are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from antiphase.records import Record
from antiphase.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure and its words."""

    draw: Callable[[Record], Figure | None]
    """None where the record has nothing for it."""
    title: str
    caption: str
    more: Callable[[Record], str] = lambda record: ""
    """What the caption says of a record besides."""
    alternative: str
    """For who cannot see it."""
    behind: Callable[[Record], list[Table | None]] = lambda record: []
    """The tables that lie behind it."""
    is_raster: bool = False
    """One shape for each cell of a map would make an SVG of megabytes."""


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """Tables to read first, figures by the name of their file, and what was measured in plain words."""

    introduction: str
    tables: Callable[[Record], list[Table | None]]
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    details: Callable[[Record], list[Table | None]] = lambda record: []
    """Further tables, folded away."""
