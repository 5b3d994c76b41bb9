"""What commands print: words, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from antiphase.base.records import Record


Page = Callable[[Sequence["Record"], Path], Path]
"""Writes a page from records to the given file; returns the file."""
REFRESH_SECONDS = 30
"""Seconds after which a browser reloads the page of an unfinished study."""


def make_console(*, quiet: bool = False, as_json: bool = False) -> Console:
    """The terminal of a command with models; only our own progress bars appear in it.

    Args:
        quiet: of several processes one speaks.
        as_json: standard output is for the record alone, so words and progress go to standard error.
    """
    from transformers.utils.logging import disable_progress_bar

    from antiphase.cli.terminal import Terminal

    disable_progress_bar()
    return Terminal(quiet=quiet, stderr=as_json, markup=False)  # names of files may hold brackets


def sayer(console: Console) -> Callable[[str], None]:
    """Print a message of a study, between its progress bars."""
    return lambda message: console.print(message, style="dim")


def page_writer(console: Console, output: Path) -> Callable[[Record], None]:
    """Writes the page of an unfinished study again and again; says where it is the first time."""
    from antiphase.base.records import PAGE
    from antiphase.lab.pages.html import write_report

    page = output / PAGE
    shown: list[Path] = []

    def write(record: Record) -> None:
        write_report([record], page, refresh=None if record.values.get("stopped") else REFRESH_SECONDS)
        if not shown:
            console.print(f"learning curves so far: {page}", highlight=False)
            shown.append(page)

    return write


def finish(
    console: Console,
    record: Record,
    output: Path,
    *,
    page: Page | None = None,
    further: Sequence[Record] = (),
    as_json: bool = False,
) -> None:
    """The table in the terminal, or the record as JSON on standard output, and the page with further records.

    ``page`` None: a report.
    """
    from antiphase.base.records import PAGE
    from antiphase.cli.terminal import print_json
    from antiphase.lab.pages.html import write_report
    from antiphase.lab.pages.summary import presentation_of
    from antiphase.lab.pages.terminal import print_summary

    if as_json:
        print_json(record.text(output))
    else:
        print_summary(record, console)
        headings = presentation_of(record.kind).headings(record)
        for heading, other in zip(headings, further if headings else (), strict=True):
            console.rule(heading, align="left")
            print_summary(other, console)
    written = (page or write_report)([record, *further], output / PAGE)
    console.print(f"record: {output / 'record.json'}\npage:   {written}", highlight=False)
