"""Tables as data, and as text, Markdown, LaTeX, CSV, HTML and data frames; results that show themselves as tables."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}",
    "<": r"\textless{}", ">": r"\textgreater{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "Σ": r"$\Sigma$", "Δ": r"$\Delta$", "√": r"$\surd$",
    "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$", "→": r"$\rightarrow$", "≤": r"$\le$",
    "≥": r"$\ge$", "≈": r"$\approx$", "₁": "$_1$", "₂": "$_2$", "²": "$^2$", "–": "--",
}  # fmt: skip
"""What letters are called in LaTeX."""


@dataclass(frozen=True)
class Column:
    """Name and number style; every style but ``text`` is set flush right."""

    name: str
    style: str = "text"


@dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """Title, columns and raw values. A cell that is text already is printed as it stands."""

    title: str
    columns: Sequence[Column]
    rows: list[list[Any]]
    note: str = ""
    is_matrix: bool = False
    """Columns are values of one thing, such as labels: one that says the same in every row stays in its place."""

    def without_empty_columns(self) -> Table:
        """The table without columns in which no row has a value."""
        kept = [index for index in range(len(self.columns)) if any(row[index] is not None for row in self.rows)]
        rows = [[row[index] for index in kept] for row in self.rows]
        return replace(self, columns=[self.columns[index] for index in kept], rows=rows)

    @property
    def name(self) -> str:
        """The title as the name of a file: ``attention-by-layer``."""
        return "-".join(re.findall(r"\w+", self.title.lower().replace("λ", "lambda")))

    def text(self) -> list[list[str]]:
        """The cells as people read them."""
        return [
            [format_value(value, column.style) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def frame(self) -> DataFrame:
        """The raw values as a data frame of pandas."""
        import pandas

        return pandas.DataFrame(self.rows, columns=[column.name for column in self.columns])

    def to_csv(self) -> str:
        """The raw values, with a line of names."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows(
            [format_value(v) if isinstance(v, (list, tuple, dict)) else v for v in row] for row in self.rows
        )
        return written.getvalue()

    def to_markdown(self) -> str:
        """The table alone, its cells as people read them, in columns of equal width."""
        escaped = [[re.sub(r"\s*\n\s*", " ", cell).replace("|", "\\|") for cell in row] for row in self._all()]
        widths = [max(3, *map(len, cells)) for cells in zip(*escaped, strict=True)]
        rights = [column.style != "text" for column in self.columns]
        marks = [f"{'-' * (width - 1)}{':' if right else '-'}" for width, right in zip(widths, rights, strict=True)]
        lines = [
            [cell.rjust(width) if right else cell.ljust(width)
             for cell, width, right in zip(row, widths, rights, strict=True)]
            for row in escaped
        ]  # fmt: skip
        return "\n".join(f"| {' | '.join(row)} |" for row in [lines[0], marks, *lines[1:]])

    def to_latex(self) -> str:
        """A ``tabular``, its cells as people read them; it says which package it needs."""
        head, *rows = (" & ".join(map(_latex, row)) + r" \\" for row in self._all())
        sides = "".join("l" if column.style == "text" else "r" for column in self.columns)
        needs = r"% \usepackage{booktabs}"
        lines = [needs, rf"\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}"])

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.title, self.to_markdown(), textwrap.fill(self.note, 100)]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = [[html.escape(cell) for cell in row] for row in self._all()]
        body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        names = "".join(f"<th>{name}</th>" for name in head)
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table><caption>{html.escape(self.title)}</caption>\n<tr>{names}</tr>\n{body}</table>{note}"

    def _all(self) -> list[list[str]]:
        return [[column.name for column in self.columns], *self.text()]


class Shown:
    """A result that prints as its tables, in an interpreter and a notebook too; its tensors are in its fields."""

    def tables(self) -> list[Table]:
        """What to read first."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Shown.__str__  # type: ignore[method-assign,assignment]  # else a dataclass would write one of its fields

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "\n".join(table._repr_html_() for table in self.tables())


def format_value(value: Any, style: str = "number") -> str:
    """``0.8125`` as percent is ``81.2 %``; null is a dash; text stays."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) or style == "text":
        return str(value)
    if style == "percent":
        return f"{_without_signed_zero(f'{100 * value:.1f}')} %"
    if style == "loss":
        return _without_signed_zero(f"{value:.3f}")
    if style == "signed":
        return f"{value:+.3f}"
    if isinstance(value, int) or style == "integer":
        return f"{round(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _without_signed_zero(text: str) -> str:
    """A rounded number that is zero has no sign."""
    return text.removeprefix("-") if float(text) == 0 else text


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def columns_of(*names: str) -> list[Column]:
    """Columns from ``name`` (text) or ``name|style``."""
    return [Column(name, style or "text") for name, _, style in (text.partition("|") for text in names)]
