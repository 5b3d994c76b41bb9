"""Whether subtracted maps cancel their common part: their correlation, the remaining mass, and the sizes of heads.

The common mode is the part that both maps of a head share. If noise is common and the answer is not, subtraction raises
the answer's share. Pairs of softmax maps and the untrained model show how much two maps have in common anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall, Pairing
from antiphase.attention.hooks import observed
from antiphase.attention.rows import LayerRows, attention_rows
from antiphase.base.errors import NonFiniteError
from antiphase.base.randomness import keyed_generator
from antiphase.lab.measures.cancellation import (
    Cancellation,
    CancellationSettings,
    HeadFigures,
    LayerFigures,
    MapFigures,
)
from antiphase.lab.measures.held_out import contents as contents
from antiphase.lab.measures.held_out import prepare as prepare
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.pages.tables import present
from antiphase.lab.scoring.allocation import ALL_LAYERS, NOISE, allocation
from antiphase.lab.scoring.loading import LoadedModel, untrained
from antiphase.lab.text.prepare import PreparedData, check_task
from antiphase.lab.text.retrieval import RetrievalBatch
from antiphase.layers.registry import ACROSS

QUERIES = 16
"""Queries per sequence whose maps are compared, spread over the second half of its prompt."""
PAIRS_AT_ONCE = 1 << 16
"""Number of queries times keys in a batch, over its sequences."""
NEAR_ZERO = 0.01
"""A weight is near zero if it is below this share of its row's largest weight."""
MAPS = ("softmax", "first", "second", "difference")
"""All maps of a model without pairs; or the two maps of a head, and their difference, which multiplies the values."""


def measure(
    loaded: LoadedModel, data: PreparedData, settings: CancellationSettings, parts: Parts = UNSTORED
) -> Cancellation:
    """Measure the model and the same architecture with random weights."""
    task = data.task(**settings.task_sizes())
    check_task(task)
    batch = task.sample(settings.samples, keyed_generator(settings.seed, "cancellation"))
    tell = partial(_later, parts.report, count=2 * settings.samples)
    found = cancellation(loaded.model, batch, report=partial(tell, 0))
    other = untrained(loaded.model, settings.seed)
    base = cancellation(other, batch, trained=False, report=partial(tell, settings.samples))
    return replace(found, heads=found.heads + base.heads, layers=found.layers + base.layers)


def _later(report: Callable[[int, int], None], before: int, done: int, *, count: int) -> None:
    """Report what is done after ``before`` others."""
    report(before + done, count)


def cancellation(
    model: PreTrainedModel,
    batch: RetrievalBatch,
    *,
    trained: bool = True,
    report: Callable[[int], None] = lambda done: None,
) -> Cancellation:
    """Compare the two maps of each head, and their difference.

    In a model without pairs, maps 2i and 2i + 1 are compared as a control and have no difference.

    Args:
        batch: retrieval sequences without padding.
        trained: what the result says of the model.
        report: called with the number of finished sequences.

    Raises:
        ValueError: the model's attention does not use transformers' interface.
        NonFiniteError: attention or a head's output is not finite.
    """
    size = max(1, PAIRS_AT_ONCE // (QUERIES * batch.input_ids.shape[1]))
    layers: list[_Layer] = []
    for start in range(0, len(batch.input_ids), size):
        rows = slice(start, start + size)
        ids, ends = batch.input_ids[rows], batch.prompt_end[rows]
        shares = torch.linspace(0.5, 1.0, QUERIES)
        positions = (ends[:, None] * shares).round().long()  # (B, P)
        outputs = _output_sizes(model, ids)
        for index, found in enumerate(attention_rows(model, ids, positions)):
            if index == len(layers):
                layers.append(_Layer(found.layer))
            layers[index].add(*_pairs(found, model), _visible(found), *outputs[index])
        report(start + len(ids))
    noise = {(row["layer"], row["map"]): row["spans"] for row in allocation(model, batch)}
    heads = [
        HeadFigures(trained, layer.number, head, **figures)
        for layer in layers
        for head, figures in enumerate(layer.heads())
    ]
    by_layer = [_layer_row(layer, noise, trained) for layer in layers]
    count, length = batch.input_ids.shape
    kind = getattr(model.config, "attention_type", None)
    return Cancellation(kind, count, length, heads, [*by_layer, _mean_row(by_layer)])


class _Layer:
    """Sums over the sequences of one layer, (heads,) each, and their counts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, maps: Tensor, lam: Tensor | None, visible: Tensor, output: Tensor, value: Tensor) -> None:
        """Add maps (B, H, 2, P, M) with λ or None, and sizes (B, heads) of outputs and values.

        ``visible``: (1|B, 1, 1|P, M) bool, the keys that each query sees.
        """
        if lam is None:
            self._keep_map("softmax", maps.double().flatten(1, 2), visible)
        if maps.shape[2] == 2:
            first, second = maps.double().unbind(2)
            self._keep("correlation", _correlation(first, second, visible))
            for name, weights in (("first", first), ("second", second)):
                self._keep_map(name, weights, visible)
            if lam is not None:
                scaled = lam.double().unsqueeze(-1) * second
                difference = first - scaled
                self._keep_map("difference", difference, visible)
                left, total = difference.abs().sum(-1), (first + scaled.abs()).sum(-1)
                self._keep("cancelled", 1 - left / total)
                self._keep("negative_share", difference.clamp(max=0).neg().sum(-1) / left.clamp(min=1e-300))
        self._keep("output_rms", output.double().unsqueeze(-1))
        self._keep("output_to_value", (output / value).double().unsqueeze(-1))

    def _keep_map(self, name: str, weights: Tensor, visible: Tensor) -> None:
        sizes = weights.abs()
        shares = sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-300)
        self._keep(f"{name} effective_keys", torch.special.entr(shares).sum(-1).exp())
        small = (sizes < NEAR_ZERO * sizes.amax(-1, keepdim=True)) & visible
        self._keep(f"{name} near_zero", small.sum(-1) / visible.sum(-1))

    def _keep(self, name: str, figures: Tensor) -> None:
        """Add measures (B, heads, queries); NaN does not count."""
        known = figures.isfinite()
        total, count = figures.where(known, 0.0).sum((0, 2)), known.sum((0, 2))
        self.sums[name] = self.sums.get(name, torch.zeros_like(total)) + total
        self.counts[name] = self.counts.get(name, torch.zeros_like(count)) + count

    def mean(self, name: str) -> Tensor | None:
        """Mean (heads,); NaN if there are no values."""
        return self.sums[name] / self.counts[name] if name in self.sums else None

    def heads(self) -> list[dict[str, float | None]]:
        means = {name: self.mean(name) for name in _BY_HEAD}
        return [
            {
                name: None if value is None or head >= len(value) else _number(value[head])
                for name, value in means.items()
            }
            for head in range(max(0 if value is None else len(value) for value in means.values()))
        ]


_BY_HEAD = ("correlation", "cancelled", "negative_share", "output_rms", "output_to_value")


def _layer_row(layer: _Layer, noise: dict[tuple[Any, str], dict[str, Any]], trained: bool) -> LayerFigures:
    maps = {}
    for name in MAPS:
        spans = noise.get((layer.number, name))
        keys, small = (_average(layer.mean(f"{name} {figure}")) for figure in ("effective_keys", "near_zero"))
        if keys is None:
            continue
        shares = () if spans is None else (sum(spans[part]["share"] for part in NOISE), spans["answer"]["share"])
        maps[name] = MapFigures(keys, small, *shares)
    return LayerFigures(trained, layer.number, **{name: _average(layer.mean(name)) for name in _BY_HEAD}, maps=maps)


def _mean_row(rows: Sequence[LayerFigures]) -> LayerFigures:
    """The mean over layers."""

    def means(rows: Sequence[Any], names: Iterable[str]) -> dict[str, float | None]:
        known = {name: present(getattr(row, name) for row in rows) for name in names}
        return {name: sum(values) / len(values) if values else None for name, values in known.items()}

    maps = {
        name: MapFigures(**means([row.maps[name] for row in rows], vars(own))) for name, own in rows[0].maps.items()
    }
    return LayerFigures(rows[0].trained, ALL_LAYERS, **means(rows, _BY_HEAD), maps=maps)


def _average(means: Tensor | None) -> float | None:
    return None if means is None else _number(means[means.isfinite()].mean())


def _number(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None


def _pairs(found: LayerRows, model: PreTrainedModel) -> tuple[Tensor, Tensor | None]:
    """Maps (B, heads, 2, P, M) and λ; with an odd number of maps there are no pairs, and each head has one map."""
    maps = found.maps
    if maps.shape[2] == 2:
        return maps, found.lam
    single = maps[:, :, 0]
    if single.shape[1] % 2:
        return maps, None
    if getattr(model.config, "attention_type", None) == ACROSS:
        return torch.stack(single.chunk(2, dim=1), dim=2), None
    return single.unflatten(1, (-1, 2)), None


def _visible(found: LayerRows) -> Tensor:
    """The keys that each query sees, (1|B, 1, 1|P, M) bool.

    Raises:
        ValueError: they differ between maps.
    """
    if found.visible is None:
        return torch.ones(1, 1, 1, found.maps.shape[-1], dtype=torch.bool)
    if found.visible.shape[1] > 1:
        raise ValueError(f"layer {found.layer} has a separate attention mask per head, which is not supported")
    return found.visible


def _correlation(first: Tensor, second: Tensor, visible: Tensor) -> Tensor:
    """Pearson correlation over the keys that each query sees: (B, H, P); NaN if a map is uniform over them."""
    count = visible.sum(-1)
    centred = [(weights - weights.sum(-1, keepdim=True) / count.unsqueeze(-1)) * visible for weights in (first, second)]
    sizes = [part.square().sum(-1).sqrt() for part in centred]
    product = (centred[0] * centred[1]).sum(-1)
    known = (sizes[0] > 1e-6) & (sizes[1] > 1e-6)
    return (product / (sizes[0] * sizes[1])).where(known, torch.nan)


@torch.no_grad()
def _output_sizes(model: PreTrainedModel, input_ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each layer, the root mean squares (B, heads) of the heads' outputs and of their values."""
    found: list[tuple[Tensor, Tensor]] = []
    first_half: list[Tensor] = []  # heads and values of the first call, if a layer calls once per half of the values

    def observe(call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if call.kind.pairing is not Pairing.HALVES:
            found.append(_sizes(heads, call.values))
        elif not call.is_second_half:
            first_half[:] = [heads, call.values]
        else:
            whole, values = (torch.cat(both, dim=-1) for both in zip(first_half, (heads, call.values), strict=True))
            first, second = whole.chunk(2, dim=2)
            assert call.lam is not None
            # the value heads occur twice, once for each map
            found.append(_sizes(first - call.lam.view(()) * second, values.chunk(2, dim=1)[0]))

    with observed(model, observe):
        model.base_model(input_ids=input_ids.to(model.device), use_cache=False)
    return found


def _sizes(output: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean squares (B, heads) of heads' outputs (B, N, heads, dv), and of their value heads (B, Hkv, M, dv).

    Raises:
        NonFiniteError: an output is not finite.
    """
    sizes = values.float().square().mean((2, 3)).sqrt()  # (B, Hkv)
    own = output.float().square().mean((1, 3)).sqrt()
    if not bool(own.isfinite().all()):
        raise NonFiniteError("what its heads give is NaN or infinite, so it measures nothing")
    return own.cpu(), sizes.repeat_interleave(own.shape[1] // sizes.shape[1], dim=1).cpu()
