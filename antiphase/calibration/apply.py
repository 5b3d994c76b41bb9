"""Calibrating some heads of a model within a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall
from antiphase.attention.forward_pass import ForwardPass, SequenceState
from antiphase.attention.hooks import transformed
from antiphase.attention.selected_maps import ONE_MASK, ChosenMaps, MapChoice
from antiphase.calibration.attention import attend, attend_running, calibrated_step, correct
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.reference import redistribute
from antiphase.ops.shapes import statistics_dtype
from antiphase.ops.statistics import Visibility, keys_seen, most_seen, sinks, visible_queries

STEPS_AHEAD = 512
"""Number of decoding steps for which memory is allocated at a time."""


class CalibrationState(SequenceState):
    """State that calibration keeps with the keys and values of a cache.

    Tensors by name and layer, where M counts from the cache's first key, including dropped ones: ``sinks`` (B, G, R, M)
    bool, sinks of the prompt; ``others`` (B, G, R, ≥ M), 0 at sinks of calibrated maps and 1 elsewhere, for decoding
    steps; ``mass`` (B, G, R, M), weight received so far. Other rules (``variants``) also keep ``drawn`` (B, G, R, M)
    bool, keys in the place of sinks, ``part`` (B, M) bool, a part of the prompt, and ``tokens`` (B, M) int64.
    """

    def check_crop(self) -> None:
        if any(name == "mass" for name, _ in self.kept):
            raise ValueError(
                'a cache cannot be cropped under calibration in mode "running": its sums include the attention of the '
                "cropped queries"
            )

    def crop(self, length: int) -> None:
        for name, layer in list(self.kept):
            if name == "others":
                del self.kept[name, layer]
            else:  # tokens that replace cropped ones are not sinks
                self.kept[name, layer] = self.kept[name, layer][..., :length]


@contextmanager
def calibrated(model: PreTrainedModel, plan: CalibrationPlan) -> Iterator[None]:
    """Calibrate the plan's heads in every forward pass within the block; the model is unchanged afterwards.

    Works with padding on either side, caches, ``generate``, sliding windows and grouped keys. Blocks nest. A layer
    without calibrated heads calls the model's own attention function. In a differential model, each softmax map is
    calibrated before the subtraction. The sinks of a prompt are stored with its cache, which must have been filled
    within the same block.

    Example:
        >>> with antiphase.calibrated(model, plan):
        ...     model.generate(input_ids, max_new_tokens=8)

    Raises:
        InputError: the plan does not fit the model, or the model is an encoder–decoder.
        ValueError: the model's attention does not use transformers' interface, or has arguments (such as ``softcap``)
            that calibration does not support.
    """
    plan.check(model)
    if not plan.heads:
        yield
        return
    with installed(model, Calibration(plan)):
        yield


@contextmanager
def installed(model: PreTrainedModel, calibration: Calibration) -> Iterator[None]:
    """Apply a calibration within the block; its plan must fit the model."""
    rule, layers = calibration.rule, calibration.plan.heads
    with transformed(model, calibration, layers=layers, state=CalibrationState, check=rule.check):
        yield


class Calibration:
    """The transform of one ``with`` block."""

    def __init__(self, plan: CalibrationPlan) -> None:
        self.rule = CalibrationRule(plan)
        self.choice = MapChoice(plan.heads)

    @property
    def plan(self) -> CalibrationPlan:
        return self.rule.plan

    def __call__(self, call: AttentionCall) -> Tensor:
        if not self.choice.maps(call):
            return call.own()[0]
        if self._is_known_step(call):
            return self.choice.replaced(call, lambda: self._step(call))
        return self.choice.changed(call, lambda chosen: self.rule.outputs(call, chosen))

    def _is_known_step(self, call: AttentionCall) -> bool:
        """Whether this is a decoding step that sees all keys, after a prompt whose sinks are known."""
        window = call.declared_window
        return (
            call.is_step
            and self.plan.mode == "prompt"
            and ("sinks", call.layer) in _forward_of(call).state.kept
            and (window is None or call.key.shape[2] <= window)
        )

    def _step(self, call: AttentionCall) -> Tensor:
        """Calibrated outputs (B, G, R, 1, dv) of one query, in few operator calls."""
        forward, layer = _forward_of(call), call.layer
        kept = forward.state.kept
        grouped = self.choice.grouped(call)
        keys = call.key.shape[2]
        dropped = max(0, forward.past + 1 - keys)
        others = kept.get(("others", layer))
        if others is None or others.shape[-1] < dropped + keys:
            found = kept["sinks", layer] & grouped.chosen
            room = dropped + keys + STEPS_AHEAD - found.shape[-1]
            others = torch.nn.functional.pad(~found, (0, room), value=True).to(statistics_dtype(call.query.dtype))
            kept["others", layer] = others
        mask = call.mask
        if mask is not None and mask.shape[1] > 1:
            raise ValueError(ONE_MASK)
        return calibrated_step(
            grouped.query, grouped.key, grouped.value, others[..., dropped : dropped + keys], mask,
            scale=call.scale, beta=self.plan.beta,
        )  # fmt: skip


class CalibrationRule:
    """Finds the sinks of selected maps and computes the maps' calibrated outputs."""

    def __init__(self, plan: CalibrationPlan) -> None:
        self.plan = plan
        self.found_sinks = plan.mode == "running"
        """Whether any calibrated map has had a sink so far; mode "running" does not track this and counts as True."""
        self._mass_before: Tensor | None = None
        """Weight that keys had received before the last call, in mode "running"."""

    def outputs(self, call: AttentionCall, maps: ChosenMaps) -> Tensor:
        """Calibrated outputs (B, G, R, N, dv) of a call's maps; maps that are not selected stay unchanged.

        Raises:
            ValueError: the mode needs information that this call lacks.
        """
        plan = self.plan
        if plan.mode == "running":
            return self._running(call, maps)
        if maps.few:
            weights = maps.weights()
            mass = (weights * maps.real_queries[:, None, None, :, None]).sum(-2)
            found = self.sinks(call, maps, mass)
            return maps.multiply(redistribute(weights, found.unsqueeze(-2), beta=plan.beta))
        attended = attend(maps)
        return correct(maps, attended, self.sinks(call, maps, attended.mass), beta=plan.beta)

    def sinks(self, call: AttentionCall, maps: ChosenMaps, mass: Tensor) -> Tensor:
        """Sinks (B, G, R, M) of the selected maps, from the prompt or the call's own queries.

        Args:
            mass: (B, G, R, M), sum of the weights that each key receives from real queries.
        """
        forward, plan = _forward_of(call), self.plan
        kept = forward.state.kept
        known = kept.get(("sinks", call.layer)) if plan.mode == "prompt" and forward.past else None
        if known is None:
            found = kept["sinks", call.layer] = _sinks(maps, mass, plan.alpha)
            self.found_sinks = self.found_sinks or bool((found & maps.chosen).any())
        else:
            found = in_cache(known, forward, maps)
        return found & maps.chosen

    def _running(self, call: AttentionCall, maps: ChosenMaps) -> Tensor:
        forward = _forward_of(call)
        if not call.hides_later_keys:
            raise ValueError('mode "running" needs causal attention; use "paper" or "prompt" for an encoder')
        kept = forward.state.kept
        if not call.is_second_half:
            self._mass_before = kept.get(("mass", call.layer))
        dropped = _dropped(forward, maps)
        known = None if self._mass_before is None else self._mass_before[..., dropped:]
        out, mass = attend_running(maps, known, alpha=self.plan.alpha, beta=self.plan.beta)
        kept["mass", call.layer] = torch.cat([mass.new_zeros(*mass.shape[:-1], dropped), mass], dim=-1)
        return out

    def check(self, forward: ForwardPass) -> None:
        """Check a forward pass before it starts.

        Raises:
            ValueError: the mode needs information that is missing for its sequences.
        """
        if self.plan.mode != "paper" and not forward.state.is_whole:
            raise ValueError(
                f'calibration in mode "{self.plan.mode}" must see the complete sequence, but this cache was filled '
                "outside of the calibrated block"
            )


def _forward_of(call: AttentionCall) -> ForwardPass:
    """The forward pass of a call whose maps were selected, which therefore has one."""
    assert call.forward is not None
    return call.forward


def _dropped(forward: ForwardPass, maps: ChosenMaps) -> int:
    """Number of keys that a sliding cache has dropped."""
    return max(0, forward.past + len(maps.places) - maps.key.shape[2])


def _sinks(maps: ChosenMaps, mass: Tensor, alpha: float) -> Tensor:
    """Sinks (B, G, R, M) of the call's own queries, from the summed weight that keys receive from them."""
    seen = Visibility(maps.mask, maps.is_causal, maps.sliding_window)
    keys = maps.key.shape[2]
    queries = visible_queries(maps.real_queries, keys, seen)
    received = mass / queries[:, None, None].to(mass.dtype)
    most = most_seen(maps.real_queries, keys_seen(maps.real_queries, keys, seen))
    return sinks(received, maps.first, most, alpha=alpha)


def in_cache(known: Tensor, forward: ForwardPass, maps: ChosenMaps) -> Tensor:
    """What is known of keys (..., ≤ all keys) for those still in the cache, (..., M); 0 or False for later keys."""
    keys, dropped = maps.key.shape[2], _dropped(forward, maps)
    kept = known[..., dropped : dropped + keys]
    return torch.nn.functional.pad(kept, (0, keys - kept.shape[-1]))
