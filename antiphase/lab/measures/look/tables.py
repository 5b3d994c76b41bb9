"""Reads records of ``antiphase look``: sequences, masks and maps of each layer, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.look import KEYS, LARGEST, QUERIES, Look, StoredMaps, StoredMask, Token
from antiphase.lab.measures.look.map_codes import decode, sums_to_one
from antiphase.lab.pages.tables import Column, Table

SINK = 5.0
"""A key is a sink of a head if it receives more than this / M of the attention of the queries that see it, on average,
and at least N / this see it, of N queries and M keys.
"""
MOST_SINKS = 3
"""Tokens that are named as the sinks of a layer."""


@dataclass(frozen=True)
class LayerMaps:
    """One entry of a record's ``maps``: H heads of S maps, N queries, M keys.

    Numbers are decoded anew at each access, because those of all layers may not fit in memory.
    """

    layer: int
    queries: str
    """Name of the sequence of queries."""
    keys: str
    mask: int
    """Index of its mask."""
    visible: numpy.ndarray
    """(N, M) bool."""
    codes: numpy.ndarray
    """(H, S, N, M) uint8, codes from ``map_codes.encode``."""
    scales: numpy.ndarray
    """(H, S, N) fp32."""
    lam: numpy.ndarray | None
    """(H, N) fp32 if S is 2."""
    between: str = ""
    """``target → source``: the sequences, if the record has maps of several kinds or between two texts; else empty."""

    @property
    def name(self) -> str:
        """The layer's number, with its sequences if the record has several."""
        return f"{self.layer} ({self.between})" if self.between else str(self.layer)

    @property
    def is_span(self) -> bool:
        """Whether these are some of a text's queries and keys."""
        return (self.queries, self.keys) == (QUERIES, KEYS)

    @property
    def maps(self) -> numpy.ndarray:
        """(H, S, N, M) fp32."""
        return decode(self.codes, self.scales)

    @property
    def weights(self) -> numpy.ndarray:
        """The weights that multiply the values, (H, N, M) fp32, signed if maps are subtracted."""
        if self.lam is None:
            return numpy.asarray(self.maps[:, 0])
        return numpy.asarray(self.maps[:, 0] - self.lam[..., None] * self.maps[:, 1])

    @property
    def lost(self) -> float | None:
        """The mean share of a map's whole rows that is on no key, as with a learned sink; None if all sum to one."""
        if self.is_span or self.queries == LARGEST:
            return None
        seen = self.scales > 0  # a query that sees nothing has none
        if bool(sums_to_one(self.codes, self.scales)[seen].all()):
            return None
        return float(1 - self.maps.sum(-1)[seen].mean())

    @property
    def adds(self) -> bool:
        """Whether λ is below 0 for a head and query, so that the second map is added."""
        return self.lam is not None and bool((self.lam < 0).any())

    @property
    def shares(self) -> numpy.ndarray:
        """\\|A\\| / Σ\\|A\\| of each query, (H, N, M); zeros if a query sees nothing."""
        size = numpy.abs(self.weights)
        return numpy.asarray(size / numpy.maximum(size.sum(-1, keepdims=True), 1e-30))


def is_look(record: Record) -> bool:
    """Whether the record has attention maps."""
    return record.kind == "look" and bool(record.values.get("maps"))


def layers_of(record: Record) -> list[LayerMaps]:
    """Every layer's maps, in order; empty for other records.

    Raises:
        InputError: arrays are missing or do not match the record.
    """
    look = Look.read(record)
    if look is None:
        return []
    found = []
    kinds = {(entry.queries, entry.keys) for entry in look.maps}
    for entry in look.maps:
        name, mask = entry.arrays, look.masks[entry.mask].array
        needed = [f"{name}.codes", f"{name}.scales", mask] + [f"{name}.lambda"] * (entry.maps_per_head == 2)
        missing = [key for key in needed if key not in record.arrays]
        if missing:
            raise InputError(f"the record lacks the array {missing[0]}: its .safetensors file must lie beside it")
        layer = LayerMaps(
            entry.layer, entry.queries, entry.keys, entry.mask, record.arrays[mask].astype(bool),
            record.arrays[f"{name}.codes"], record.arrays[f"{name}.scales"], record.arrays.get(f"{name}.lambda"),
            _between(entry, several=len(kinds) > 1),
        )  # fmt: skip
        heads, each = entry.heads, entry.maps_per_head
        queries, keys = (len(look.sequences[side].tokens) for side in (layer.queries, layer.keys))
        shapes = {
            "codes": (layer.codes, (heads, each, queries, keys)),
            "scales": (layer.scales, (heads, each, queries)),
            "lambda": (layer.lam, (heads, queries)),
        }
        for part, (array, shape) in shapes.items():
            if array is not None and array.shape != shape:
                raise InputError(f"the record's array {name}.{part} has shape {array.shape}, expected {shape}")
        found.append(layer)
    return found


def with_head(record: Record, head: str) -> Record:
    """The record with another chosen head, ``LAYER.HEAD``; its pages and figures show that one large.

    Raises:
        InputError: it has no such head.
    """
    chosen = replace(record, values={**record.values, "chosen": head})
    if not is_look(record) or chosen_head(chosen) is None:
        raise InputError(
            " is no LAYER.HEAD of a record of antiphase look; give one such as 0.1", field="head", path=head
        )
    return chosen


def chosen_head(record: Record) -> tuple[LayerMaps, int] | None:
    """The chosen layer and head; otherwise those with the largest share of Σ\\|A\\| on tokens other than the first and
    the query's own.

    For an encoder–decoder, it is a head of cross-attention. A differential head that subtracts goes before one whose λ
    is below 0. None if there is no such head.
    """
    best: tuple[tuple[bool, float], LayerMaps, int] | None = None
    layers = layers_of(record)
    if layers and (chosen := Look.of(record).chosen) is not None:
        named = {f"{layer.name}.{head}": (layer, head) for layer in layers for head in range(len(layer.codes))}
        return named.get(chosen)
    layers = [layer for layer in layers if layer.queries != LARGEST]
    aligned = [layer for layer in layers if layer.queries != layer.keys]
    for layer in aligned or layers:
        elsewhere = layer.shares.copy()
        elsewhere[..., 0] = 0
        if layer.queries == layer.keys:
            places = numpy.arange(elsewhere.shape[1])
            elsewhere[:, places, places] = 0
        for head, share in enumerate((elsewhere**2).sum((-1, -2))):  # squared, to prefer concentrated weights
            score = layer.lam is None or bool(layer.lam[head].mean() >= 0), float(share)
            if best is None or score > best[0]:
                best = score, layer, head
    return None if best is None else best[1:]


def _between(entry: StoredMaps, *, several: bool) -> str:
    if entry.queries != entry.keys:
        return f"{entry.queries} → {entry.keys}"
    return entry.queries if several else ""


def used_in(layers: Sequence[LayerMaps]) -> str:
    """Where a mask is used: for example ``layers 0, 1``, or between which sequences."""
    kinds = dict.fromkeys(layer.between for layer in layers if layer.between)
    if kinds:
        return ", ".join(kinds)
    numbers = [layer.layer for layer in layers]
    return f"layer{'s' if len(numbers) > 1 else ''} {listed(numbers[:6])}{', …' if len(numbers) > 6 else ''}"


def listed(numbers: Sequence[int]) -> str:
    """``0, 2, 3``."""
    return ", ".join(map(str, numbers))


def mask_words(look: Look, mask: StoredMask) -> str:
    """For example ``causal, window 4``."""
    words = {"other": "of its own kind", "part": "part of a mask"}.get(mask.kind, mask.kind)
    unit = " segments" if look.segment else ""
    return words if mask.window is None else f"{words}, window {mask.window}{unit}"


def remarks(record: Record) -> list[str]:
    """Sentences on what the pictures do not show or what a reader would not expect of them."""
    layers, found = layers_of(record), []
    if layers and (without := Look.of(record).without_attention):
        several = len(without) > 1
        found.append(f"Layer{'s' * several} {listed(without)} {'have' if several else 'has'} no attention.")
    look = Look.read(record)
    if look is not None and look.segment is not None:
        found.append(
            f"A row and a column are {look.segment} tokens: the sum over the keys, mean over the queries; under "
            f"“{LARGEST}”, the largest absolute weight among them. “The first token” is the first segment."
        )
    if any(layer.is_span for layer in layers):
        found.append(
            "A part of a text: its queries and its keys are counted from 0, “the first token” is the first of these "
            "keys, and a query's weights on other keys are not in the pictures."
        )
    lost = {index: share for index, layer in enumerate(layers) if (share := layer.lost) is not None}
    if lost:
        mean = sum(lost.values()) / len(lost)
        found.append(
            f"In {used_in([layers[index] for index in lost])} a query's weights do not sum to one: on average "
            f"{100 * mean:.0f} % of its attention is on no token, as with a learned sink in the softmax; it is the "
            "column at the right of a head's large map."
        )
    if adding := [layer for layer in layers if layer.adds]:
        numbers = list(dict.fromkeys(layer.layer for layer in adding))
        place = f"layer{'s' * (len(numbers) > 1)} {listed(numbers)}"
        found.append(f"In {place} λ is below 0 in places, where the second map is added, not subtracted.")
    return found


def sinks_of(layer: LayerMaps) -> numpy.ndarray:
    """(H, M) bool: the keys that are sinks of each head, the first one included."""
    seen = layer.visible.sum(0)
    received = layer.shares.sum(1) / numpy.maximum(seen, 1)
    return (received > SINK / len(seen)) & (seen * SINK >= len(layer.visible))


def _named(sinks: numpy.ndarray, tokens: Sequence[Token]) -> str | None:
    """The tokens that are sinks of most heads, with the numbers of these: ``'When' (9), ' the' (6)``; or None."""
    counts = sinks.sum(0)
    first = [key for key in numpy.argsort(-counts, kind="stable")[:MOST_SINKS] if counts[key]]
    return ", ".join(f"{tokens[key].text!r} ({counts[key]})" for key in first) or None


def layer_table(record: Record) -> Table | None:
    """Statistics of each layer on this text, means over heads and queries."""
    rows = []
    layers = [layer for layer in layers_of(record) if layer.queries != LARGEST]
    for layer in layers:
        look = Look.of(record)
        tokens = look.segment or 1
        share, weights = layer.shares, layer.weights
        row = numpy.arange(share.shape[1])[:, None] + share.shape[2] - share.shape[1]
        distance = numpy.abs(row - numpy.arange(share.shape[2]))
        entropy = -(share * numpy.log(numpy.maximum(share, 1e-30))).sum(-1)
        sinks = sinks_of(layer)
        is_exact = tokens == 1
        negative = (share * (weights < 0)).sum(-1).mean() if layer.lam is not None else None
        rows.append(
            [
                layer.name if layer.between else layer.layer, len(weights),
                mask_words(look, look.masks[layer.mask]),
                float(share[..., 0].mean()),
                float(entropy.mean()),
                float((share * distance).sum(-1).mean()) * tokens if layer.queries == layer.keys else None,
                None if layer.lam is None else float(layer.lam.mean()), None if negative is None else float(negative),
                layer.lost, float((share * sinks[:, None])[..., 1:].sum(-1).mean()) if is_exact else None,
                _named(sinks, look.sequences[layer.keys].tokens) if is_exact else None,
            ]
        )  # fmt: skip
    columns = [
        Column("Layer", "integer"), Column("Heads", "integer"), Column("Mask"), Column("On the first token", "percent"),
        Column("Entropy, nats", "number"), Column("Distance, tokens", "number"), Column("λ", "number"),
        Column("Negative", "percent"), Column("On no token", "percent"), Column("On other sinks", "percent"),
        Column("Sinks (heads)"),
    ]  # fmt: skip
    if not rows:
        return None
    return Table(
        title="Attention by layer",
        columns=columns,
        rows=rows,
        note=" ".join(
            [
                "Of |A| / Σ|A|, A what multiplies the values: means over heads and queries. A token is a sink of a "
                f"head that gives it more than {SINK:.0f} / M of its attention, M the number of tokens.",
                *remarks(record),
            ]
        ),
    ).without_empty_columns()


def piece_counts(tokens: Sequence[Token]) -> tuple[int, int | None]:
    """Number of pieces, and of words if the tokenizer gave them; special tokens count as neither."""
    words = {token.word for token in tokens if token.word is not None}
    if not words:
        return len(tokens), None
    return sum(token.word is not None for token in tokens), len(words)
