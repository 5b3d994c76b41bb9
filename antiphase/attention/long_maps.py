"""Attention maps of texts too long for whole maps: by segments of tokens, and whole in a span of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall
from antiphase.attention.hooks import observed
from antiphase.attention.maps import AttentionMaps
from antiphase.attention.own_maps import changes_scores
from antiphase.attention.rows import LayerRows, rows_in

ROWS = 128
"""Queries whose rows are formed at once, about."""
SEGMENTS, PEAKS, SPAN = "segments", "peaks", "span"
"""Parts of what is found."""


def segment_maps(model: PreTrainedModel, input_ids: Tensor, size: int) -> list[AttentionMaps]:
    """Maps in which ``size`` tokens in a row are one query and one key; memory is linear in length.

    For each layer there are two. ``segments`` has the sum over the keys of a segment, mean over its queries, so its
    rows sum to one as those of the tokens do; λ is the mean over the queries, and the second map is weighted by λ, so
    that the difference is exact, except where λ changes its sign within a segment. ``peaks`` has the largest absolute
    weight of each pair of segments, in which a single token stays visible.

    Args:
        input_ids: (1, N), without padding.
        size: tokens of a segment; the last one may have fewer.

    Raises:
        InputError, ValueError, NonFiniteError: as for ``attention_rows``.
    """
    found: list[AttentionMaps] = []

    def take(call: AttentionCall, blocks: Iterator[LayerRows]) -> None:
        layers = zip(*(_segments(part, size) for rows in blocks for part in _split(rows, size)), strict=True)
        maps, means, visible, peaks = (torch.stack(parts) for parts in layers)
        lam = means.movedim(0, -1) if maps.shape[2] == 2 else None
        found.append(AttentionMaps(call.layer, maps.movedim(0, 2), lam, visible, SEGMENTS))
        found.append(AttentionMaps(call.layer, peaks.movedim(0, 1)[:, None], None, visible, PEAKS))

    _read(model, input_ids, range(input_ids.shape[1]), max(size, ROWS // size * size), take)
    return found


def span_maps(model: PreTrainedModel, input_ids: Tensor, queries: range, keys: range) -> list[AttentionMaps]:
    """The weights of these queries on these keys in every layer; rows need not sum to one.

    Raises:
        InputError, ValueError, NonFiniteError: as for ``attention_rows``.
    """
    found: list[AttentionMaps] = []

    def take(call: AttentionCall, blocks: Iterator[LayerRows]) -> None:
        rows = list(blocks)
        maps = torch.cat([one.maps[0, ..., keys.start : keys.stop].float() for one in rows], dim=-2)
        visible = torch.cat([_visible(one)[:, keys.start : keys.stop] for one in rows])
        lam = None if rows[0].lam is None else torch.cat([_lam(one) for one in rows], dim=-1)
        found.append(AttentionMaps(call.layer, maps, lam, visible, SPAN))

    _read(model, input_ids, queries, ROWS, take)
    return found


Take = Callable[[AttentionCall, Iterator[LayerRows]], None]


@torch.no_grad()
def _read(model: PreTrainedModel, input_ids: Tensor, queries: range, step: int, take: Take) -> None:
    """Give ``take`` the rows of these queries in each layer, in blocks; a layer's own maps are formed at once."""

    def observe(call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if not call.is_second_half:
            most = len(queries) if changes_scores(call, "s_aux") else step
            places = torch.tensor(queries)[None].split(most, dim=1)
            take(call, (rows_in(call, heads, positions) for positions in places))

    with observed(model, observe, once=True):
        model.base_model(input_ids=input_ids.to(model.device), use_cache=False)


def _split(rows: LayerRows, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The rows of each segment: maps (H, S, P, M), λ (H, P), which keys are seen (P, M)."""
    maps = rows.maps[0].float()
    lam = torch.ones(len(maps), maps.shape[-2]) if rows.lam is None else _lam(rows)
    return zip(maps.split(size, 2), lam.split(size, 1), _visible(rows).split(size), strict=True)


def _segments(part: tuple[Tensor, Tensor, Tensor], size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the queries of a segment: maps (H, S, K), λ (H,), keys' segments seen (K,), peaks (H, K)."""
    maps, lam, seen = part
    weights = maps[:, 0] if maps.shape[1] == 1 else maps[:, 0] - lam[..., None] * maps[:, 1]
    if maps.shape[1] == 2:
        mean = lam.mean(-1, keepdim=True)
        is_weighted = (lam * mean > 0).all(-1, keepdim=True)  # else a weight would be negative, or 0 divided by 0
        share = torch.where(is_weighted, lam / mean, 1.0)
        maps = torch.stack([maps[:, 0], share[..., None] * maps[:, 1]], dim=1)
    sums, largest, any_seen = (
        pad(one, (0, -one.shape[-1] % size)).unflatten(-1, (-1, size)) for one in (maps, weights.abs(), seen)
    )
    return sums.sum(-1).mean(-2), lam.mean(-1), any_seen.any(-1).any(-2), largest.amax(-1).amax(-2)


def _lam(rows: LayerRows) -> Tensor:
    """(H, P)."""
    assert rows.lam is not None
    return rows.lam.float().expand(1, *rows.maps.shape[1:2], rows.maps.shape[-2])[0]


def _visible(rows: LayerRows) -> Tensor:
    """(P, M) bool."""
    queries, keys = rows.maps.shape[-2:]
    if rows.visible is None:
        return torch.ones(queries, keys, dtype=torch.bool)
    if rows.visible.shape[1] > 1:
        raise ValueError("attention has a separate mask per head, which is not supported")
    return rows.visible[0, 0].expand(queries, keys)
