"""Marks for initializing a whole model: layers that write into the residual stream, and initial norm weights."""

from __future__ import annotations

from torch import nn


def mark_residual_output(layer: nn.Linear) -> None:
    """Mark a layer whose initial weights are scaled by ``residual_init_scale``."""
    vars(layer)["writes_residual"] = True


def writes_residual(layer: nn.Linear) -> bool:
    """Whether a layer is marked by ``mark_residual_output``."""
    return "writes_residual" in vars(layer)


def mark_first_weight(norm: nn.Module, weight: float) -> None:
    """Set the initial weight of a norm."""
    vars(norm)["first_weight"] = weight


def first_weight(norm: nn.Module) -> float:
    """The initial weight of a norm: its mark, else 1."""
    return float(vars(norm).get("first_weight", 1.0))
