"""A finished run in Python, ``antiphase.read``, and its tables and figures as files for papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from antiphase.base.errors import InputError, nearest
from antiphase.base.records import Record
from antiphase.base.tables import Shown, Table
from antiphase.lab.pages import tables
from antiphase.lab.pages.summary import main_tables, presentation_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

OF_TABLES: dict[str, tuple[str, Callable[[Table], str]]] = {
    "csv": ("csv", Table.to_csv), "latex": ("tex", Table.to_latex), "markdown": ("md", Table.to_markdown),
}  # fmt: skip
"""Formats of tables: the ending of the file, and what makes its text."""
OF_FIGURES = ("svg", "pdf", "png")


def read(run: str | Path) -> Run:
    """A run's record with its tables and figures, from the folder of a run or a record file.

    Example:
        >>> run = antiphase.read("runs/demo")
        >>> run.table("needles")  # a data frame of pandas
        >>> print(run.every_table()["headline"].to_latex())
        >>> run.save("paper", "pdf")

    Raises:
        InputError: there is no record, or it is damaged.
    """
    return Run(Record.load(run))


@dataclass(frozen=True)
class Run(Shown):
    """What a run measured; it prints the tables to read first."""

    record: Record
    """Values, settings, seeds, versions and the command."""

    def tables(self) -> list[Table]:
        """What to read first."""
        return main_tables(self.record)

    def every_table(self) -> dict[str, Table]:
        """All tables of the run's page by their titles as names, such as ``needle-accuracy-by-depth``."""
        presentation = presentation_of(self.record.kind)
        behind = [table for drawing in presentation.figures.values() for table in drawing.behind(self.record)]
        made = [tables.settings(self.record), tables.environment(self.record), tables.provenance(self.record)]
        listed = [*self.tables(), *behind, *presentation.details(self.record), *made]
        found: dict[str, Table] = {}
        for table in listed:
            if table is not None:
                found.setdefault(table.name, table)
        return found

    def table(self, name: str) -> DataFrame:
        """The raw values of a table as a data frame of pandas.

        Args:
            name: of the table, or of a figure that has a table behind it, such as ``needles``.

        Raises:
            InputError: there is no such table.
        """
        found = self.every_table()
        for title, drawing in presentation_of(self.record.kind).figures.items():
            if behind := [table for table in drawing.behind(self.record) if table is not None]:
                found.setdefault(title, behind[0])
        if name not in found:
            raise InputError(f"name: this run has no table {name!r}{nearest(name, found)}")
        return found[name].frame()

    def figures(self) -> dict[str, Figure]:
        """All figures by name; matplotlib's, which can be changed."""
        from antiphase.lab.pages.figures import figures_of

        return figures_of(self.record)

    def save(self, folder: str | Path, format: str) -> list[Path]:
        """Write every table (``csv``, ``latex``, ``markdown``) or figure (``svg``, ``pdf``, ``png``) as a file.

        Returns the paths; none if the run has no figures.

        Raises:
            InputError: the format is unknown, or the folder cannot be made.
        """
        from antiphase.lab.pages.figures import save_figures, save_files

        if format in OF_FIGURES:
            return save_figures(self.record, Path(folder), format, field="output")
        if format not in OF_TABLES:
            known = [*OF_TABLES, *OF_FIGURES]
            raise InputError(f"format must be one of {', '.join(known)}, got {format!r}")
        ending, text = OF_TABLES[format]
        files = {f"{name}.{ending}": text(table).rstrip("\n") + "\n" for name, table in self.every_table().items()}
        return save_files(Path(folder), {name: text.encode() for name, text in files.items()}, "output")

    def _repr_html_(self) -> str:
        from antiphase.lab.pages.html import fragment

        return fragment(self.record)
