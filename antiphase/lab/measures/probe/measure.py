"""Statistics of every layer and map on text, and which tokens are sinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.hooks import is_encoder_decoder
from antiphase.attention.statistics import UNSPENT, AttentionStatistics, attention_statistics
from antiphase.base.errors import InputError, named
from antiphase.lab.measures.held_out import check_length, check_words, tokens_of
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.measures.probe import ByPosition, Figures, Probe, ProbedMap, ProbeSettings, TokenSinks
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.likelihood import TOKENS_AT_ONCE
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.text.corpora import fingerprint
from antiphase.lab.text.packing import pack
from antiphase.lab.text.tokenization import opening_of_text
from antiphase.models.sources.tokenizers import check_rows

BINS = 256
"""Largest number of columns in the map of positions; in longer sequences, columns contain several positions."""
RANKED_TOKENS = 40
"""Number of tokens in the ranking."""
FEWEST_OCCURRENCES = 5
"""Tokens with fewer occurrences are not ranked."""


def contents(settings: ProbeSettings) -> dict[str, Any]:
    """Digest of the text."""
    return {"what --data names": fingerprint(settings.paths, settings.text_field)}


def prepare(loaded: LoadedModel, settings: ProbeSettings, output: Path, say: Callable[[str], None]) -> Tensor:
    """Token ids (B, N), spread evenly over the text, after the token that opens a text in the model's tokenizer; those
    of an encoder are within the tokens [CLS] and [SEP].

    Raises:
        InputError: the text or the length cannot be used.
    """
    check_length(settings.length, context_length(loaded.model), settings.name)
    check_words(loaded)
    check_rows(loaded.tokenizer, reader_of(loaded.model).get_input_embeddings(), named("model", settings.name))
    say("packing the text into tokens")
    first, last = loaded.tokenizer.cls_token_id, loaded.tokenizer.sep_token_id
    is_encoder = first is not None and last is not None
    before, after = ((first,), (last,)) if is_encoder else (opening_of_text(loaded.tokenizer), ())
    if settings.length <= len(before) + len(after):
        tokens = "[CLS] and [SEP]" if is_encoder else "the token that opens a text"
        raise InputError(f"--length {settings.length} has no room beside {tokens}; raise it")
    packed = pack(
        list(settings.paths), loaded.tokenizer, sequence_length=settings.length - len(before) - len(after),
        text_field=settings.text_field, cache=tokens_of(output),
    )  # fmt: skip
    count = min(settings.samples, len(packed))
    blocks = torch.stack([packed.block(index * len(packed) // count) for index in range(count)])
    opening, ending = (torch.tensor(ids, dtype=torch.int64).expand(count, -1) for ids in (before, after))
    return torch.cat([opening, blocks, ending], dim=1)


def measure(loaded: LoadedModel, ids: Tensor, settings: ProbeSettings, parts: Parts = UNSTORED) -> Probe:
    """Measure the sequences of the text."""
    tokenizer = loaded.tokenizer
    return sinks_on_text(
        loaded.model, ids, lambda token: str(tokenizer.decode([token])), alpha=settings.alpha, report=parts.report
    )


def sinks_on_text(
    model: PreTrainedModel,
    input_ids: Tensor,
    words: Callable[[int], str],
    *,
    alpha: float = 5.0,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Probe:
    """Statistics of every layer and map, averaged over sequences; those of an encoder–decoder's encoder.

    Sinks are counted in two ways: all keys above α / N, and those seen by at least N / α queries, so that no single
    query can make them a sink. The counts for maps without real sinks are given for comparison.

    Args:
        input_ids: (B, N) without padding.
        words: converts a token id to readable text.
        report: called with the number of finished sequences and the total.
    """
    reader = reader_of(model)
    count, length = input_ids.shape
    sums: dict[str, Tensor] = {}
    vocabulary = int(input_ids.max()) + 1
    # Tokens are counted where enough queries of every layer see them; layers with a sliding window judge more positions
    occurrences = torch.zeros(vocabulary, dtype=torch.int64)
    judged = length
    by_token = torch.zeros(vocabulary, dtype=torch.float64)
    layers: list[int] = []
    size = max(1, TOKENS_AT_ONCE // length)
    for start in range(0, count, size):
        ids = input_ids[start : start + size]
        found = attention_statistics(reader, alpha=alpha, input_ids=ids)
        layers = found.layers
        sinks = found.sinks & found.enough_queries[:, :, None]
        rate = sinks.double().mean((0, 2))  # (B, N): over layers and maps
        enough = found.enough_queries.all(0)  # (B, N)
        judged = int(enough[0].sum())
        occurrences += torch.bincount(ids[enough], minlength=vocabulary)
        by_token.index_add_(0, ids[enough], rate[enough])
        for name, values in _sums(found, sinks).items():
            sums[name] = sums.get(name, torch.zeros_like(values)) + values
        report(min(start + size, count), count)
    means = {name: values / count for name, values in sums.items()}
    if float(means["unspent"].max()) <= UNSPENT:
        del means["unspent"]
    by_layer = {name: values.mean(-1).tolist() for name, values in means.items() if name in _BY_HEAD}
    rates = (by_token / occurrences.clamp(min=1)).where(occurrences >= FEWEST_OCCURRENCES, -1.0)
    order = rates.argsort(descending=True)
    stays, before, chance = (float(sums[name]) for name in ("stays", "before", "chance"))
    return Probe(
        sequences=count,
        length=length,
        persistence=stays / before if before else None,
        persistence_chance=chance / before if before else None,
        null_local=float(means["null_local"].mean()),
        null_uniform=float(means["null_uniform"].mean()),
        judged_positions=judged,
        layers=[
            Figures(layer=layer, **{name: values[index] for name, values in by_layer.items()})
            for index, layer in enumerate(layers)
        ],
        heads=[
            ProbedMap(layer=layer, head=head, **{name: float(means[name][index, head]) for name in by_layer})
            for index, layer in enumerate(layers)
            for head in range(means["sinks"].shape[1])
        ],
        positions=ByPosition(_edges(length), means["positions"].tolist()),
        tokens=[
            TokenSinks(words(token), int(occurrences[token]), float(rates[token]))
            for token in order[:RANKED_TOKENS].tolist()
            if occurrences[token] >= FEWEST_OCCURRENCES
        ],
        part=None if reader is model else "encoder",
    )


def reader_of(model: PreTrainedModel) -> PreTrainedModel:
    """What reads a text: the encoder of an encoder–decoder, or the model."""
    return model.get_encoder() if is_encoder_decoder(model) else model


_BY_HEAD = ("sinks", "sinks_enough_queries", "sink_share", "first_share", "entropy", "top_logit", "unspent")


def _sums(found: AttentionStatistics, sinks: Tensor) -> dict[str, Tensor]:
    """The quantities that are summed over sequences: (layers, maps) each, (layers, bins), and single numbers."""
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
        "unspent": found.unspent.double().sum(1),
        "null_local": found.null_local.sum(1),
        "null_uniform": found.null_uniform.sum(1),
        "positions": positions,
        "stays": torch.tensor(stays, dtype=torch.float64),
        "before": torch.tensor(before, dtype=torch.float64),
        "chance": torch.tensor(chance, dtype=torch.float64),
    }  # fmt: skip


def _edges(length: int) -> list[int]:
    """First position of each column of the map of positions."""
    columns = min(length, BINS)
    return [column * length // columns for column in range(columns)]
