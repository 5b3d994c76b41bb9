"""Records → one self-contained HTML page: words, tables and figures, without network or JavaScript."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from matplotlib.figure import Figure

from antiphase.base.errors import InputError
from antiphase.base.records import Record, remove_leftovers, write_atomically
from antiphase.lab.pages import figures, plots, tables
from antiphase.lab.pages.presentation import by_model, words_for
from antiphase.lab.pages.summary import compared, main_tables, presentation_of, side_by_side
from antiphase.lab.pages.tables import Table

NEEDED_WIDTH = 0.66
"""Share of its natural width below which a figure scrolls sideways: its text stays readable on a phone."""
MOST_ROWS = 30
"""A longer table among the first ones is folded."""


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A figure with its words and the tables that lie behind it."""

    name: str
    title: str
    caption: str
    alternative: str
    source: str
    width: int
    height: int
    smallest_width: int
    is_raster: bool
    tables: list[Table]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One record on the page."""

    anchor: str
    title: str
    colours: dict[str, str]
    paragraphs: list[str]
    main_tables: list[Table]
    sentences: list[str]
    finding: str
    figures: list[PageFigure]
    leading: int
    provenance: Table
    detail_tables: list[Table]


def write_report(records: Sequence[Record], output: Path, *, refresh: int | None = None) -> Path:
    """Write one HTML page with a section for each record, in order. Returns ``output``.

    ``refresh``: seconds after which a browser loads the page again, for one that is going to change.

    Raises:
        InputError: there is no record, or ``output`` is a folder or cannot be written.
    """
    if not records:
        raise InputError("a report needs at least one record: name the folder of a run")
    check_page(output)
    sections = [_section(record, f"record-{number}") for number, record in enumerate(records, start=1)]
    page = template((resources.files(__package__) / "page.html").read_text(encoding="utf-8"))
    title = sections[0].title if len(sections) == 1 else "antiphase report"
    joint_figures = [
        _page_figure(record, name, figure)
        for record in compared(records)
        for name, figure in figures.figures_of(record).items()
    ]
    joint = {"joint": side_by_side(records), "joint_figures": joint_figures}
    shown = {**joint, "sections": sections, "refresh": refresh, "MOST_ROWS": MOST_ROWS}
    return write_page(page.render(title=title, **shown), output)


def template(text: str) -> Template:
    """A page as a template, which may import the macro of ``table.html``."""
    folder = PackageLoader("antiphase.lab.pages", "")
    environment = Environment(autoescape=True, undefined=StrictUndefined, loader=folder)
    environment.filters["as_download"] = lambda table: _data("text/csv", table.to_csv().encode())
    return environment.from_string(text)


def _data(media_type: str, content: bytes) -> str:
    """The address of a file that stands in the page."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def check_page(output: Path) -> None:
    """
    Raises:
        InputError: ``output`` is not the name of a page.
    """
    refused = partial(InputError, field="output", path=output)
    if output.is_dir():
        raise refused(" is a folder", f"name a file, for example {output / 'report.html'}")
    if output.suffix not in (".html", ".htm"):
        raise refused(" must end in .html, so that it cannot overwrite a record or another file")


def write_page(text: str, output: Path) -> Path:
    """Write a page, with its folder. Returns ``output``.

    Raises:
        InputError: it cannot be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(output)
        write_atomically(output, text.encode("utf-8", errors="replace"))  # a token may be half a character
    except OSError as error:
        raise InputError(
            f" cannot be written ({error.strerror})", "choose another file", field="output", path=output
        ) from None
    return output


def _section(record: Record, anchor: str) -> Section:
    drawn = [_page_figure(record, name, figure) for name, figure in figures.figures_of(record).items()]
    shown = {table.title for figure in drawn for table in figure.tables}
    first = main_tables(record)
    shown |= {table.title for table in first}
    presentation = presentation_of(record.kind)
    details = [*presentation.details(record), tables.settings(record), tables.environment(record)]
    arms = presentation.arms(record)
    return Section(
        anchor=anchor,
        title=_title(record, arms),
        colours={arm: plots.arm_colour(arms, arm) for arm in arms},
        paragraphs=[*words_for(presentation.introduction, record).splitlines(), *record.origins()],
        main_tables=first,
        sentences=list(presentation.sentences(record)),
        finding=presentation.finding(record),
        figures=drawn,
        leading=presentation.leading,
        provenance=tables.provenance(record),
        detail_tables=[table for table in details if table is not None and table.title not in shown],
    )


def _page_figure(record: Record, name: str, figure: Figure) -> PageFigure:
    drawing = presentation_of(record.kind).figures[name]
    width, height = (round(96 * inches) for inches in figure.get_size_inches())  # CSS: 96 pixels an inch
    return PageFigure(
        name=name,
        title=drawing.title,
        caption=words_for(drawing.caption, record),
        alternative=words_for(drawing.alternative, record),
        source=_embedded(figure, is_raster=drawing.is_raster),
        width=width,
        height=height,
        smallest_width=round(NEEDED_WIDTH * width),
        is_raster=drawing.is_raster,
        tables=[table for table in drawing.behind(record) if table is not None],
    )


def _embedded(figure: Figure, *, is_raster: bool) -> str:
    """A figure as the source of an image."""
    kind, media_type = ("png", "image/png") if is_raster else ("svg", "image/svg+xml")
    return _data(media_type, figures.figure_bytes(figure, kind))


def fragment(record: Record) -> str:
    """The main tables and the figures of a record as HTML that stands in other pages, such as notebooks."""
    sources = [_embedded(figure, is_raster=True) for figure in figures.figures_of(record).values()]
    images = [f'<img src="{source}" style="max-width: 100%">' for source in sources]
    return "\n".join([*(table._repr_html_() for table in main_tables(record)), *images])


def _title(record: Record, arms: Sequence[str]) -> str:
    if record.kind == "compare":
        return " against ".join(arms) if len(arms) == 2 else f"comparison of {', '.join(arms)}"
    title = f"{record.kind}: {', '.join(arms)}" if arms and list(arms) != ["model"] else record.kind
    own = [str(record.values[name]) for name in ("arm", "model") if isinstance(record.values.get(name), str)]
    own += [f"against {', '.join(others)}"] if (others := list(by_model(record))[1:]) else []
    own += [f"seed {record.values['seed']}"] if "seed" in record.values else []
    return ", ".join([title, *own])
