"""What the record of a diverged run says of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where a run reached numbers that are not finite."""

    step: int
    reason: str
    loss: float | None = None
    gradient_norm: float | None = None
