"""Attention sinks of a model on text: by layer and position, by head, by token (2406.15765, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.evals.scoring import TOKENS_AT_ONCE
from antiphase.ops.statistics import null_lines
from antiphase.probing.statistics import AttentionStatistics, attention_statistics

BINS = 256
"""Most columns of the map of positions; longer sequences share them."""
RANKED = 40
"""Tokens in the ranking."""
FEWEST_OCCURRENCES = 5
"""A token seen less often is not ranked."""


def sinks_on_text(
    model: PreTrainedModel,
    input_ids: Tensor,
    words: Callable[[int], str],
    *,
    alpha: float = 5.0,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> dict[str, Any]:
    """Statistics of every layer and map, averaged over sequences.

    Sinks are counted twice: all keys over α / N, and those seen by at least N / α queries, which no single query can
    make a sink. Beside them stand the counts that maps without any sink reach by arithmetic alone.

    Args:
        input_ids: (B, N) without padding.
        words: a token's id as people read it.
        report: called with the sequences done and their number.
    """
    count, length = input_ids.shape
    sums: dict[str, Tensor] = {}
    vocabulary = int(input_ids.max()) + 1
    occurrences = torch.zeros(vocabulary, dtype=torch.int64)  # where enough queries follow for a judgement
    judged = length
    by_token = torch.zeros(vocabulary, dtype=torch.float64)
    layers: list[int] = []
    size = max(1, TOKENS_AT_ONCE // length)
    for start in range(0, count, size):
        ids = input_ids[start : start + size]
        found = attention_statistics(model, alpha=alpha, input_ids=ids)
        layers = found.layers
        sinks = found.sinks & found.enough_queries[:, :, None]
        rate = sinks.double().mean((0, 2))  # (B, N): over layers and maps
        enough = found.enough_queries.all(0)  # (B, N)
        judged = int(enough[0].sum())
        occurrences += torch.bincount(ids[enough], minlength=vocabulary)
        by_token.index_add_(0, ids.flatten(), rate.flatten())
        for name, values in _sums(found, sinks).items():
            sums[name] = sums.get(name, torch.zeros_like(values)) + values
        report(min(start + size, count), count)
    means = {name: values / count for name, values in sums.items()}
    by_layer = {name: values.mean(-1).tolist() for name, values in means.items() if name in _BY_HEAD}
    lines = null_lines(length, alpha=alpha)
    rates = (by_token / occurrences.clamp(min=1)).where(occurrences >= FEWEST_OCCURRENCES, -1.0)
    order = rates.argsort(descending=True)
    stays, before, chance = (float(sums[name]) for name in ("stays", "before", "chance"))
    return {
        "sequences": count,
        "length": length,
        "persistence": stays / before if before else None,
        "persistence_chance": chance / before if before else None,
        "null_local": lines.local,
        "null_uniform": lines.uniform,
        "judged_positions": judged,
        "layers": [
            {"layer": layer, **{name: values[index] for name, values in by_layer.items()}}
            for index, layer in enumerate(layers)
        ],
        "heads": [
            {"layer": layer, "head": head, **{name: float(means[name][index, head]) for name in _BY_HEAD}}
            for index, layer in enumerate(layers)
            for head in range(means["sinks"].shape[1])
        ],
        "positions": {"first": _edges(length), "sink_rate": means["positions"].tolist()},
        "tokens": [
            {
                "token": words(int(token)),
                "occurrences": int(occurrences[token]),
                "sink_rate": float(rates[token]),
            }
            for token in order[:RANKED].tolist()
            if occurrences[token] >= FEWEST_OCCURRENCES
        ],
    }  # fmt: skip


_BY_HEAD = ("sinks", "sinks_enough_queries", "sink_share", "first_share", "entropy", "top_logit")


def _sums(found: AttentionStatistics, sinks: Tensor) -> dict[str, Tensor]:
    """What is added up over sequences: (layers, maps) each, (layers, bins), and single numbers."""
    length = found.sinks.shape[-1]
    bins = torch.bucketize(torch.arange(length), torch.tensor(_edges(length)), right=True) - 1
    positions = torch.zeros(len(sinks), int(bins[-1]) + 1, dtype=torch.float64)
    positions.index_add_(1, bins, sinks.double().mean(2).sum(1))  # (layers, N): mean over maps, sum over sequences
    positions /= torch.bincount(bins)
    stays, before, chance = found.persistence_counts()
    return {
        "sinks": found.sinks.double().mean(-1).sum(1),
        "sinks_enough_queries": sinks.double().mean(-1).sum(1),
        "sink_share": found.sink_share.double().sum(1),
        "first_share": found.first_share.double().sum(1),
        "entropy": found.entropy.double().sum(1),
        "top_logit": found.top_logits[..., 0].double().sum(1),
        "positions": positions,
        **{name: torch.tensor(value, dtype=torch.float64)
           for name, value in (("stays", stays), ("before", before), ("chance", chance))},
    }  # fmt: skip


def _edges(length: int) -> list[int]:
    """First position of each column of the map of positions."""
    columns = min(length, BINS)
    return [column * length // columns for column in range(columns)]
