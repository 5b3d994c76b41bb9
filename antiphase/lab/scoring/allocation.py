"""Attention allocation (2410.05258, section 3.3, table 3): attention of a prompt's last token to each span.

Each span has two numbers. ``signed`` is the sum of the weights that multiply the values; ``share`` is the sum of their
absolute values divided by that of the whole row. The signed sum alone makes an untrained differential map look better
than it is, because two random maps cancel; so both are reported, together with those of the untrained model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.rows import LayerRows, attention_rows
from antiphase.lab.scoring.likelihood import TOKENS_AT_ONCE
from antiphase.lab.text.retrieval import SPANS, RetrievalBatch

NOISE = ("other_needles", "filler")
ALL_LAYERS = "all"
LEAST_NOISE = 0.02
"""Weight on noise, of 1 in a row, below which no ratio to it is formed."""


def allocation(model: PreTrainedModel, batch: RetrievalBatch) -> list[dict[str, Any]]:
    """Table rows: one per layer and map, averaged over heads and sequences, and their mean over layers.

    ``map`` is "softmax", or for differential attention "difference" (the weights that multiply the values), "first" and
    "second". ``answer_to_noise`` is the ratio of the averages.
    """
    sums = AllocationSums()
    for part in batches_of(batch):
        sums.add(attention_rows(model, part.input_ids, part.prompt_end[:, None]), part)
    return sums.rows()


def batches_of(batch: RetrievalBatch) -> Iterator[RetrievalBatch]:
    """Split a batch into parts that fit in memory."""
    size = max(1, TOKENS_AT_ONCE // batch.input_ids.shape[1])
    for start in range(0, len(batch.input_ids), size):
        rows = slice(start, start + size)
        spans = {name: span[rows] for name, span in batch.spans.items()}
        yield RetrievalBatch(batch.input_ids[rows], batch.answer_positions[rows], batch.prompt_end[rows], spans)


class AllocationSums:
    """Sums of ``allocation`` over sequences."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, str], Tensor] = {}
        self._count = 0

    def add(self, layers: Sequence[LayerRows], batch: RetrievalBatch) -> None:
        """Add a batch, given the rows of all layers, whose first query is the last token of the prompt."""
        self._count += len(batch.input_ids)
        spans = torch.stack([batch.spans[name] for name in SPANS], dim=1).double()  # (B, spans, M)
        for found in layers:
            for name, weights in _maps(found).items():
                figures = _figures(weights, spans).sum(0)  # (2, spans), summed over sequences
                key = (found.layer, name)
                self._sums[key] = self._sums.get(key, torch.zeros_like(figures)) + figures

    def rows(self) -> list[dict[str, Any]]:
        """Table rows; see ``allocation``."""
        means: dict[tuple[int | str, str], Tensor] = {key: value / self._count for key, value in self._sums.items()}
        overall: dict[tuple[int | str, str], Tensor] = {}
        for name in dict.fromkeys(name for _, name in means):
            by_layer = [value for (_, other), value in means.items() if other == name]
            overall[ALL_LAYERS, name] = torch.stack(by_layer).mean(0)
        return [_row(layer, name, value) for (layer, name), value in {**means, **overall}.items()]


def _maps(found: LayerRows) -> dict[str, Tensor]:
    """Named weights (B, heads, M) of the first query."""
    if found.lam is None:
        return {"softmax": found.maps[:, :, 0, 0]}
    return {"difference": found.weights()[:, :, 0], "first": found.maps[:, :, 0, 0], "second": found.maps[:, :, 1, 0]}


def _figures(weights: Tensor, spans: Tensor) -> Tensor:
    """Signed sum and share of Σ|A| per span, averaged over heads: (B, 2, spans)."""
    weights = weights.double()
    absolute = weights.abs()
    signed = torch.einsum("bhm,bsm->bhs", weights, spans)
    share = torch.einsum("bhm,bsm->bhs", absolute, spans) / absolute.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.stack([signed.mean(1), share.mean(1)], dim=1)


def _row(layer: int | str, name: str, figures: Tensor) -> dict[str, Any]:
    signed: dict[str, float] = dict(zip(SPANS, figures[0].tolist(), strict=True))
    share: dict[str, float] = dict(zip(SPANS, figures[1].tolist(), strict=True))
    return {
        "layer": layer,
        "map": name,
        "spans": {span: {"signed": signed[span], "share": share[span]} for span in SPANS},
        "answer_to_noise": {"signed": _ratio(signed), "share": _ratio(share)},
    }


def _ratio(spans: dict[str, float]) -> float | None:
    """None where the noise is next to nothing: signed weights can cancel to any small number of either sign."""
    noise = sum(spans[name] for name in NOISE)
    return spans["answer"] / noise if noise > LEAST_NOISE else None


def attention_map(model: PreTrainedModel, input_ids: Tensor, *, queries: slice) -> Tensor:
    """Signed weights of one sequence (1, N) for a range of queries: (layers, heads, P, N), fp32."""
    positions = torch.arange(input_ids.shape[1])[queries].unsqueeze(0)
    layers = attention_rows(model, input_ids, positions)
    return torch.stack([found.weights()[0] for found in layers]).float()
