"""What attention does in every layer of any Hugging Face model, in memory linear in length."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention_kinds import (
    has_two_keys,
    is_differential,
    lambda_afterwards,
    layer_number,
    refuse_repeated,
    subtracts_afterwards,
)
from antiphase.errors import NonFiniteError
from antiphase.interface import AttentionFunction, carries_positions, refuse_unknown, swapped, visible_keys
from antiphase.ops.statistics import (
    LayerStatistics,
    Visibility,
    enough_queries,
    keys_of_last_query,
    layer_statistics,
    sinks,
)  # fmt: skip

TOP_LOGITS = 10


@dataclass(frozen=True)
class DifferenceStatistics:
    """Of the signed maps of differential heads: (layers, B, heads, ...), maps 2i and 2i + 1 made head i.

    Signed figures alone flatter maps that learned nothing, so each stands beside its share of Σ|A|.
    """

    entropy: Tensor
    """(layers, B, heads), in nats, of |A| / Σ|A|, mean over queries."""
    negative_share: Tensor
    """(layers, B, heads): what negative weights make up of Σ|A|."""
    span_share: dict[str, Tensor]
    """{span: (layers, B, heads)}: signed weight, mean over queries."""
    span_share_absolute: dict[str, Tensor]
    """{span: (layers, B, heads)}: the same of |A| / Σ|A|."""


@dataclass(frozen=True)
class AttentionStatistics:
    """Statistics of every softmax map, on the CPU. Padding is neither query nor key."""

    received: Tensor
    """(layers, B, maps, N): mean weight that a key has from the queries that see it; NaN at padding."""
    sinks: Tensor
    """(layers, B, maps, N) bool: received > α / N; never the first token."""
    enough_queries: Tensor
    """(layers, B, N) bool: keys seen by at least N / α queries, which no single query can make a sink."""
    sink_share: Tensor
    """(layers, B, maps): weight on sinks, mean over queries."""
    first_share: Tensor
    """(layers, B, maps): weight on the first token."""
    entropy: Tensor
    """(layers, B, maps): of a query's weights, in nats, mean over queries."""
    span_share: dict[str, Tensor]
    """{span: (layers, B, maps)}: weight on a span, mean over queries."""
    top_logits: Tensor
    """(layers, B, maps, k): the largest |q·k| · scale, falling."""
    logit_histogram: Tensor | None
    """(layers, maps, bins) int64: |q·k| · scale by size, as ``ops.statistics.size_histogram`` counts; if wanted."""
    logit_powers: Tensor | None
    """(layers, maps, 5) fp64: ``ops.statistics.power_sums`` of q·k · scale, with the histogram."""
    layers: list[int]
    """The model's number of each layer, 0-based."""
    alpha: float
    differences: DifferenceStatistics | None
    """None in softmax models."""

    def persistence_counts(self) -> tuple[float, float, float]:
        """Of the positions that are sinks in a layer, how many are in the next one too; how many there are; and how
        many would stay if layers had nothing to do with each other.

        A position is a sink of a layer if it is one in any map and is seen by enough queries.
        """
        by_layer = (self.sinks & self.enough_queries[:, :, None]).any(2)  # (layers, B, N)
        stays = float((by_layer[1:] & by_layer[:-1]).sum())
        known = self.enough_queries[1:].sum(-1)  # (layers - 1, B)
        here, there = by_layer[:-1].sum(-1), by_layer[1:].sum(-1)
        return stays, float(here.sum()), float((here * there / known.clamp(min=1)).sum())


@torch.no_grad()
def attention_statistics(
    model: PreTrainedModel,
    spans: Mapping[str, Tensor] | None = None,
    alpha: float = 5.0,
    *,
    top: int = TOP_LOGITS,
    histogram: bool = False,
    **model_inputs: Any,
) -> AttentionStatistics:
    """Run the model once and reduce the attention of every layer (2406.15765, section 3, for sinks).

    Works by swapping the attention function; the model is unchanged afterwards, also after an error. Where a layer
    subtracts maps in its own code (DiffLlama), its two calls count once.

    Args:
        spans: {name: bool (B, N)} keys whose share of attention is wanted.
        alpha: a key is a sink if it receives more than α / N, N the keys that the last query sees.
        top: how many of the largest logits to keep.
        histogram: whether to count logits by size too, and sum their powers.
        model_inputs: ``input_ids`` (B, N), ``attention_mask`` (B, N), ...: what the model takes.

    Raises:
        InputError: a model whose attention cannot be read (``refuse_unread``).
        ValueError: the model does not use transformers' attention interface, or arguments are unknown to it.
        NonFiniteError: weights or λ that are not finite.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    real = model_inputs.get("attention_mask")
    if real is not None and real.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, length), got shape {tuple(real.shape)}")
    if model_inputs.get("encoder_hidden_states") is not None:
        raise ValueError("attention to another sequence (encoder_hidden_states) is not measured")
    base = model.base_model
    if "use_cache" in inspect.signature(base.forward).parameters or hasattr(base.config, "use_cache"):
        model_inputs["use_cache"] = False
    probe = _Probe(None if real is None else real.bool().to(model.device), top, histogram)
    with swapped(model, probe.wrap):
        base(**{name: value.to(model.device) if isinstance(value, Tensor) else value
                for name, value in model_inputs.items()})  # fmt: skip
    refuse_repeated(model, [one.layer for one in probe.seen])
    return _gather(probe.seen, alpha, spans or {})


class _Probe:
    """The attention function that looks on, and what it has seen."""

    def __init__(self, real: Tensor | None, top: int, histogram: bool) -> None:
        self.real, self.top, self.histogram = real, top, histogram
        self.seen: list[_Seen] = []
        self.query: Tensor | None = None  # of the last call

    def wrap(self, function: AttentionFunction) -> AttentionFunction:
        """Look at each call, then do what the model would have done."""

        def observe(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
        ) -> tuple[Tensor, Tensor | None]:
            if query is not self.query:  # DiffLlama calls twice with the same queries, once for each half of the values
                self.seen.append(self._look(module, query, key, attention_mask, kwargs))
            self.query = query
            return function(module, query, key, value, attention_mask, **kwargs)

        return observe

    def _look(
        self, module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, kwargs: dict[str, Any]
    ) -> _Seen:
        lam, scale, window = (kwargs.get(name) for name in ("lam", "scaling", "sliding_window"))
        refuse_unknown({k: v for k, v in kwargs.items() if k not in ("lam", "scaling", "sliding_window", "dropout")})
        batch, maps, length, width = query.shape
        keys = key.shape[2]
        if keys != length:
            raise ValueError(
                f"{type(module).__name__} attends to {keys} keys with {length} queries; attention to another sequence "
                "is not measured"
            )
        mask, is_causal = visible_keys(module, attention_mask, length)
        if mask is not None and mask.shape[1] > 1:
            raise ValueError(f"{type(module).__name__} has an attention mask for each head, which is not measured")
        visible = Visibility(mask, is_causal, None if carries_positions(mask, length) else window)
        real = self.real
        if real is None:
            real = torch.ones(batch, length, dtype=torch.bool, device=query.device)
        if is_differential(module):
            key_maps = 2 if has_two_keys(module) else 1
            groups = key.shape[1] // key_maps
            grouped = query.unflatten(1, (groups, -1, 2)), key.unflatten(1, (groups, key_maps))
            order = _Order.INTERLEAVED
        elif subtracts_afterwards(module):  # map i is subtracted from by map i + maps / 2
            groups = key.shape[1] // 2
            grouped = (
                query.unflatten(1, (2, groups, -1)).movedim(1, 3),
                key.unflatten(1, (2, groups)).transpose(1, 2),
            )
            lam = lambda_afterwards(module)
            order = _Order.HALVES
        else:
            groups = key.shape[1]
            grouped = query.unflatten(1, (groups, -1, 1)), key.unsqueeze(2)
            order = _Order.SINGLE
        if lam is not None:
            lam = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).expand(batch, maps // 2, length)
            lam = lam.unflatten(1, (groups, -1))
        found = layer_statistics(
            *grouped, visible, scale=width**-0.5 if scale is None else scale, real=real, lam=lam, top=self.top,
            histogram=self.histogram,
        )  # fmt: skip
        lambdas = () if lam is None else (lam,)
        if not all(bool(part.isfinite().all()) for part in (found.maps.mass, found.maps.entropy, *lambdas)):
            raise NonFiniteError("its attention is NaN or infinite, so it measures nothing")
        last = keys_of_last_query(real, keys, visible)
        return _Seen(layer_number(module, len(self.seen)), found, last, real, order)


class _Order(Enum):
    """How the maps of a layer are numbered."""

    SINGLE = 0
    INTERLEAVED = 1  # maps 2i and 2i + 1 are head i
    HALVES = 2  # maps i and i + half of them are head i

    def by_map(self, tensor: Tensor) -> Tensor:
        """(B, G, R, S, ...) as (B, maps, ...) in the model's own numbering."""
        return (tensor.movedim(3, 1) if self is _Order.HALVES else tensor).flatten(1, 3)


@dataclass(frozen=True)
class _Seen:
    """One layer."""

    layer: int
    found: LayerStatistics
    last: Tensor
    """(B,) keys that the last query sees."""
    real: Tensor
    """(B, N)."""
    order: _Order


def _gather(seen: list[_Seen], alpha: float, spans: Mapping[str, Tensor]) -> AttentionStatistics:
    """All layers in one, on the CPU."""
    if len({one.order.by_map(one.found.maps.entropy).shape for one in seen}) != 1:
        raise ValueError("the model's layers have different numbers of heads, which cannot stand in one table")
    real, first = seen[0].real, seen[0].real.long().argmax(1)
    marked = {name: span.to(real.device) for name, span in spans.items()}
    for name, span in marked.items():
        if span.dtype != torch.bool or span.shape != real.shape:
            raise ValueError(f"span {name} must be bool {tuple(real.shape)}, got {span.dtype} {tuple(span.shape)}")

    def stacked(values: list[Tensor]) -> Tensor:
        return torch.stack(values).cpu()

    def share(mass: Tensor, keys: Tensor) -> Tensor:
        """Of the mass (B, heads, N), what lies on keys (B, N) or (B, heads, N)."""
        return (mass * (keys if keys.dim() == 3 else keys.unsqueeze(1))).sum(-1)

    received = [one.order.by_map(one.found.maps.received) for one in seen]
    mass = [one.order.by_map(one.found.maps.mass) for one in seen]
    found = [sinks(a, first, one.last, alpha=alpha) for a, one in zip(received, seen, strict=True)]
    is_first = torch.nn.functional.one_hot(first, real.shape[1]).bool()
    differences = [one.found.differences for one in seen]
    return AttentionStatistics(
        received=stacked(received),
        sinks=stacked(found),
        enough_queries=stacked([enough_queries(one.found.queries, one.last, alpha=alpha) for one in seen]),
        sink_share=stacked([share(m, s) for m, s in zip(mass, found, strict=True)]),
        first_share=stacked([share(m, is_first) for m in mass]),
        entropy=stacked([one.order.by_map(one.found.maps.entropy) for one in seen]),
        span_share={name: stacked([share(m, span) for m in mass]) for name, span in marked.items()},
        top_logits=stacked([one.order.by_map(one.found.top_logits) for one in seen]),
        logit_histogram=None if any(one.found.logit_histogram is None for one in seen) else stacked([
            one.order.by_map(one.found.logit_histogram.unsqueeze(0))[0] for one in seen
            if one.found.logit_histogram is not None
        ]),
        logit_powers=None if any(one.found.logit_powers is None for one in seen) else stacked([
            one.order.by_map(one.found.logit_powers.unsqueeze(0))[0] for one in seen
            if one.found.logit_powers is not None
        ]),
        layers=[one.layer for one in seen],
        alpha=alpha,
        differences=None if any(d is None for d in differences) else DifferenceStatistics(
            entropy=stacked([d.entropy.flatten(1) for d in differences if d]),
            negative_share=stacked([d.negative_share.flatten(1) for d in differences if d]),
            span_share={
                name: stacked([share(d.signed_mass.flatten(1, 2), span) for d in differences if d])
                for name, span in marked.items()
            },
            span_share_absolute={
                name: stacked([share(d.absolute_mass.flatten(1, 2), span) for d in differences if d])
                for name, span in marked.items()
            },
        ),
    )  # fmt: skip
