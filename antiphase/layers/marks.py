"""Marks on modules, for who initializes a whole model: what writes into the residual stream, where a norm begins."""

from __future__ import annotations

from torch import nn


def mark_residual_output(layer: nn.Linear) -> None:
    """Have ``residual_init_scale`` scale this layer's first weights."""
    vars(layer)["writes_residual"] = True


def writes_residual(layer: nn.Linear) -> bool:
    """Whether a layer is marked so."""
    return "writes_residual" in vars(layer)


def mark_first_weight(norm: nn.RMSNorm, weight: float) -> None:
    """Have a norm begin at this weight."""
    vars(norm)["first_weight"] = weight


def first_weight(norm: nn.RMSNorm) -> float:
    """The weight that a norm begins at: what it is marked with, else 1."""
    return float(vars(norm).get("first_weight", 1.0))
