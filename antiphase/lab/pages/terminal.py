"""Records → the terminal: the tables to read first, made to fit, and the sentences of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from antiphase.base.errors import visible
from antiphase.base.records import Record
from antiphase.lab.pages.summary import main_tables, presentation_of
from antiphase.lab.pages.tables import Table

NARROWEST = 72
"""Width in characters to which a long title may widen a narrow table."""
LONGEST_WORD = 24
"""Characters up to which a word is never broken."""
GAP = 3
"""Characters between two columns; at the edges there are one more in all."""


def print_summary(record: Record, console: Console) -> None:
    """The tables to read first, the sentences of a comparison and its finding."""
    # Text, never str: rich would read the brackets of "81 % [79–83]" as markup.
    for table in main_tables(record):
        for part in drawn_parts(table, console.width):
            console.print(part)
    presentation = presentation_of(record.kind)
    for sentence in [*record.origins(), *presentation.sentences(record)]:
        console.print(Padding(Text(f"• {sentence}"), (0, 0, 0, 1)))
    if finding := presentation.finding(record):
        console.print(Padding(Text(finding), (1, 0, 0, 1)))


def drawn_parts(table: Table, width: int) -> Iterator[RichTable]:
    """Columns that say the same in every row become part of the title: a terminal is narrow. If only names would be
    left below several of them, these columns become the rows.

    Where the words of all columns do not fit into ``width``, the table is drawn in several parts, each with the first
    columns by which rows can be told apart.
    """
    rows = [[visible(cell) for cell in row] for row in table.text()]  # before their width is measured
    constant = {
        index: rows[0][index]
        for index in range(len(table.columns))
        if len(rows) > 1 and not table.is_matrix and len({row[index] for row in rows}) == 1
    }
    if len(constant) == len(table.columns):
        constant = {}
    same = ", ".join(f"{table.columns[index].name.lower()} {value}" for index, value in constant.items())
    title = f"{table.title} ({same})" if same else table.title
    shown = [index for index in range(len(table.columns)) if index not in constant]
    if len(shown) == 1 and len(constant) > 2:
        yield _of_all_rows(table, ", ".join(row[shown[0]] for row in rows), constant)
        return
    cells = {index: [table.columns[index].name, *(row[index] for row in rows)] for index in shown}
    parts = _parts(_keys(shown, rows), shown, {index: _least(texts) for index, texts in cells.items()}, width)
    for number, part in enumerate(parts, start=1):
        is_last = number == len(parts)
        drawn = RichTable(
            title=Text(title if number == 1 else f"{title}, continued"),
            caption=Text(table.note) if is_last else None, box=box.SIMPLE_HEAD, title_justify="left",
            caption_justify="left", min_width=min(NARROWEST, len(title)),
        )  # fmt: skip
        for index, room in zip(part, _widths([cells[index] for index in part], width), strict=True):
            column = table.columns[index]
            justify: Literal["left", "right"] = "left" if column.style == "text" else "right"
            drawn.add_column(Text(column.name), justify=justify, overflow="fold", width=room)
        for row in rows:
            drawn.add_row(*(Text(row[index]) for index in part))
        yield drawn


def _of_all_rows(table: Table, names: str, constant: Mapping[int, str]) -> RichTable:
    """A table whose rows say the same, with a row for each of its columns."""
    drawn = RichTable(
        title=Text(table.title), caption=Text(table.note), box=box.SIMPLE_HEAD, title_justify="left",
        caption_justify="left", min_width=min(NARROWEST, max(len(table.title), len(table.note))),
    )  # fmt: skip
    drawn.add_column()
    drawn.add_column(Text(names), justify="right", overflow="fold")
    for index, value in constant.items():
        drawn.add_row(Text(table.columns[index].name), Text(value))
    return drawn


def _keys(shown: Sequence[int], rows: Sequence[Sequence[str]]) -> list[int]:
    """The fewest first columns by which rows can be told apart; the first one if all columns do not suffice."""
    for count in range(1, len(shown)):
        if len({tuple(row[index] for index in shown[:count]) for row in rows}) == len(rows):
            return list(shown[:count])
    return list(shown[:1])


def _parts(keys: Sequence[int], shown: Sequence[int], least: Mapping[int, int], width: int) -> list[list[int]]:
    """Columns that fit beside each other; ``keys`` stand in every part, or as many as leave room for another column."""
    widest = max((least[index] for index in shown[len(keys) :]), default=0)
    while len(keys) > 1 and sum(least[one] + GAP for one in keys) + widest + GAP >= width:
        keys = keys[:-1]
    parts = [list(keys)]
    for index in shown[len(keys) :]:
        wanted = [*parts[-1], index]
        if sum(least[one] + GAP for one in wanted) >= width and len(parts[-1]) > len(keys):
            parts.append([*keys, index])
        else:
            parts[-1] = wanted
    return parts


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Characters of each column: what its texts need, less in the widest ones while the table does not fit."""
    found = [max(map(cell_len, texts)) for texts in columns]
    least = [_least(texts) for texts in columns]
    while sum(found) + GAP * len(found) >= width:
        widest = max(range(len(found)), key=lambda place: (found[place] > least[place], found[place]))
        if found[widest] <= 1:
            break
        found[widest] -= 1
    return found


def _least(texts: Sequence[str]) -> int:
    """Characters of the longest word of a column."""
    return min(LONGEST_WORD, max((cell_len(word) for text in texts for word in text.split()), default=1))
