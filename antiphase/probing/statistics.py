"""Statistics of attention in every layer of any Hugging Face model, with memory linear in length."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.errors import NonFiniteError
from antiphase.instrumentation.calls import AttentionCall, Pairing
from antiphase.instrumentation.hooks import observed
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
    """Statistics of the signed maps of differential heads: (layers, B, heads, ...).

    Signed shares alone make untrained maps look better than they are, so each comes with its share of Σ|A|.
    """

    entropy: Tensor
    """(layers, B, heads): entropy of |A| / Σ|A| in nats, mean over queries."""
    negative_share: Tensor
    """(layers, B, heads): share of negative weights in Σ|A|."""
    span_share: dict[str, Tensor]
    """{span: (layers, B, heads)}: signed weight on a span, mean over queries."""
    span_share_absolute: dict[str, Tensor]
    """{span: (layers, B, heads)}: the same of |A| / Σ|A|."""


@dataclass(frozen=True)
class AttentionStatistics:
    """Statistics of every softmax map, on the CPU. Padding counts neither as query nor as key."""

    received: Tensor
    """(layers, B, maps, N): mean weight that a key gets from the queries that see it; NaN at padding."""
    sinks: Tensor
    """(layers, B, maps, N) bool: received > α / N; never the first token."""
    enough_queries: Tensor
    """(layers, B, N) bool: keys seen by at least N / α queries, so that no single query can make them a sink."""
    sink_share: Tensor
    """(layers, B, maps): weight on sinks, mean over queries."""
    first_share: Tensor
    """(layers, B, maps): weight on the first token."""
    entropy: Tensor
    """(layers, B, maps): entropy of a query's weights in nats, mean over queries."""
    span_share: dict[str, Tensor]
    """{span: (layers, B, maps)}: weight on a span, mean over queries."""
    top_logits: Tensor
    """(layers, B, maps, k): the largest |q·k| · scale, descending."""
    logit_histogram: Tensor | None
    """(layers, maps, bins) int64: ``ops.statistics.size_histogram`` of |q·k| · scale, if requested."""
    logit_powers: Tensor | None
    """(layers, maps, 5) fp64: ``ops.statistics.power_sums`` of q·k · scale, with the histogram."""
    layers: list[int]
    """The model's number of each layer, 0-based."""
    alpha: float
    differences: DifferenceStatistics | None
    """None in softmax models."""

    def persistence_counts(self) -> tuple[float, float, float]:
        """Counts over neighbouring layers: positions that are sinks in both, positions that are sinks in the first, and
        the number expected in both if layers were independent.

        A position is a sink of a layer if it is a sink in any map and is seen by enough queries.
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
    """Run the model once and compute attention statistics of every layer (2406.15765, section 3, for sinks).

    The model is unchanged afterwards, even after an error. The two calls of a DiffLlama layer count as one.

    Example:
        >>> found = antiphase.attention_statistics(model, input_ids=input_ids)
        >>> found.sink_share.mean(1)  # weight on attention sinks, (layers, maps)

    Args:
        spans: {name: bool (B, N)} keys whose share of attention to measure.
        alpha: a key is a sink if it receives more than α / N, where N is the number of keys that the last query sees.
        top: how many of the largest logits to keep.
        histogram: whether to also count logits by magnitude and sum their powers.
        model_inputs: ``input_ids`` (B, N), ``attention_mask`` (B, N) and other inputs of the model.

    Raises:
        InputError: the model is an encoder–decoder.
        ValueError: the model does not use transformers' attention interface, or has unsupported arguments.
        NonFiniteError: weights or λ are not finite.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    real = model_inputs.get("attention_mask")
    if real is not None and real.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, length), got shape {tuple(real.shape)}")
    base = model.base_model
    if "use_cache" in inspect.signature(base.forward).parameters or hasattr(base.config, "use_cache"):
        model_inputs["use_cache"] = False
    probe = _Probe(None if real is None else real.bool().to(model.device), top, histogram)
    with observed(model, probe, once=True):
        base(**{name: value.to(model.device) if isinstance(value, Tensor) else value
                for name, value in model_inputs.items()})  # fmt: skip
    return _gather(probe.seen, alpha, spans or {})


class _Probe:
    """Observes each call and stores its statistics."""

    def __init__(self, real: Tensor | None, top: int, histogram: bool) -> None:
        self.real, self.top, self.histogram = real, top, histogram
        self.seen: list[_Seen] = []

    def __call__(self, call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if call.is_second_half:
            return
        call.refuse_unread("dropout")
        batch, _, length, _ = call.query.shape
        call.refuse_other_keys()
        if call.mask is not None and call.mask.shape[1] > 1:
            raise ValueError(
                f"{type(call.module).__name__} has a separate attention mask per head, which is not supported"
            )
        visible = Visibility(call.mask, call.is_causal, call.sliding_window)
        real = self.real
        if real is None:
            real = torch.ones(batch, length, dtype=torch.bool, device=call.query.device)
        query, key = call.by_group()
        lam = call.lam
        if lam is not None:
            lam = lam.expand(batch, call.maps // 2, length).unflatten(1, (key.shape[1], -1))
        found = layer_statistics(
            query, key, visible, scale=call.scale, real=real, lam=lam, top=self.top, histogram=self.histogram
        )
        lambdas = () if lam is None else (lam,)
        if not all(bool(part.isfinite().all()) for part in (found.maps.mass, found.maps.entropy, *lambdas)):
            raise NonFiniteError("its attention is NaN or infinite, so it measures nothing")
        self.seen.append(_Seen(call.layer, found, keys_of_last_query(real, length, visible), real, call.kind.pairing))


@dataclass(frozen=True)
class _Seen:
    """Statistics of one layer."""

    layer: int
    found: LayerStatistics
    last: Tensor
    """(B,) number of keys that the last query sees."""
    real: Tensor
    """(B, N)."""
    pairing: Pairing


def _gather(seen: list[_Seen], alpha: float, spans: Mapping[str, Tensor]) -> AttentionStatistics:
    """Combine all layers, on the CPU."""
    if len({one.pairing.by_map(one.found.maps.entropy).shape for one in seen}) != 1:
        raise ValueError("the model's layers have different numbers of heads, which do not fit into one table")
    real, first = seen[0].real, seen[0].real.long().argmax(1)
    marked = {name: span.to(real.device) for name, span in spans.items()}
    for name, span in marked.items():
        if span.dtype != torch.bool or span.shape != real.shape:
            raise ValueError(f"span {name} must be bool {tuple(real.shape)}, got {span.dtype} {tuple(span.shape)}")

    def stacked(values: list[Tensor]) -> Tensor:
        return torch.stack(values).cpu()

    def share(mass: Tensor, keys: Tensor) -> Tensor:
        """Share of the mass (B, heads, N) that lies on keys (B, N) or (B, heads, N)."""
        return (mass * (keys if keys.dim() == 3 else keys.unsqueeze(1))).sum(-1)

    received = [one.pairing.by_map(one.found.maps.received) for one in seen]
    mass = [one.pairing.by_map(one.found.maps.mass) for one in seen]
    found = [sinks(a, first, one.last, alpha=alpha) for a, one in zip(received, seen, strict=True)]
    is_first = torch.nn.functional.one_hot(first, real.shape[1]).bool()
    differences = [one.found.differences for one in seen]
    return AttentionStatistics(
        received=stacked(received),
        sinks=stacked(found),
        enough_queries=stacked([enough_queries(one.found.queries, one.last, alpha=alpha) for one in seen]),
        sink_share=stacked([share(m, s) for m, s in zip(mass, found, strict=True)]),
        first_share=stacked([share(m, is_first) for m in mass]),
        entropy=stacked([one.pairing.by_map(one.found.maps.entropy) for one in seen]),
        span_share={name: stacked([share(m, span) for m in mass]) for name, span in marked.items()},
        top_logits=stacked([one.pairing.by_map(one.found.top_logits) for one in seen]),
        logit_histogram=None if any(one.found.logit_histogram is None for one in seen) else stacked([
            one.pairing.by_map(one.found.logit_histogram.unsqueeze(0))[0] for one in seen
            if one.found.logit_histogram is not None
        ]),
        logit_powers=None if any(one.found.logit_powers is None for one in seen) else stacked([
            one.pairing.by_map(one.found.logit_powers.unsqueeze(0))[0] for one in seen
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
