"""Records → the terminal: the tables to read first, made to fit, and the sentences of a comparison."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from antiphase.records import Record
from antiphase.report.summary import main_tables
from antiphase.report.tables import Table, sentences

NARROWEST = 72
"""Characters that a long title may make of a narrow table."""


def print_summary(record: Record, console: Console) -> None:
    """The tables to read first, the sentences of a comparison and its verdict."""
    # Text, never str: rich would read the brackets of "81 % [79–83]" as markup.
    for table in main_tables(record):
        console.print(_drawn(table))
    for sentence in sentences(record):
        console.print(Padding(Text(f"• {sentence}"), (0, 0, 0, 1)))
    if record.values.get("verdict"):
        console.print(Padding(Text(str(record.values["verdict"])), (1, 0, 0, 1)))


def _drawn(table: Table) -> RichTable:
    """Columns that say the same in every row become part of the title: a terminal is narrow."""
    rows = table.text()
    constant = {
        index: rows[0][index]
        for index in range(len(table.columns))
        if len(rows) > 1 and len({row[index] for row in rows}) == 1
    }
    same = ", ".join(f"{table.columns[index].name.lower()} {value}" for index, value in constant.items())
    title = f"{table.title} ({same})" if same else table.title
    drawn = RichTable(
        title=Text(title), caption=Text(table.note), box=box.SIMPLE_HEAD, title_justify="left",
        min_width=min(NARROWEST, len(title)),
    )  # fmt: skip
    drawn.caption_justify = "left"
    shown = [index for index in range(len(table.columns)) if index not in constant]
    for index in shown:
        column = table.columns[index]
        drawn.add_column(Text(column.name), justify="left" if column.style == "text" else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(row[index]) for index in shown))
    return drawn
