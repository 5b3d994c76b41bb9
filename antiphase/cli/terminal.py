"""The one place that prints: a console whose text no terminal obeys, and JSON that any encoding holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment

from antiphase.base.errors import CONTROLS, visible

NARROWEST = 20
"""Columns that output has at least; a terminal that has fewer breaks the lines."""


class Terminal(Console):
    """A console that shows control characters of texts, such as names and tokens, instead of sending them."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        found = super().size
        return ConsoleDimensions(max(NARROWEST, found.width), found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich, whose own sequences are styles and controls, never text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def print_json(text: str) -> None:
    """JSON on standard output, with escapes of JSON for what a terminal would obey, or its encoding lacks."""

    def escaped(letters: str) -> str:
        return "".join(json.dumps(letter)[1:-1] if ord(letter) > 127 else f"\\u{ord(letter):04x}" for letter in letters)

    text = CONTROLS.sub(lambda found: escaped(found[0]), text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if text.encode(encoding, "ignore").decode(encoding) != text:
        text = "".join(letter if letter.isascii() else escaped(letter) for letter in text)
    typer.echo(text)
