"""Calibrated softmax attention that avoids computing the whole map if possible.

Let s_i be the weight of row i on sinks and c_i = 1 + (1 - β) s_i / (1 - s_i). The calibrated output is ``c_i O_i + (β -
c_i) (A_S V_S)_i``: ordinary attention plus a thin product over the sinks (2406.15765, section 4, rewritten). The terms
cancel if s_i is near 1, so rows with s_i > 1/2 are computed directly.

Legend: B batch, G key groups, R query heads per group, N queries, M keys, d, dv widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.attention.selected_maps import ChosenMaps
from antiphase.calibration.reference import redistribute
from antiphase.ops.blocks import BlockLayout, view_as
from antiphase.ops.shapes import statistics_dtype

DIRECT_SHARE = 0.5
"""Rows with a larger share of their weight on sinks are computed directly."""
ROWS_AT_ONCE = 512
"""Number of rows computed directly in one step."""
WEIGHTS_AT_ONCE = 2**18
"""Number of weights on sinks that the thin product computes in one step, if this is more than ROWS_AT_ONCE rows."""


@dataclass(frozen=True)
class Attended:
    """Ordinary attention, and the statistics of its maps that calibration needs."""

    out: Tensor
    """(B, G, R, N, dv)."""
    log_sum_exp: Tensor
    """(B, G, R, N); -inf for a row that sees no key."""
    mass: Tensor
    """(B, G, R, M): sum of the weights that each key receives from real queries."""


def _layout(maps: ChosenMaps) -> BlockLayout:
    return BlockLayout(
        maps.query.unsqueeze(3), maps.key.unsqueeze(2), maps.value, maps.mask,
        is_causal=maps.is_causal, sliding_window=maps.sliding_window or 0, scale=maps.scale,
    )  # fmt: skip


def attend(maps: ChosenMaps) -> Attended:
    """Ordinary attention block by block, with the sums over columns."""
    batch, groups, repeats, length, _ = maps.query.shape
    keys, width = maps.value.shape[2:]
    layout = _layout(maps)
    out = maps.query.new_empty(batch, length, groups, repeats, width).permute(0, 2, 3, 1, 4)
    log_sum_exp = out.new_full((batch, groups, repeats, length), float("-inf"), dtype=layout.dtype)
    mass = out.new_zeros(batch, groups, repeats, keys, dtype=layout.dtype)
    buffer = layout.row_buffer("result", width)
    real = maps.real_queries.to(layout.products)
    for item in layout.work_items():
        here = item.batches, item.groups
        for block in layout.blocks:
            rows = out[here][:, :, :, block.queries]  # (b, g, R, n, dv)
            if block.sees_no_key:
                rows.zero_()
                continue
            scores = item.scores(0, block)
            largest = scores.amax(-1)  # (U, R n)
            weights = item.softmax(scores)
            # exp(largest - lse) is the row's largest weight, at least 1 / M
            lse = largest.to(layout.dtype) - weights.amax(-1).to(layout.dtype).log()
            log_sum_exp[here][..., block.queries] = lse.view(rows.shape[:-1])
            weight = item.per_query(real[item.batches], block)  # (U R, 1, n)
            by_head = weights.view(len(weight), -1, weights.shape[-1])
            part = mass[here][..., block.keys]
            part += torch.bmm(weight, by_head).view(part.shape)
            product = view_as(buffer, *weights.shape[:2], width)
            rows.copy_(torch.bmm(weights, item.values[:, block.keys], out=product).view(rows.shape))
    return Attended(out, log_sum_exp.nan_to_num_(nan=float("-inf")), mass)


def correct(maps: ChosenMaps, attended: Attended, sinks: Tensor, *, beta: float) -> Tensor:
    """Calibrated output (B, G, R, N, dv), written over the ordinary one, for sinks (B, G, R, M)."""
    batch, groups, repeats = sinks.shape[:3]
    for b in range(batch):
        for g in range(groups):
            for r in range(repeats):
                chosen = sinks[b, g, r].nonzero()[:, 0]
                if len(chosen):
                    _correct_head(maps, attended, (b, g, r), chosen, beta)
    return attended.out


def _correct_head(
    maps: ChosenMaps, attended: Attended, head: tuple[int, int, int], chosen: Tensor, beta: float
) -> None:
    b, g, r = head
    dtype = statistics_dtype(maps.query.dtype)
    key, value = maps.key[b, g, chosen], maps.value[b, g, chosen]  # (|S|, d), (|S|, dv)
    out, lse = attended.out[b, g, r], attended.log_sum_exp[b, g, r]
    is_other = torch.ones(maps.key.shape[2], dtype=dtype, device=out.device).index_fill_(0, chosen, 0.0)
    other_values = None
    at_once = max(ROWS_AT_ONCE, WEIGHTS_AT_ONCE // len(chosen))
    for rows in torch.arange(len(maps.places), device=out.device).split(at_once):
        # these queries see no sinks after the last of them
        count = int(torch.searchsorted(chosen, maps.places[rows[-1]], right=True)) if maps.is_ordered else len(chosen)
        if count == 0:
            continue
        here = slice(int(rows[0]), int(rows[-1]) + 1)
        weights = _weights(maps.query[b, g, r, here], key[:count], lse[here], maps.scale)
        maps.hide(weights, b, rows, chosen[:count])
        share = weights.sum(-1, keepdim=True)  # (n, 1)
        raised = 1 + (1 - beta) * share / (1 - share.clamp(max=DIRECT_SHARE))
        thin = (weights.to(value.dtype) @ value[:count]).to(dtype)
        out[here] = (raised * out[here].to(dtype)).addcmul_(beta - raised, thin).to(out.dtype)
        direct = (share[:, 0] > DIRECT_SHARE).nonzero()[:, 0]
        if len(direct) == 0:
            continue
        if other_values is None:
            other_values = maps.value[b, g].index_fill(0, chosen, 0.0)
        for some in direct.split(ROWS_AT_ONCE):
            on_others, rest = _others(maps, lse, head, rows[some], other_values, is_other)
            # a row with all its weight on sinks stays unchanged
            has_rest = rest > torch.finfo(dtype).tiny
            left = 1 - (1 - beta) * has_rest.to(dtype)
            raised = (1 + (1 - left) * share[some] / rest.where(has_rest, 1.0)) * has_rest.to(dtype)
            total = share[some] + rest  # 1, except for the rounding of the log-sum-exp
            out[rows[some]] = (raised * on_others).addcmul_(left, thin[some]).div_(total).to(out.dtype)


def _others(
    maps: ChosenMaps, log_sum_exp: Tensor, head: tuple[int, int, int], rows: Tensor, values: Tensor, is_other: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (n, dv) and total weight (n, 1) of rows (n,) of one head on the keys that are not sinks.

    ``values`` (M, dv) and ``is_other`` (M,) are 0 at the sinks. Both results are in the statistics dtype.
    """
    b, g, r = head
    seen = int(maps.places[rows[-1]]) + 1 if maps.is_ordered else maps.key.shape[2]
    weights = _weights(maps.query[b, g, r, rows], maps.key[b, g, :seen], log_sum_exp[rows], maps.scale)  # (n, m)
    maps.hide(weights, b, rows, torch.arange(seen, device=weights.device))
    if values.dtype == weights.dtype:
        return weights @ values[:seen], (weights @ is_other[:seen]).unsqueeze(-1)
    # the remaining weight may underflow in half precision, so the product uses shares of it
    rest = weights.mul_(is_other[:seen]).sum(-1, keepdim=True)
    shares = weights / rest.clamp(min=torch.finfo(rest.dtype).tiny)
    return (shares.to(values.dtype) @ values[:seen]).to(rest.dtype) * rest, rest


def _weights(query: Tensor, key: Tensor, log_sum_exp: Tensor, scale: float) -> Tensor:
    """Weights (n, m) of some keys, from the rows' log-sum-exps (n,); weights of hidden keys are not zeroed."""
    if query.dtype == log_sum_exp.dtype:
        return torch.addmm(-log_sum_exp[:, None], query, key.T, alpha=scale).exp_()
    scores = torch.addmm(query.new_zeros(()), query, key.T, beta=0, alpha=scale)  # rounded as in ``attend``
    return scores.to(log_sum_exp.dtype).sub_(log_sum_exp[:, None]).exp_()


def calibrated_step(
    query: Tensor, key: Tensor, value: Tensor, others: Tensor, mask: Tensor | None, *, scale: float, beta: float
) -> Tensor:
    """Calibrated attention of one query with known sinks: β A + (1 - β) Aₒ / Σ Aₒ, where Aₒ is A without its sinks.

    Args:
        query: (B, G, R, 1, d).
        key: (B, G, M, d).
        value: (B, G, M, dv).
        others: (B, G, R, M), 0 at sinks and 1 elsewhere, in the statistics dtype.
        mask: boolean, broadcastable to (B, 1, 1, M), True = may attend; None means that all keys are visible.

    Returns:
        (B, G, R, 1, dv). A row that sees no key gives zeros.
    """
    scores = (query.squeeze(3) * scale) @ key.transpose(-1, -2)  # (B, G, R, M)
    scores = scores.to(others.dtype)
    empty = None
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
        empty = ~mask.any(-1, keepdim=True)
    weights = torch.softmax(scores, dim=-1)
    kept = weights * others
    rest = kept.sum(-1, keepdim=True)
    has_rest = rest > torch.finfo(rest.dtype).tiny
    kept *= torch.where(has_rest, (1 - beta) / rest, 0.0)
    kept += weights * (1 - (1 - beta) * has_rest.to(rest.dtype))
    if empty is not None:
        kept = kept.masked_fill(empty, 0.0)
    return (kept.to(value.dtype) @ value).unsqueeze(3)


def attend_running(maps: ChosenMaps, mass: Tensor | None, *, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Causal calibration: a query's sinks are the keys that get too much weight from it and the queries before it.

    Key j is a sink of query i if the mean weight from the queries j..i is above α / Nᵢ and there are at least Nᵢ / α of
    them, where Nᵢ is the number of keys that query i sees. Positions count only real tokens. So decoding with a cache
    equals one forward pass, and later tokens change nothing.

    Args:
        mass: (B, G, R, ≤ M) weight that keys received before this call; None means that there were no earlier calls.

    Returns:
        (B, G, R, N, dv), and ``mass`` (B, G, R, M) for the next call.
    """
    batch, groups, repeats, length, _ = maps.query.shape
    keys, width = maps.value.shape[2:]
    running = _Running(maps, alpha, beta)
    total = maps.query.new_zeros(batch, groups, repeats, keys, dtype=statistics_dtype(maps.query.dtype))
    if mass is not None:
        total[..., : mass.shape[-1]] = mass
    if maps.few:
        weights = running.calibrate(maps.weights(), total, *[slice(None)] * 4)
        return maps.multiply(weights), total
    layout = _layout(maps)
    out = maps.query.new_empty(batch, length, groups, repeats, width).permute(0, 2, 3, 1, 4)
    for item in layout.work_items():
        here = item.batches, item.groups
        for block in layout.blocks:
            rows = out[here][:, :, :, block.queries]  # (b, g, R, n, dv)
            if block.sees_no_key:
                rows.zero_()
                continue
            weights = item.maps(block)[0].view(*rows.shape[:-1], -1).to(layout.dtype)
            sums = total[here][..., block.keys]
            weights = running.calibrate(weights, sums, item.batches, item.groups, block.queries, block.keys)
            flat = weights.to(layout.products).view(item.count, -1, weights.shape[-1])
            rows.copy_(torch.bmm(flat, item.values[:, block.keys]).view(rows.shape))
    return out, total


class _Running:
    """The sinks of each query, and the calibrated weights."""

    def __init__(self, maps: ChosenMaps, alpha: float, beta: float) -> None:
        self.alpha, self.beta = alpha, beta
        self.order = maps.real.long().cumsum(1) + maps.before[:, None]  # (B, M): 1-based number of each real token
        self.is_first = (self.order == 1) & maps.real
        self.chosen = maps.chosen
        self.query_order = self.order[:, maps.places]  # (B, N)
        self.real = maps.real_queries
        if maps.mask is not None and maps.mask.shape[2] == len(maps.places):
            visible = maps.mask[:, 0].sum(-1).expand(len(self.real), -1)
        else:
            visible = self.query_order
            if maps.sliding_window is not None:  # minus what lies before the window, including dropped tokens
                last = maps.places - maps.sliding_window
                visible = visible - torch.where(last < 0, maps.before[:, None], self.order[:, last.clamp(min=0)])
        self.visible = visible.clamp(min=1)  # (B, N): number of keys that each query sees

    def calibrate(
        self, weights: Tensor, mass: Tensor, batches: slice, groups: slice, queries: slice, keys: slice
    ) -> Tensor:
        """Calibrated weights (b, g, R, n, m); the sums of the original ones are added to mass (b, g, R, m)."""
        own = self.query_order[batches, queries, None]  # (b, n, 1)
        count = own - self.order[batches, None, keys] + 1  # (b, n, m): number of queries that have seen each key
        visible = self.visible[batches, queries, None]  # Nᵢ
        limit = (self.alpha * count / visible).to(weights.dtype)
        eligible = (count >= visible / self.alpha) & ~self.is_first[batches, None, keys]
        counted = weights * self.real[batches, None, None, queries, None]
        received = counted.cumsum(-2).add_(mass.unsqueeze(-2))  # (b, g, R, n, m)
        mass.copy_(received[..., -1, :])
        sinks = (received > limit[:, None, None]) & eligible[:, None, None]
        sinks &= self.chosen[groups].unsqueeze(-1)
        return redistribute(weights, sinks, beta=self.beta)
