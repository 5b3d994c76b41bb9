"""How several processes divide the forward passes of one measurement; a single process computes all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

Piece = TypeVar("Piece")


class Divide(Protocol):
    """Computes pieces of work, each once, by one process or another."""

    def __call__(self, pieces: Sequence[Piece], compute: Callable[[Piece], Tensor]) -> list[Tensor]:
        """Results of ``compute``, 1-d tensors on the CPU, in the order of ``pieces``; equal in every process.

        Raises:
            NonFiniteError: ``compute`` raised it in one of the processes; all of them raise it.
        """
        ...


def alone(pieces: Sequence[Piece], compute: Callable[[Piece], Tensor]) -> list[Tensor]:
    """Compute all pieces here, one after another."""
    return [compute(piece) for piece in pieces]
