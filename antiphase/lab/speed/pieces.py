"""Benchmarks in pieces, so that finished ones can be stored at once and none begins without enough time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Piece(Protocol):
    """Runs a piece of work, unless its result is known or there is no time left for it."""

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of the named piece in plain JSON types, or None if it was not begun."""
        ...


def at_once(name: str, work: Callable[[], Any]) -> Any:
    """Run every piece immediately and store nothing."""
    return work()


class Pieces:
    """Runs the pieces of one benchmark and keeps track of those that were skipped."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.left_out: list[str] = []

    def __call__(self, name: str, work: Callable[[], Any]) -> list[Any]:
        """The result of a piece as a list of one, or an empty list if it was skipped."""
        found = self.piece(name, work)
        if found is None:
            self.left_out.append(name)
            return []
        return [found]

    def rows(self, name: str, work: Callable[[], list[Any]]) -> list[Any]:
        """The rows of a piece, or none if it was skipped."""
        return [row for found in self(name, work) for row in found]
