"""A benchmark in pieces, so that what is done can be kept while it goes on, and none begins when there is no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Piece(Protocol):
    """Does a piece of work, unless its result is known or there is no time left for it."""

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """What the piece of this name found, in plain JSON types; None: it was not begun."""
        ...


def at_once(name: str, work: Callable[[], Any]) -> Any:
    """Every piece when its turn comes; nothing is kept."""
    return work()


class Done:
    """The pieces of one benchmark: does them, and knows which were left out."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.left_out: list[str] = []

    def __call__(self, name: str, work: Callable[[], Any]) -> list[Any]:
        """What the piece found, alone in a list; nothing where it was left out."""
        found = self.piece(name, work)
        if found is None:
            self.left_out.append(name)
            return []
        return [found]

    def rows(self, name: str, work: Callable[[], list[Any]]) -> list[Any]:
        """The rows that the piece found; none where it was left out."""
        return [row for found in self(name, work) for row in found]
