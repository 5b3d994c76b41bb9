"""How a score would change if heads were calibrated a little: one backward pass for all heads of a model.

A gate g on each head makes its map A + g (Â - A). The derivative of a score with respect to g, at g = 0, is a first
guess at what calibrating the head would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention_kinds import is_differential
from antiphase.calibration.apply import Calibration, by_map, installed, lambda_column, layer_of
from antiphase.calibration.attention import attend, multiply, weights_of
from antiphase.calibration.plan import CalibrationPlan
from antiphase.errors import NonFiniteError
from antiphase.interface import AttentionFunction


class _Screen(Calibration):
    """Ordinary attention, plus gates (all zero) times what calibration would change."""

    def __init__(self, plan: CalibrationPlan, gates: dict[int, Tensor]) -> None:
        super().__init__(plan)
        self.gates = gates  # layer: (maps,)

    def wrap(self, function: AttentionFunction) -> AttentionFunction:
        def attend_gated(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
        ) -> tuple[Tensor, Tensor | None]:
            out, _ = function(module, query, key, value, attention_mask, **kwargs)
            self.note(module, query)
            layer = layer_of(module)
            if layer not in self.gates:
                return out, None
            with torch.no_grad():
                call = self.call(module, query, key, value, attention_mask, range(query.shape[1]), kwargs)
                plain = multiply(call, weights_of(call)) if call.few else attend(call).out
                change = by_map(self.outputs(layer, call, query) - plain)  # (B, N, maps, dv)
            gated = change * self.gates[layer].to(change.dtype)[:, None]
            if is_differential(module):
                first, second = gated.unflatten(2, (-1, 2)).unbind(3)
                gated = first - lambda_column(kwargs["lam"]).detach() * second
            return out + gated.to(out.dtype), None

        return attend_gated


def screen(
    model: PreTrainedModel,
    plan: CalibrationPlan,
    score: Callable[[PreTrainedModel, Sequence[Any]], Tensor],
    samples: Sequence[Any],
) -> dict[tuple[int, int], float]:
    """Derivative of the mean score with respect to the gate of each of the plan's heads, by (layer, head).

    Raises:
        ValueError: the score cannot be differentiated.
        NonFiniteError: a derivative that is not finite.
    """
    maps = model.config.get_text_config().num_attention_heads
    gates = {
        layer: torch.zeros(maps, dtype=torch.float32, device=model.device, requires_grad=True) for layer in plan.heads
    }
    every = CalibrationPlan({layer: range(maps) for layer in gates}, plan.alpha, plan.beta, plan.mode)
    with installed(model, _Screen(every, gates)), torch.enable_grad():
        values = score(model, samples)
        if not values.requires_grad:
            raise ValueError(
                "the gradient screen needs a score that can be differentiated, and this one cannot; give a surrogate "
                'or use the method "exhaustive"'
            )
        slopes = torch.autograd.grad(values.mean(), list(gates.values()))
    if not all(bool(slope.isfinite().all()) for slope in slopes):
        raise NonFiniteError("its slopes are NaN or infinite, so they choose no head")
    found = {layer: slope.tolist() for layer, slope in zip(gates, slopes, strict=True)}
    return {(layer, head): found[layer][head] for layer, heads in plan.heads.items() for head in heads}
