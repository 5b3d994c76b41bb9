"""A model with some of its heads calibrated, for the time of a ``with`` block."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from antiphase.attention_kinds import has_two_keys, is_differential
from antiphase.calibration.attention import (
    Call,
    attend,
    attend_running,
    calibrated_step,
    correct,
    multiply,
    weights_of,
)
from antiphase.calibration.oracle import redistribute
from antiphase.calibration.plan import CalibrationPlan
from antiphase.errors import InputError
from antiphase.interface import (
    AttentionFunction,
    boolean_mask,
    carries_positions,
    join_halves,
    layer_is_causal,
    refuse_unknown,
    swapped,
    visible_keys,
)
from antiphase.ops.shapes import positions_mask, statistics_dtype
from antiphase.ops.statistics import Visibility, keys_of_last_query, sinks, visible_queries

STATES = "_antiphase_calibrations"
"""Attribute of a cache: what each ``with`` block keeps beside its keys and values, by the block's number."""
STEPS_AHEAD = 512
"""Decoding steps for which room is made at a time."""
ONE_MASK = "calibration needs one attention mask for all heads"
_NUMBERS = count()
_KNOWN = ("lam", "scaling", "sliding_window")
"""Keyword arguments of an attention function that calibration takes into account."""


@dataclass
class _State:
    """What calibration keeps beside the keys and values of a cache, by layer."""

    kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """By name and layer, sequences first; keys count from the cache's first, dropped ones included.

    ``sinks`` (B, G, R, M) bool, of the prompt; ``others`` (B, G, R, ≥ M), 0 at calibrated maps' sinks and 1 elsewhere,
    for steps; ``mass`` (B, G, R, M), weight received so far; ``real`` (B, M) bool: tokens, where only masks by query
    tell them from padding.
    """

    def seen(self, layer: int, keys: Tensor, total: int) -> Tensor:
        """Which of all tokens (B, total) any query of this or an earlier call sees, for keys (B, M) of this call."""
        now = torch.nn.functional.pad(keys, (max(0, total - keys.shape[1]), 0))[:, :total]
        earlier = self.kept.get(("real", layer))
        if earlier is not None:
            now = now | torch.nn.functional.pad(earlier, (0, total - earlier.shape[1]))
        self.kept["real", layer] = now
        return now

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        for name, tensor in self.kept.items():
            self.kept[name] = tensor[rows.to(tensor.device)]


@dataclass
class _Forward:
    """What an attention function cannot see of the forward pass that it is part of."""

    real: Tensor | None
    """(B, all keys) bool: tokens that are not padding; None: all are."""
    past: int
    """Keys of earlier calls."""
    state: _State
    query: Tensor | None = None
    """Of the last call: DiffLlama's layers call twice with the same queries, once for each half of the values."""
    mass: Tensor | None = None
    """What keys had received before the last call."""
    attended: set[int] = field(default_factory=set)
    """Layers that called the attention function."""
    last: Tensor | None = None
    """Queries of the last call of any layer."""
    simple: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Masks by query, and by key alone where that says the same: layers share their masks."""


@contextmanager
def calibrated(model: PreTrainedModel, plan: CalibrationPlan) -> Iterator[None]:
    """Calibrate the plan's heads in every forward pass within the block; the model is as before afterwards.

    Works with padding on either side, caches, ``generate``, sliding windows and grouped keys. Blocks nest. A layer
    without calibrated heads calls the model's own attention function. In a differential model each softmax map is
    calibrated before the subtraction. What later steps need to know of a prompt belongs to the cache, which must have
    been filled within the same block.

    Raises:
        InputError: the plan does not fit the model, or its attention cannot be read (``refuse_unread``).
        ValueError: the model's attention does not go through transformers' interface, or takes arguments (such as
            ``softcap``) that calibration does not know.
    """
    plan.check(model)
    if not plan.heads:
        yield
        return
    with installed(model, Calibration(plan)):
        yield


@contextmanager
def installed(model: PreTrainedModel, calibration: Calibration) -> Iterator[None]:
    """A model with its attention function and the hooks that it needs; removed afterwards."""
    base = model.base_model
    handles = [
        base.register_forward_pre_hook(calibration.before, with_kwargs=True),
        base.register_forward_hook(calibration.after),
    ]
    try:
        with swapped(model, calibration.wrap, must_be_called=False):
            yield
    finally:
        for handle in handles:
            handle.remove()


class Calibration:
    """One ``with`` block: the hooks that see caches and padding, and the attention function."""

    by_layer = True
    """Whether layers are told apart: then all of the plan must attend, and none more than once in a forward pass."""

    def __init__(self, plan: CalibrationPlan) -> None:
        self.plan = plan
        self.number = next(_NUMBERS)
        self.chosen: dict[tuple[int, torch.device], _Chosen] = {}
        self.forward: _Forward | None = None
        self.found_sinks = plan.mode == "running"
        """Whether any calibrated map has had a sink since; mode "running" does not tell and counts as yes."""

    # ------------------------------------------------------------------------------------------ hooks

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the forward pass: padding, and whether there were earlier calls."""
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs)
        given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        if given.get("encoder_hidden_states") is not None:
            raise ValueError("attention to another sequence (encoder_hidden_states) cannot be calibrated")
        cache = given.get("past_key_values")
        past = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
        mask = given.get("attention_mask")
        real = mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
        state = _State() if past == 0 else getattr(cache, STATES, {}).get(self.number)
        if state is None:
            if self.plan.mode != "paper":
                raise ValueError(
                    f'calibration in mode "{self.plan.mode}" needs to see the whole sequence: this cache was filled '
                    "outside of the calibrated block"
                )
            state = _State()
        self.forward = _Forward(real, past, state)
        if isinstance(cache, Cache):
            self._keep(cache, state)

    def begin(self, real: Tensor | None = None) -> None:
        """Begin a forward pass without a model: a prefill of tokens (B, N), True where they are not padding."""
        self.forward = _Forward(real, 0, _State())

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After the forward pass: a cache that it has made keeps what calibration knows."""
        if self.forward is not None and not self.forward.attended:
            raise ValueError(f"{type(module).__name__} never called the attention function of the interface")
        silent = [] if self.forward is None else sorted(set(self.plan.heads) - self.forward.attended)
        if silent and self.by_layer:
            raise InputError(
                f"layer {silent[0]} of {type(module).__name__} has no attention that could be calibrated; leave it out "
                "of the plan (--layers of a search or study)"
            )
        cache = getattr(output, "past_key_values", None)
        if isinstance(cache, Cache) and self.forward is not None:
            self._keep(cache, self.forward.state)
        self.forward = None

    def _keep(self, cache: Cache, state: _State) -> None:
        if not hasattr(cache, STATES):
            setattr(cache, STATES, {})
            for name in _FOLLOWED:
                setattr(cache, name, MethodType(globals()[f"_{name}"], cache))
        getattr(cache, STATES)[self.number] = state

    # ------------------------------------------------------------------------------------------ attention

    def wrap(self, function: AttentionFunction) -> AttentionFunction:
        """The attention function of the block, over the model's own."""

        def attend_calibrated(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
        ) -> tuple[Tensor, Tensor | None]:
            self.note(module, query)
            heads = self.plan.heads.get(layer_of(module), ())
            if not heads:
                return function(module, query, key, value, attention_mask, **kwargs)
            with torch.no_grad():
                if self.is_step(module, query, key, kwargs):
                    formed = self.step(module, query, key, value, attention_mask, heads, kwargs.get("scaling"))
                else:
                    call = self.call(module, query, key, value, attention_mask, heads, kwargs)
                    formed = self.outputs(layer_of(module), call, query)
                formed = by_map(formed)  # (B, N, maps, dv)
            if torch.is_grad_enabled():
                formed = _WithoutGradient.apply(formed, query, key, value)
            if is_differential(module):
                first, second = formed.unflatten(2, (-1, 2)).unbind(3)
                return (first - lambda_column(kwargs["lam"]) * second).to(query.dtype), None
            if len(heads) == query.shape[1]:
                return formed, None
            out = function(module, query, key, value, attention_mask, **kwargs)[0].clone()
            out[:, :, list(heads)] = formed
            return out, None

        return attend_calibrated

    def note(self, module: nn.Module, query: Tensor) -> None:
        """Remember that a layer attends. DiffLlama's do so twice with the same queries."""
        layer = layer_of(module)
        if self.forward is None:
            return
        if self.by_layer and layer in self.forward.attended and query is not self.forward.last:
            raise ValueError(
                f"layer {layer} attends more than once in a forward pass ({type(module).__name__}), which cannot be "
                "calibrated"
            )
        self.forward.attended.add(layer)
        self.forward.last = query

    def grouped(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, heads: Sequence[int]) -> _Grouped:
        """The maps that are to be formed, by the keys that they read."""
        name = layer_of(module), query.device
        if name not in self.chosen:
            maps = torch.tensor(list(heads), device=query.device)
            is_chosen = torch.zeros(query.shape[1], dtype=torch.bool, device=query.device)
            self.chosen[name] = _Chosen(maps, is_chosen.index_fill_(0, maps, True))
        return _grouped(module, query, key, value, self.chosen[name])

    def is_step(self, module: nn.Module, query: Tensor, key: Tensor, kwargs: dict[str, Any]) -> bool:
        """Whether this is a decoding step that sees all keys there are, of a prompt whose sinks are known."""
        forward, window = self.forward, kwargs.get("sliding_window")
        return (
            forward is not None
            and self.plan.mode == "prompt"
            and query.shape[2] == 1
            and ("sinks", layer_of(module)) in forward.state.kept
            and forward.past > 0
            and (window is None or key.shape[2] <= window)
        )

    def step(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        heads: Sequence[int],
        scale: float | None,
    ) -> Tensor:
        """Outputs (B, G, R, 1, dv) of one query, as ``outputs`` gives them, in few calls."""
        assert self.forward is not None
        layer, kept = layer_of(module), self.forward.state.kept
        grouped = self.grouped(module, query, key, value, heads)
        keys = key.shape[2]
        dropped = max(0, self.forward.past + 1 - keys)
        others = kept.get(("others", layer))
        if others is None or others.shape[-1] < dropped + keys:
            found = kept["sinks", layer] & grouped.chosen
            room = dropped + keys + STEPS_AHEAD - found.shape[-1]
            others = torch.nn.functional.pad(~found, (0, room), value=True).to(statistics_dtype(query.dtype))
            kept["others", layer] = others
        mask = None if attention_mask is None else boolean_mask(attention_mask)
        if mask is not None and mask.shape[1] > 1:
            raise ValueError(ONE_MASK)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return calibrated_step(
            grouped.query, grouped.key, grouped.value, others[..., dropped : dropped + keys], mask,
            scale=scale, beta=self.plan.beta,
        )  # fmt: skip

    def call(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        heads: Sequence[int],
        kwargs: dict[str, Any],
    ) -> Call:
        refuse_unknown({name: given for name, given in kwargs.items() if name not in _KNOWN})
        if self.plan.mode == "running" and not layer_is_causal(module, attention_mask):
            raise ValueError('mode "running" needs causal attention; use "paper" or "prompt" for an encoder')
        if self.forward is None:
            raise ValueError("the model's layers were called without the model, so that caches and padding are unknown")
        grouped = self.grouped(module, query, key, value, heads)
        return _call(self.forward, module, grouped, attention_mask, kwargs.get("scaling"), kwargs.get("sliding_window"))

    def outputs(self, layer: int, call: Call, query: Tensor) -> Tensor:
        """Outputs (B, G, R, N, dv) of the chosen maps, calibrated; of a differential layer, of all."""
        assert self.forward is not None
        forward, plan = self.forward, self.plan
        dropped = forward.past + len(call.places) - call.key.shape[2]  # keys that a sliding cache no longer has
        if plan.mode == "running":
            if query is not forward.query:
                forward.query, forward.mass = query, forward.state.kept.get(("mass", layer))
            known = None if forward.mass is None else forward.mass[..., max(0, dropped) :]
            out, mass = attend_running(call, known, alpha=plan.alpha, beta=plan.beta)
            gone = mass.new_zeros(*mass.shape[:-1], max(0, dropped))
            forward.state.kept["mass", layer] = torch.cat([gone, mass], dim=-1)
            return out
        if call.few:
            weights = weights_of(call)
            mass = (weights * call.real_queries[:, None, None, :, None]).sum(-2)
            found = self.sinks(layer, call, mass)
            return multiply(call, redistribute(weights, found.unsqueeze(-2), beta=plan.beta))
        attended = attend(call)
        return correct(call, attended, self.sinks(layer, call, attended.mass), beta=plan.beta)

    def sinks(self, layer: int, call: Call, mass: Tensor) -> Tensor:
        """Sinks (B, G, R, M) of the calibrated maps: those of the prompt, or of the call's own queries."""
        assert self.forward is not None
        kept = self.forward.state.kept
        known = kept.get(("sinks", layer)) if self.plan.mode == "prompt" and self.forward.past else None
        if known is None:
            found = kept["sinks", layer] = _sinks(call, mass, self.plan.alpha)
            self.found_sinks = self.found_sinks or bool((found & call.chosen).any())
        else:
            dropped = self.forward.past + len(call.places) - call.key.shape[2]
            found = _fit(known, call.key.shape[2], max(0, dropped))
        return found & call.chosen


class _WithoutGradient(torch.autograd.Function):
    """Calibrated outputs, which say so where somebody wants their gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *inputs: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("calibrated attention has no gradient; train the model outside of the calibrated block")


@dataclass(frozen=True)
class _Grouped:
    """The maps that are to be formed, by the keys that they read."""

    query: Tensor
    """(B, G, R, N, d)."""
    key: Tensor
    """(B, G, M, d)."""
    value: Tensor
    """(B, G, M, dv)."""
    chosen: Tensor
    """(G, R, 1) bool: maps that are calibrated."""


@dataclass(frozen=True)
class _Chosen:
    """The plan's maps of one layer."""

    maps: Tensor
    """(chosen,) int64."""
    is_chosen: Tensor
    """(maps,) bool."""


def _grouped(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, chosen: _Chosen) -> _Grouped:
    """The chosen maps of a softmax layer; all maps of a differential one, as each is subtracted from another."""
    maps = query.shape[1]
    if is_differential(module):
        halves = 2 if has_two_keys(module) else 1
        values = join_halves(value) if halves == 2 else value
        if halves == 2:
            heads_of_value = torch.arange(maps, device=query.device) // (maps // values.shape[1])
            keys = 2 * heads_of_value + torch.arange(maps, device=query.device) % 2
            return _Grouped(
                query.unsqueeze(2), key[:, keys], values[:, heads_of_value], chosen.is_chosen[:, None, None]
            )
        grouped = chosen.is_chosen.view(key.shape[1], -1, 1)
        return _Grouped(query.unflatten(1, (key.shape[1], -1)), key, value, grouped)
    repeats = maps // key.shape[1]
    if len(chosen.maps) == maps:
        return _Grouped(query.unflatten(1, (-1, repeats)), key, value, chosen.is_chosen.view(-1, repeats, 1))
    groups = chosen.maps // repeats
    return _Grouped(
        query[:, chosen.maps].unsqueeze(2), key[:, groups], value[:, groups], chosen.is_chosen[chosen.maps, None, None]
    )


def _call(
    forward: _Forward,
    module: nn.Module,
    grouped: _Grouped,
    attention_mask: Tensor | None,
    scale: float | None,
    window: int | None,
) -> Call:
    batch, _, _, length, width = grouped.query.shape
    total = forward.past + length
    if attention_mask is None and grouped.key.shape[2] > total:  # empty slots of a static cache
        grouped = replace(grouped, key=grouped.key[:, :, :total], value=grouped.value[:, :, :total])
    keys = grouped.key.shape[2]
    mask, is_causal = visible_keys(module, attention_mask, length)
    if mask is not None and mask.shape[1] > 1:
        raise ValueError(ONE_MASK)
    seen = mask[:, 0].any(1) if mask is not None and carries_positions(mask, length) else None  # (1|B, M)
    if seen is not None:
        assert attention_mask is not None
        assert mask is not None
        by_key = _simple(forward, attention_mask, mask, module, window)
        if by_key is None:
            window = None
        else:
            mask, is_causal = by_key, layer_is_causal(module, attention_mask) and length > 1
    if forward.real is not None:
        real = forward.real[:, :total]
    else:
        real = grouped.query.new_ones(batch, total, dtype=torch.bool)
        if seen is not None:
            real = forward.state.seen(layer_of(module), seen.expand(batch, -1), total)
    before = real[:, : max(0, total - keys)].sum(1)
    places = torch.arange(length, device=real.device) + min(total, keys) - length
    real = real[:, max(0, total - keys) :]
    return Call(
        query=grouped.query, key=grouped.key, value=grouped.value, mask=mask, is_causal=is_causal,
        sliding_window=window, scale=width**-0.5 if scale is None else scale,
        real=torch.nn.functional.pad(real, (0, keys - real.shape[1])), before=before, places=places,
        chosen=grouped.chosen,
    )  # fmt: skip


def _simple(forward: _Forward, given: Tensor, mask: Tensor, module: nn.Module, window: int | None) -> Tensor | None:
    """A mask by query (1|B, 1, N, M) as one by key (1|B, 1, 1, M), where causality and window say the rest; else None.

    Then blocks above the diagonal need not be formed.
    """
    for known, by_key in forward.simple:
        if known is given:
            return by_key if by_key.shape[2] == 1 else None
    by_key = mask.any(2, keepdim=True)
    positions = positions_mask(
        *mask.shape[2:], is_causal=layer_is_causal(module, given), sliding_window=window, device=mask.device
    )
    if not torch.equal(mask, by_key.expand_as(mask) if positions is None else by_key & positions):
        by_key = mask
    forward.simple.append((given, by_key))
    return by_key if by_key.shape[2] == 1 else None


def _sinks(call: Call, mass: Tensor, alpha: float) -> Tensor:
    """Sinks (B, G, R, M) of the call's own queries, from the weight that keys receive from them, summed."""
    seen = Visibility(call.mask, call.is_causal, call.sliding_window)
    keys = call.key.shape[2]
    queries = visible_queries(call.real_queries, keys, seen)
    received = mass / queries[:, None, None].to(mass.dtype)
    visible = keys_of_last_query(call.real_queries, keys, seen)
    return sinks(received, call.first, visible, alpha=alpha)


def _fit(known: Tensor, keys: int, dropped: int) -> Tensor:
    """Sinks (B, G, R, ≤ all keys) for the keys that are still there; later keys are none."""
    kept = known[..., dropped : dropped + keys]
    return torch.nn.functional.pad(kept, (0, keys - kept.shape[-1]))


def by_map(out: Tensor) -> Tensor:
    """(B, G, R, N, dv) as (B, N, maps, dv)."""
    return out.flatten(1, 2).transpose(1, 2)


def lambda_column(lam: Tensor) -> Tensor:
    """λ, broadcastable to (B, H, N), as (1|B, 1|N, 1|H, 1)."""
    return lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).transpose(1, 2).unsqueeze(-1)


def layer_of(module: nn.Module) -> int:
    """The 0-based number of an attention layer."""
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise ValueError(f"{type(module).__name__} does not say which layer it is (layer_idx)")
    return int(layer)


# ------------------------------------------------------------------------ what a cache does to its sequences


def _reorder_cache(self: Cache, beam_idx: Tensor) -> None:
    type(self).reorder_cache(self, beam_idx)
    for state in getattr(self, STATES).values():
        state.select(beam_idx)


def _batch_select_indices(self: Cache, indices: Tensor) -> None:
    type(self).batch_select_indices(self, indices)
    for state in getattr(self, STATES).values():
        state.select(torch.as_tensor(indices))


def _batch_repeat_interleave(self: Cache, repeats: int) -> None:
    type(self).batch_repeat_interleave(self, repeats)
    for state in getattr(self, STATES).values():
        for name, tensor in state.kept.items():
            state.kept[name] = tensor.repeat_interleave(repeats, dim=0)


def _crop(self: Cache, *args: Any, **kwargs: Any) -> None:
    if any(name == "mass" for state in getattr(self, STATES).values() for name, _ in state.kept):
        raise ValueError('a cache cannot be cropped under calibration in mode "running": what the cropped queries '
                         "looked at is part of its sums")  # fmt: skip
    type(self).crop(self, *args, **kwargs)
    for state in getattr(self, STATES).values():
        for name, layer in list(state.kept):
            if name == "others":
                del state.kept[name, layer]
            elif name == "sinks":  # what comes in the place of cropped tokens is none
                state.kept[name, layer] = state.kept[name, layer][..., : self.get_seq_length()]


_FOLLOWED = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop")
"""Methods of a cache that change which sequences or tokens it holds; calibration follows them or refuses."""
