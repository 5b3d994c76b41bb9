"""Every figure of a record by name, and how figures become files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.errors import InputError
from antiphase.base.records import Record, remove_leftovers, write_atomically
from antiphase.lab.pages.plots import STYLE
from antiphase.lab.pages.summary import presentation_of

METADATA = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer"), "png": ("Software",)}
"""What is left out of files, by format."""


class NotebookFigure(Figure):
    """A figure that a notebook shows, although pyplot has not made it."""

    def _repr_png_(self) -> bytes:
        return figure_bytes(self, "png")


def figures_of(record: Record) -> dict[str, Figure]:
    """All figures of a record by the name of their file, in the order of the page."""
    drawings = presentation_of(record.kind).figures
    found = {name: figure for name, drawing in drawings.items() if (figure := drawing.draw(record)) is not None}
    for figure in found.values():
        figure.__class__ = NotebookFigure
    return found


def figure_bytes(figure: Figure, format: str) -> bytes:
    """The figure as ``svg``, ``pdf`` or ``png``, without date or version."""
    buffer = io.BytesIO()
    metadata = dict.fromkeys(METADATA[format])
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A token in a script that the font lacks is drawn as a box; the table has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=format, dpi=150, metadata=metadata, facecolor="white")
    return buffer.getvalue()


def save_figures(record: Record, folder: Path, format: str = "png", *, field: str = "figures") -> list[Path]:
    """Write every figure of the record as ``NAME.FORMAT``; returns the paths.

    Raises:
        InputError: ``folder``, which ``field`` gave, cannot be made.
    """
    drawn = figures_of(record)
    return save_files(folder, {f"{name}.{format}": figure_bytes(one, format) for name, one in drawn.items()}, field)


def save_files(folder: Path, files: Mapping[str, bytes], field: str) -> list[Path]:
    """Write files by name in a folder; returns their paths. No files make no folder."""
    try:
        if files:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f" cannot be made ({error.strerror})", "choose another folder", field=field, path=folder
        ) from None
    paths = [folder / name for name in files]
    for path in paths:
        remove_leftovers(path)
        write_atomically(path, files[path.name])
    return paths
