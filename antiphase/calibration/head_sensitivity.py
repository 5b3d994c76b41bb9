"""Sensitivity of a score to calibrating each head, from one backward pass for all heads of a model.

A gate g on each head makes its map A + g (Â - A). The derivative of a score with respect to g, at g = 0, estimates the
effect of calibrating the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall
from antiphase.attention.hooks import transformed
from antiphase.attention.selected_maps import MapChoice, outputs_by_map
from antiphase.base.errors import NonFiniteError
from antiphase.calibration.apply import CalibrationRule, CalibrationState
from antiphase.calibration.attention import attend
from antiphase.calibration.plan import CalibrationPlan, heads_by_layer


class _GatedHeads:
    """Ordinary attention plus gates (all zero) times the change that calibration would make."""

    def __init__(self, plan: CalibrationPlan, gates: dict[int, Tensor]) -> None:
        self.rule, self.choice = CalibrationRule(plan), MapChoice(plan.heads)
        self.gates = gates  # layer: (maps,)

    def __call__(self, call: AttentionCall) -> Tensor:
        heads, _ = call.own()
        if call.layer not in self.gates:
            return heads
        with torch.no_grad():
            maps = self.choice.chosen(call)
            plain = maps.multiply(maps.weights()) if maps.few else attend(maps).out
            change = outputs_by_map(self.rule.outputs(call, maps) - plain)  # (B, N, maps, dv)
        gated = change * self.gates[call.layer].to(change.device, change.dtype)[:, None]
        return heads + call.heads_of(gated).to(heads.dtype)


def head_sensitivities(
    model: PreTrainedModel,
    plan: CalibrationPlan,
    score: Callable[[PreTrainedModel, Sequence[Any]], Tensor],
    samples: Sequence[Any],
) -> dict[tuple[int, int], float]:
    """Derivative of the mean score with respect to the gate of each of the plan's heads, by (layer, head).

    Raises:
        ValueError: the score cannot be differentiated.
        NonFiniteError: a derivative is not finite.
    """
    maps = heads_by_layer(model)
    gates = {
        layer: torch.zeros(maps.get(layer, 1), dtype=torch.float32, device=model.device, requires_grad=True)
        for layer in plan.heads
    }
    every = CalibrationPlan(
        {layer: range(len(gate)) for layer, gate in gates.items()}, plan.alpha, plan.beta, plan.mode
    )
    screening = _GatedHeads(every, gates)
    gated = transformed(model, screening, layers=every.heads, state=CalibrationState, check=screening.rule.check)
    with gated, torch.enable_grad():
        values = score(model, samples)
        if not values.requires_grad:
            raise ValueError(
                "the gradient screen needs a differentiable score; give a differentiable surrogate or use the method "
                '"exhaustive"'
            )
        slopes = torch.autograd.grad(values.mean(), list(gates.values()))
    if not all(bool(slope.isfinite().all()) for slope in slopes):
        raise NonFiniteError("the gradients of the head gates are NaN or infinite, so no head can be chosen")
    found = {layer: slope.tolist() for layer, slope in zip(gates, slopes, strict=True)}
    return {(layer, head): found[layer][head] for layer, heads in plan.heads.items() for head in heads}
