"""Statistics of attention maps, computed block by block: memory is linear in length, and no map is ever stored.

Legend as in ``blocks``: B batch, G key groups, R query heads per group, S maps per head, N queries, M keys; and T named
spans of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.blocks import BlockLayout, QueryBlock, WorkItem, view_as
from antiphase.ops.shapes import statistics_dtype

MANTISSA_BITS_CUT = 17
BINS = 1 << (31 - MANTISSA_BITS_CUT)
"""Number of bins in a histogram of magnitudes."""
PAIRS_AT_ONCE = 1 << 22
"""Number of query-key pairs whose visibility is computed in one step."""


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees. The last query is aligned with the last key."""

    mask: Tensor | None = None
    """Boolean (1|B, 1, 1|N, M), True = may attend."""
    is_causal: bool = True
    sliding_window: int | None = None
    """Query i sees key j if 0 <= i - j < w; implies causality."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of the maps of one layer, over real queries only; padding does not count."""

    received: Tensor
    """(B, G, R, S, M): mean weight that a key gets from the queries that see it; NaN if none does."""
    mass: Tensor
    """(B, G, R, S, M): sum of a key's weights over the queries, divided by the number of queries."""
    entropy: Tensor
    """(B, G, R, S): entropy of a query's weights in nats, mean over queries."""


@dataclass(frozen=True)
class Differences:
    """Statistics of signed maps A1 - λ A2, one per head."""

    signed_mass: Tensor
    """(B, G, R, M): sum of a key's signed weights over the queries, divided by the number of queries."""
    absolute_mass: Tensor
    """(B, G, R, M): the same of |A| / Σ|A|; the signed mass alone makes untrained maps look better than they are."""
    entropy: Tensor
    """(B, G, R): entropy of |A| / Σ|A| in nats, mean over queries."""
    negative_share: Tensor
    """(B, G, R): share of negative weights in Σ|A|, mean over queries."""


@dataclass(frozen=True)
class LayerStatistics:
    """The result of ``layer_statistics``."""

    maps: Statistics
    differences: Differences | None
    """Present if λ was given."""
    queries: Tensor
    """(B, M) int64: number of real queries that see each key."""
    top_logits: Tensor
    """(B, G, R, S, k): the largest |q·k| · scale over visible pairs, descending; 0 if there are fewer pairs."""
    logit_histogram: Tensor | None
    """(G, R, S, bins) int64, if requested: ``size_histogram`` of |q·k| · scale over all sequences."""
    logit_powers: Tensor | None
    """(G, R, S, 5) fp64, with the histogram: ``power_sums`` of the same q·k · scale, with their signs."""


def layer_statistics(
    query: Tensor,
    key: Tensor,
    visibility: Visibility,
    *,
    scale: float,
    real: Tensor | None = None,
    lam: Tensor | None = None,
    top: int = 0,
    histogram: bool = False,
    maps: Tensor | None = None,
) -> LayerStatistics:
    """Statistics of every map of a layer.

    Args:
        query: (B, G, R, S, N, d).
        key: (B, G, K, M, d), where K = S, or 1 if all maps share a key.
        real: (B, N) bool, the queries that count; None means all.
        lam: λ of differential heads (S = 2), broadcastable to (B, G, R, N).
        top: how many of the largest logits to keep.
        histogram: whether to count logits by magnitude and sum their powers.
        maps: (B, G, R, S, N, M), weights of a layer that does more to its scores than to scale and hide; None means
            the softmax of the scores.

    Statistics are fp32 (fp64 for fp64 input).
    """
    batch, groups, repeats, streams, length, _ = query.shape
    keys = key.shape[3]
    dtype = statistics_dtype(query.dtype)
    layout = BlockLayout(
        query, key, None, visibility.mask, is_causal=visibility.is_causal,
        sliding_window=visibility.sliding_window or 0, scale=scale, products=dtype,
    )  # fmt: skip
    real = query.new_ones(batch, length, dtype=torch.bool) if real is None else real
    queries = visible_queries(real, keys, visibility)
    sums = query.new_zeros(batch, groups, repeats, streams, keys, dtype=dtype)
    entropy = sums.new_zeros(batch, groups, repeats, streams)
    top_logits = sums.new_zeros(batch, groups, repeats, streams, top)
    counts = sums.new_zeros(groups, repeats, streams, BINS, dtype=torch.int64) if histogram else None
    powers = sums.new_zeros(groups, repeats, streams, 5, dtype=torch.float64) if histogram else None
    signs = None if lam is None else _Signs(layout, lam.to(dtype).expand(batch, groups, repeats, length))
    for item in layout.work_items():
        here = item.batches, item.groups
        counted = real[item.batches].to(dtype)  # (b, N)
        for block in layout.blocks:
            if block.sees_no_key:
                continue
            weight = item.per_query(counted, block)  # (U R, 1, n)
            by_map = []
            for index in range(streams):
                scores = item.scores(index, block)
                if counts is not None and powers is not None:
                    _count(counts[item.groups, :, index], powers[item.groups, :, index], scores, weight)
                if top:
                    keep_largest(top_logits[here][:, :, :, index], scores, weight)
                if maps is None:
                    weights = item.softmax(scores)
                else:
                    weights = maps[here][:, :, :, index, block.queries, block.keys].reshape(scores.shape)
                by_head = weights.view(-1, weight.shape[-1], weights.shape[-1])  # (U R, n, m)
                _add(sums[here][:, :, :, index, block.keys], torch.bmm(weight, by_head))
                _add(entropy[here][:, :, :, index], torch.bmm(weight, _entropy(layout, by_head)))
                by_map.append(by_head)
            if signs is not None:
                signs.add(item, block, by_map, weight)
    count = real.sum(1).clamp(min=1)
    return LayerStatistics(
        maps=Statistics(
            received=sums / _keys_last(queries.to(dtype).where(queries > 0, torch.nan)),
            mass=sums / count.view(-1, 1, 1, 1, 1),
            entropy=entropy / count.view(-1, 1, 1, 1),
        ),
        differences=None if signs is None else signs.found(count),
        queries=queries,
        top_logits=top_logits,
        logit_histogram=counts,
        logit_powers=powers,
    )


class _Signs:
    """Sums over the signed maps A1 - λ A2."""

    def __init__(self, layout: BlockLayout, lam: Tensor) -> None:
        self.layout, self.lam = layout, lam  # (B, G, R, N)
        shape = lam.shape[:3]
        self.signed = lam.new_zeros(*shape, layout.keys_length)
        self.absolute = torch.zeros_like(self.signed)
        self.entropy = lam.new_zeros(shape)
        self.negative = lam.new_zeros(shape)

    def add(self, item: WorkItem, block: QueryBlock, maps: list[Tensor], weight: Tensor) -> None:
        """Add the block's rows: two maps (U R, n, m), their queries weighted by (U R, 1, n)."""
        here = item.batches, item.groups
        lam = self.lam[here][..., block.queries].reshape(len(weight), -1, 1)
        first, second = maps
        difference = first.addcmul_(lam, second, value=-1)
        _add(self.signed[here][..., block.keys], torch.bmm(weight, difference))
        signed_total = difference.sum(-1, keepdim=True)  # (U R, n, 1)
        shares = difference.abs_()
        total = shares.sum(-1, keepdim=True)
        shares.div_(total.where(total > 0, 1.0))
        _add(self.absolute[here][..., block.keys], torch.bmm(weight, shares))
        _add(self.entropy[here], torch.bmm(weight, _entropy(self.layout, shares)))
        negative = 0.5 * (total - signed_total) / total.where(total > 0, 1.0)  # 0 for rows without weights
        _add(self.negative[here], torch.bmm(weight, negative))

    def found(self, count: Tensor) -> Differences:
        by_head = count.view(-1, 1, 1)
        return Differences(
            signed_mass=self.signed / by_head.unsqueeze(-1),
            absolute_mass=self.absolute / by_head.unsqueeze(-1),
            entropy=self.entropy / by_head,
            negative_share=self.negative / by_head,
        )


def _entropy(layout: BlockLayout, weights: Tensor) -> Tensor:
    """Entropy of each row of weights (U R, n, m): (U R, n, 1)."""
    buffer = view_as(layout.row_buffer("entropy", layout.widest), *weights.shape)
    return torch.special.entr(weights, out=buffer).sum(-1, keepdim=True)


def _add(total: Tensor, found: Tensor) -> None:
    """Add found (U R, 1, m) to total (b, g, R, m), or (U R, 1, 1) to (b, g, R)."""
    total += found.view(total.shape)


def _keys_last(tensor: Tensor) -> Tensor:
    """(B, M) as (B, 1, 1, 1, M)."""
    return tensor[:, None, None, None]


def keep_largest(kept: Tensor, scores: Tensor, weight: Tensor) -> None:
    """Merge the largest magnitudes of scores (U, R n, m; -inf if hidden) into kept (b, g, R, k), descending.

    Only rows with an entry above the smallest one kept are searched; ``weight`` (U R, 1, n) is 0 for rows that do not
    count.
    """
    sizes = scores.nan_to_num(neginf=0.0).abs_().view(len(weight), -1, scores.shape[-1])  # (U R, n, m)
    largest = sizes.amax(-1) * weight[:, 0]  # (U R, n)
    heads = [head for row in kept for group in row for head in group]  # (k,) each, views of ``kept``
    for index, head in enumerate(heads):
        rows = largest[index] > head[-1]
        if bool(rows.any()):
            candidates = torch.cat([head, sizes[index, rows].flatten()])
            head.copy_(candidates.topk(len(head)).values)


def _count(counts: Tensor, powers: Tensor, scores: Tensor, weight: Tensor) -> None:
    """Add scores (U R, n, m; -inf if hidden) of rows that count (U R, 1, n) to a histogram and power sums."""
    groups, repeats = counts.shape[:2]
    by_head = scores.view(-1, groups, repeats, weight.shape[-1], scores.shape[-1])  # (b, g, R, n, m)
    counted = (weight > 0).view(-1, groups, repeats, weight.shape[-1], 1)
    for group in range(groups):
        for repeat in range(repeats):
            every = by_head[:, group, repeat]
            seen = every[counted[:, group, repeat] & (every > float("-inf"))]
            counts[group, repeat] += size_histogram(seen.abs())
            powers[group, repeat] += power_sums(seen)


def power_sums(values: Tensor) -> Tensor:
    """Number of values and the sums of their first four powers: (5,) fp64."""
    values = values.double().flatten()
    squares = values.square()
    sums = [values.sum(), squares.sum(), squares @ values, squares @ squares]
    return torch.stack([sums[0].new_tensor(float(len(values))), *sums])


def kurtosis(powers: Tensor) -> float:
    """E[(x - μ)⁴] / E[(x - μ)²]² of the values behind ``power_sums`` (5,): 3 if normal, NaN if all are equal."""
    count, *sums = powers.tolist()
    if not count:
        return float("nan")
    mean, second, third, fourth = (total / count for total in sums)
    variance = second - mean**2
    if not variance > 1e-14 * second:  # only the rounding error of the sums
        return float("nan")
    return float((fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4) / variance**2)


def size_histogram(sizes: Tensor) -> Tensor:
    """Histogram of numbers ≥ 0 over 2¹⁴ bins, 64 per power of two: (bins,) int64.

    The bin of a number is given by its exponent and the first six bits of its mantissa in fp32.
    """
    places = sizes.float().contiguous().view(torch.int32) >> MANTISSA_BITS_CUT
    return torch.bincount(places.flatten(), minlength=BINS)


def histogram_median(counts: Tensor) -> float:
    """The median of the numbers behind ``size_histogram`` (bins,), within 1 %: the middle of its bin; NaN if empty."""
    total = int(counts.sum())
    if total == 0:
        return float("nan")
    place = int(torch.searchsorted(counts.cumsum(0), torch.tensor((total + 1) // 2, device=counts.device)))
    edges = torch.tensor([place, place + 1], dtype=torch.int32) << MANTISSA_BITS_CUT
    return float(edges.view(torch.float32).double().mean())


def visible_queries(real: Tensor, keys: int, visibility: Visibility) -> Tensor:
    """Number of real queries (B, N) that see each key: (B, M) int64. If causal, N - j for the 0-based key j of N."""
    return _over_queries(real.long(), keys, visibility)


def uniform_received(real: Tensor, seen: Tensor, queries: Tensor, visibility: Visibility) -> Tensor:
    """``Statistics.received`` of a map whose queries attend to all keys that they see alike: (B, M) fp64.

    It is rounded down by more than the sums' errors, so that what equals a threshold is not above it.

    Args:
        real: (B, N) bool, the queries that count.
        seen: (1|B, N), from ``keys_seen``.
        queries: (B, M), from ``visible_queries``.
    """
    received = _over_queries(real.double() / seen.clamp(min=1), queries.shape[1], visibility)
    return received / queries.double().where(queries > 0, torch.nan) * (1 - 1e-9)


def _over_queries(values: Tensor, keys: int, visibility: Visibility) -> Tensor:
    """Sum of values (B, N) over the queries that see each key: (B, M) of the same type, int64 or fp64."""
    length = values.shape[1]
    mask = visibility.mask
    if mask is not None and mask.shape[2] > 1:
        found = values.new_zeros(len(values), keys, dtype=torch.float64)
        for rows, visible in _visible_rows(length, keys, visibility, mask):
            found += torch.einsum("bn,bnm->bm", values[:, rows].double(), visible.expand(len(values), -1, -1).double())
        return found.to(values.dtype)
    # The position of the first query that sees a key
    start = torch.arange(keys, device=values.device) - (keys - length)
    before = torch.nn.functional.pad(values.cumsum(1), (1, 0))  # (B, N + 1): of the queries before each
    if not visibility.is_causal and visibility.sliding_window is None:
        found = before[:, -1:].expand(-1, keys)
    else:
        stop = start + (visibility.sliding_window or keys)
        found = before[:, stop.clamp(0, length)] - before[:, start.clamp(0, length)]
    return found if mask is None else found * mask[:, 0, 0]


def keys_seen(real: Tensor, keys: int, visibility: Visibility) -> Tensor:
    """Number of keys that each query (B, N) sees: (1|B, N) int64."""
    length = real.shape[1]
    mask = visibility.mask
    if mask is not None and mask.shape[2] > 1:
        return torch.cat([visible.sum(-1) for _, visible in _visible_rows(length, keys, visibility, mask)], dim=1)
    shown = real.new_ones(1, keys) if mask is None else mask[:, 0, 0]
    before = torch.nn.functional.pad(shown.long().cumsum(1), (1, 0))  # (1|B, M + 1): keys before each
    if not visibility.is_causal and visibility.sliding_window is None:
        return before[:, -1:].expand(-1, length)
    stop = torch.arange(1, length + 1, device=real.device) + keys - length
    start = stop - (visibility.sliding_window or keys)
    return before[:, stop.clamp(0, keys)] - before[:, start.clamp(0, keys)]


def _visible_rows(length: int, keys: int, visibility: Visibility, mask: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the queries, and which keys these see, (1|B, n, M) bool, for a mask (1|B, 1, N, M)."""
    distance = keys - length - torch.arange(keys, device=mask.device)  # of the first query
    rows = max(1, PAIRS_AT_ONCE // keys)
    for first in range(0, length, rows):
        own = slice(first, min(first + rows, length))
        behind = distance + torch.arange(own.start, own.stop, device=mask.device)[:, None]  # (n, M)
        visible = mask[:, 0, own]
        if visibility.is_causal or visibility.sliding_window:
            visible = visible & (behind >= 0) & (behind < (visibility.sliding_window or keys))
        yield own, visible


def most_seen(real: Tensor, seen: Tensor) -> Tensor:
    """Largest number of keys that a real query of each row (B, N) sees, of those in ``keys_seen``: (B,), at least 1.

    In a causal map it is what the last query sees. Where texts are read in chunks, each of which sees itself alone,
    the last query may be the first of a chunk.
    """
    return seen.where(real, 0).amax(1).clamp(min=1)


def sinks(received: Tensor, first: Tensor, visible: Tensor, *, alpha: float) -> Tensor:
    """Attention sinks: keys other than the first token that get more than α / N on average (Yu et al., 2406.15765).

    Args:
        received: (B, ..., M), NaN if no query sees a key.
        first: (B,) index of the first real token, which never counts.
        visible: (B,) the largest number of keys that a query sees, N.

    Returns:
        bool, in the shape of ``received``.
    """
    shape = (-1, *[1] * (received.dim() - 1))
    position = torch.arange(received.shape[-1], device=received.device)
    return (received > alpha / visible.view(shape).to(received.dtype)) & (position != first.view(shape))


def enough_queries(queries: Tensor, visible: Tensor, *, alpha: float) -> Tensor:
    """Keys (B, M) seen by at least N / α queries (B, M), so that no single query can make them a sink."""
    return queries >= visible[:, None] / alpha
