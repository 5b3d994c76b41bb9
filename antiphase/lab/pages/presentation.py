"""What a measurement's folder says about how its records are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from antiphase.base.records import Record
from antiphase.lab.pages.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Words = str | Callable[[Record], str]
"""The same for every record, or made from it."""


def words_for(words: Words, record: Record) -> str:
    """The text beside a record's figure."""
    return words if isinstance(words, str) else words(record)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure and its words."""

    draw: Callable[[Record], Figure | None]
    """None where the record has nothing for it."""
    title: str
    caption: Words
    alternative: Words
    """The text alternative, for readers who cannot see the figure."""
    behind: Callable[[Record], list[Table | None]] = lambda record: []
    """The tables that lie behind it."""
    is_raster: bool = False
    """One shape for each cell of a map would make an SVG of megabytes."""


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """Tables to read first, figures by the name of their file, and what was measured in plain words."""

    introduction: Words
    """What was measured and how to read it; each line is a paragraph."""
    tables: Callable[[Record], list[Table | None]]
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    details: Callable[[Record], list[Table | None]] = lambda record: []
    """Further tables, folded away."""
    arms: Callable[[Record], Sequence[str]] = lambda record: ()
    """In the order of display; the page gives each its colour."""
    sentences: Callable[[Record], Sequence[str]] = lambda record: ()
    """What was found, ready to read."""
    verdict: Callable[[Record], str] = lambda record: ""
    page: Callable[[Sequence[Record], Path], Path] | None = None
    """Writes the page that records of this kind alone have; None: a report."""
    further: Callable[[Record, Path], Sequence[Record]] = lambda record, output: ()
    """Other records in the record's folder, which its page shows too."""
    headings: Callable[[Record], Sequence[str]] = lambda record: ()
    """Headings of their tables in the terminal, which shows them only where there are headings."""
    closing: Callable[[Record, Path], str] = lambda record, output: ""
    """The last lines in the terminal about a record and the folder that holds it."""
