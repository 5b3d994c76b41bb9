"""What a measurement's folder says about how its records are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def by_model(record: Record) -> dict[str, Record]:
    """A record of each model that a record compares, by short name; the record itself if it compares none."""
    model, others = str(record.values.get("model")), record.values.get("against") or {}
    values = {key: value for key, value in record.values.items() if key != "against"}
    found = {model: values, **{name: {"model": name, **own} for name, own in others.items()}}
    names = short_names(found)
    return {names[name]: replace(record, values=own) for name, own in found.items()} if others else {model: record}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last parts of names of models if all are different, by whole name."""
    short = {name: Path(name).name or name for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in short}


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
    leading: int = 1
    """How many figures stand before the tables."""
    arms: Callable[[Record], Sequence[str]] = lambda record: ()
    """In the order of display; the page gives each its colour."""
    sentences: Callable[[Record], Sequence[str]] = lambda record: ()
    """What was found, ready to read."""
    finding: Callable[[Record], str] = lambda record: ""
    page: Callable[[Sequence[Record], Path], Path] | None = None
    """Writes the page that records of this kind alone have; None: a report."""
    further: Callable[[Record, Path], Sequence[Record]] = lambda record, output: ()
    """Other records in the record's folder, which its page shows too."""
    headings: Callable[[Record], Sequence[str]] = lambda record: ()
    """Headings of their tables in the terminal, which shows them only where there are headings."""
    closing: Callable[[Record, Path], str] = lambda record, output: ""
    """The last lines in the terminal about a record and the folder that holds it."""
