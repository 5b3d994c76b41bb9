"""Statistics of attention in every layer of any Hugging Face model, with memory linear in length."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall, Pairing
from antiphase.attention.hooks import observed
from antiphase.attention.own_maps import changes_scores, shares, without_bias
from antiphase.base.errors import NonFiniteError
from antiphase.base.modes import evaluation_mode
from antiphase.base.tables import Shown, Table, columns_of
from antiphase.ops.statistics import (
    LayerStatistics,
    Visibility,
    enough_queries,
    keys_seen,
    layer_statistics,
    most_seen,
    sinks,
    uniform_received,
)  # fmt: skip

TOP_LOGITS = 10
UNSPENT = 1e-4
"""Weight on no token up to which it is a softmax's rounding in half precision."""


@dataclass(frozen=True)
class DifferenceStatistics(Shown):
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

    def tables(self) -> list[Table]:
        values = {"Entropy, nats|loss": self.entropy, "Negative|percent": self.negative_share}
        return [_by_layer("Differences of two maps by layer", range(len(self.entropy)), values, "")]


@dataclass(frozen=True)
class AttentionStatistics(Shown):
    """Statistics of every softmax map, on the CPU. Padding counts neither as query nor as key."""

    received: Tensor
    """(layers, B, maps, N): mean weight that a key gets from the queries that see it; NaN at padding."""
    sinks: Tensor
    """(layers, B, maps, N) bool: received > α / N; never the first token."""
    enough_queries: Tensor
    """(layers, B, N) bool: keys seen by at least N / α queries, so that no single query can make them a sink."""
    null_local: Tensor
    """(layers, B): share of real keys that would be sinks in a map whose queries attend to themselves alone."""
    null_uniform: Tensor
    """(layers, B): the same in a map whose queries attend to all keys that they see alike."""
    sink_share: Tensor
    """(layers, B, maps): weight on sinks, mean over queries."""
    first_share: Tensor
    """(layers, B, maps): weight on the first token."""
    unspent: Tensor
    """(layers, B, maps): weight on no token, mean over queries: what a learned sink takes (gpt-oss) or softpick leaves;
    0 in a softmax without one."""
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

    def tables(self) -> list[Table]:
        _, texts, maps = self.entropy.shape
        counted = self.sinks & self.enough_queries[:, :, None]
        values = {"On the first token|percent": self.first_share, "Sinks a map|loss": counted.sum(-1).double()}
        values |= {"On sinks|percent": self.sink_share, "Entropy, nats|loss": self.entropy}
        values |= {"On no token|percent": self.unspent} if float(self.unspent.max()) > UNSPENT else {}
        values |= {"Negative|percent": self.differences.negative_share} if self.differences else {}
        note = (
            f"Means over texts ({texts}) and maps ({maps}). Sinks: keys of a map, without the first token, that "
            f"receive more than {self.alpha:g} / N. Next: fields such as .sink_share have a value for each map; "
            "antiphase.look(model, tokenizer, text) shows the maps."
        )
        return [_by_layer("Attention by layer", self.layers, values, note)]

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


def _by_layer(title: str, layers: Sequence[int], values: Mapping[str, Tensor], note: str) -> Table:
    """Means of values (layers, B, maps), by the column's name and style."""
    means = zip(*(value.mean((1, 2)).tolist() for value in values.values()), strict=True)
    rows = [[layer, *row] for layer, row in zip(layers, means, strict=True)]
    return Table(title=title, columns=columns_of("Layer|integer", *values), rows=rows, note=note)


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

    The model runs without dropout, and is unchanged afterwards, even after an error. The two calls of a DiffLlama layer
    count as one. A layer that changes its scores (soft caps, position biases, sink logits) forms whole maps, one layer
    at a time; logits are those before such changes.

    Of an encoder–decoder, ``model.get_encoder()`` is measured on its text, and ``model.get_decoder()`` with
    ``encoder_hidden_states``, whose attention to these is left out.

    Example:
        >>> found = antiphase.attention_statistics(model, input_ids=input_ids)
        >>> found.sink_share.mean(1)  # weight on attention sinks, (layers, maps)

    Args:
        spans: {name: bool (B, N)} keys whose share of attention to measure.
        alpha: a key is a sink if it receives more than α / N, where N is the largest number of keys that a query sees.
        top: how many of the largest logits to keep.
        histogram: whether to also count logits by magnitude and sum their powers.
        model_inputs: ``input_ids`` (B, N), ``attention_mask`` (B, N) and other inputs of the model.

    Raises:
        InputError: the model is an encoder–decoder.
        ValueError: an input is no tensor (batch, length), there are labels, the model does not use transformers'
            attention interface, attends within windows, or its layers differ in size.
        NonFiniteError: weights or λ are not finite.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    first = next((given for given in model_inputs.values() if isinstance(given, Tensor)), None)
    if first is None or first.dim() < 2 or not first.numel() or any(isinstance(v, list) for v in model_inputs.values()):
        raise ValueError("inputs must be tensors (batch, length) of at least one token, as tokenizer(texts, "
                         'padding=True, return_tensors="pt") gives')  # fmt: skip
    if model_inputs.get("labels") is not None:
        raise ValueError("attention depends on no labels; leave them out")
    real = model_inputs.get("attention_mask")
    if real is not None and real.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, length), got shape {tuple(real.shape)}")
    base = model.base_model
    if "use_cache" in inspect.signature(base.forward).parameters or hasattr(base.config, "use_cache"):
        model_inputs["use_cache"] = False
    probe = _Probe(model, model_inputs, spans or {}, alpha=alpha, top=top, histogram=histogram)
    reads_other = model_inputs.get("encoder_hidden_states") is not None
    with evaluation_mode(model), observed(model, probe, once=not reads_other, encoder_decoder=reads_other):
        base(**{name: value.to(model.device) if isinstance(value, Tensor) else value
                for name, value in model_inputs.items()})  # fmt: skip
    return probe.found()


class _Rows:
    """Tensors of equal shape, one of each layer of a model, in one storage that is allocated with the first.

    Kept one by one, these small tensors would lie between the large ones of the forward pass, and the heap, which can
    shrink at its end alone, would grow around them.
    """

    def __init__(self, expected: int, model: str) -> None:
        self.expected, self.model, self.count = expected, model, 0
        self.storage: Tensor | None = None

    def append(self, row: Tensor) -> None:
        """Copy a layer's tensor."""
        if self.storage is None:
            self.storage = row.new_empty(max(1, self.expected), *row.shape)
        if row.shape != self.storage.shape[1:]:
            raise ValueError(
                f"the layers of models of type {self.model} have different numbers of heads or tokens, which do not "
                "fit into one table; antiphase look shows each layer, and parts whose layers are alike can be measured"
            )
        if self.count == len(self.storage):
            self.storage = torch.cat([self.storage, torch.empty_like(self.storage)])
        self.storage[self.count] = row
        self.count += 1

    def all(self) -> Tensor:
        """(layers, ...), on the CPU."""
        assert self.storage is not None
        return self.storage[: self.count].cpu()


class _Probe:
    """Observes each call and stores its statistics."""

    def __init__(
        self, model: PreTrainedModel, inputs: Mapping[str, Any], spans: Mapping[str, Tensor],
        *, alpha: float, top: int, histogram: bool,
    ) -> None:  # fmt: skip
        real = inputs.get("attention_mask")
        self.real = None if real is None else real.bool().to(model.device)
        self.spans = {name: span.to(model.device) for name, span in spans.items()}
        self.alpha, self.top, self.histogram = alpha, top, histogram
        self.layers: list[int] = []
        config = model.base_model.config
        expected = getattr(config, "num_hidden_layers", 1)
        self.rows: defaultdict[str, _Rows] = defaultdict(lambda: _Rows(expected, config.model_type))
        self.model, self.reads_other = config.model_type, inputs.get("encoder_hidden_states") is not None
        self.sequences = len(next(given for given in inputs.values() if isinstance(given, Tensor)))

    def __call__(self, call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if call.is_second_half or (self.reads_other and not _is_causal(call)):
            return
        batch, _, length, _ = call.query.shape
        if batch != self.sequences:
            raise ValueError(
                f"{type(call.module).__name__} of models of type {self.model} attends within windows, which is "
                "not measured; give a model whose layers attend to the whole input"
            )
        call.refuse_other_keys()
        maps = None
        if changes_scores(call):
            maps = shares(call, heads)
        else:
            call.refuse_unread("dropout")
        call = without_bias(call)
        visible = Visibility(call.mask, call.is_causal, call.sliding_window)
        real = torch.ones(batch, length, dtype=torch.bool, device=call.query.device) if self.real is None else self.real
        for name, span in self.spans.items():
            if span.dtype != torch.bool or span.shape != real.shape:
                raise ValueError(f"span {name} must be bool {tuple(real.shape)}, got {span.dtype} {tuple(span.shape)}")
        query, key = call.by_group()
        lam = call.lam
        if lam is not None:
            lam = lam.expand(batch, call.maps // 2, length).unflatten(1, (key.shape[1], -1))
        found = layer_statistics(
            query, key, visible, scale=call.scale, real=real, lam=lam, top=self.top, histogram=self.histogram,
            maps=None if maps is None else maps.view(*query.shape[:-1], -1),
        )  # fmt: skip
        lambdas = () if lam is None else (lam,)
        if not all(bool(part.isfinite().all()) for part in (found.maps.mass, found.maps.entropy, *lambdas)):
            raise NonFiniteError("its attention is NaN or infinite, so it measures nothing")
        self.layers.append(call.layer)
        for name, row in self._rows(found, call.kind.pairing, real, visible):
            self.rows[name].append(row)

    def _rows(
        self, found: LayerStatistics, pairing: Pairing, real: Tensor, visible: Visibility
    ) -> Iterator[tuple[str, Tensor]]:
        """The fields of ``AttentionStatistics`` and, after a point, ``DifferenceStatistics``, for one layer.

        Args:
            real: (B, N) bool, without padding.
        """
        first, seen = real.long().argmax(1), keys_seen(real, real.shape[1], visible)
        most, queries = most_seen(real, seen), found.queries.double()
        received, mass = pairing.by_map(found.maps.received), pairing.by_map(found.maps.mass)
        marked = sinks(received, first, most, alpha=self.alpha)
        nulls = {
            "null_local": 1 / queries.where(queries > 0, torch.nan),
            "null_uniform": uniform_received(real, seen, found.queries, visible),
        }
        yield "received", received
        yield "sinks", marked
        yield "enough_queries", enough_queries(found.queries, most, alpha=self.alpha)
        for name, alike in nulls.items():
            yield name, sinks(alike, first, most, alpha=self.alpha).sum(1) / real.sum(1).clamp(min=1)
        yield "sink_share", _share(mass, marked)
        yield "first_share", _share(mass, torch.nn.functional.one_hot(first, real.shape[1]).bool())
        yield "unspent", (1 - mass.sum(-1)).clamp(min=0)
        yield "entropy", pairing.by_map(found.maps.entropy)
        yield "top_logits", pairing.by_map(found.top_logits)
        if found.logit_histogram is not None and found.logit_powers is not None:
            yield "logit_histogram", pairing.by_map(found.logit_histogram.unsqueeze(0))[0]
            yield "logit_powers", pairing.by_map(found.logit_powers.unsqueeze(0))[0]
        for name, span in self.spans.items():
            yield f"span {name}", _share(mass, span)
        if found.differences is None:
            return
        yield "differences.entropy", found.differences.entropy.flatten(1)
        yield "differences.negative_share", found.differences.negative_share.flatten(1)
        for name, span in self.spans.items():
            yield f"differences.span {name}", _share(found.differences.signed_mass.flatten(1, 2), span)
            yield f"differences.absolute span {name}", _share(found.differences.absolute_mass.flatten(1, 2), span)

    def found(self) -> AttentionStatistics:
        """The statistics of all layers that were seen."""
        every = {name: rows.all() for name, rows in self.rows.items() if rows.count == len(self.layers)}
        fields = (
            "received", "sinks", "enough_queries", "null_local", "null_uniform", "sink_share", "first_share", "unspent",
            "entropy", "top_logits",
        )  # fmt: skip
        differences = None
        if "differences.entropy" in every:
            differences = DifferenceStatistics(
                entropy=every["differences.entropy"],
                negative_share=every["differences.negative_share"],
                span_share={name: every[f"differences.span {name}"] for name in self.spans},
                span_share_absolute={name: every[f"differences.absolute span {name}"] for name in self.spans},
            )
        return AttentionStatistics(
            **{name: every[name] for name in fields},
            span_share={name: every[f"span {name}"] for name in self.spans},
            logit_histogram=every.get("logit_histogram"),
            logit_powers=every.get("logit_powers"),
            layers=self.layers,
            alpha=self.alpha,
            differences=differences,
        )


def _is_causal(call: AttentionCall) -> bool:
    """Whether earlier queries see fewer keys, as in a decoder's attention to its own text."""
    seen = without_bias(call)
    if seen.mask is None or seen.mask.shape[2] == 1:
        return seen.hides_later_keys
    return not torch.equal(seen.mask[:, :, 0], seen.mask[:, :, -1])


def _share(mass: Tensor, keys: Tensor) -> Tensor:
    """Share of the mass (B, heads, N) that lies on keys (B, N) or (B, heads, N)."""
    return (mass * (keys if keys.dim() == 3 else keys.unsqueeze(1))).sum(-1)
