"""Reductions of attention against whole maps, formed from their definition."""

import math
from fractions import Fraction

import pytest
import torch

from antiphase.ops import blocks
from antiphase.ops.statistics import (
    Visibility,
    enough_queries,
    keys_seen,
    layer_statistics,
    most_seen,
    sinks,
    uniform_received,
    visible_queries,
)  # fmt: skip

B, G, R, N, D = 2, 2, 3, 29, 8


def visibility(length, keys, *, is_causal, window, mask):
    distance = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
    visible = torch.ones_like(distance, dtype=torch.bool)
    if is_causal or window:
        visible = distance >= 0
    if window:
        visible = visible & (distance < window)
    visible = visible.expand(B, 1, length, keys)
    return visible if mask is None else visible & mask


def whole_maps(query, key, visible):
    """(B, G, R, S, N, M) from the definition."""
    keys = key.expand(-1, -1, query.shape[3], -1, -1)[:, :, None]  # (B, G, 1, S, M, d)
    scores = query @ keys.transpose(-1, -2) / math.sqrt(D)
    visible = visible[:, :, None, None]  # (B, 1, 1, 1, N, M)
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
    return scores.masked_fill(~visible, 0.0), weights.nan_to_num(0.0)


def masks(kind, length):
    """The mask of a call and the real tokens: padding on the left, on the right, or as a mask by query."""
    real = torch.ones(B, length, dtype=torch.bool)
    if kind == "none":
        return None, real
    if kind == "left":
        real[1, :7] = False
    else:
        real[1, -7:] = False
    mask = real[:, None, None]
    if kind == "by query":
        mask = mask & torch.ones(length, length, dtype=torch.bool).tril()
    return mask, real


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["none", "left", "right", "by query"])
@pytest.mark.parametrize(("is_causal", "window"), [(True, None), (True, 5), (False, None)])
@pytest.mark.parametrize(("streams", "key_maps"), [(1, 1), (2, 2), (2, 1)])
def test_statistics_are_those_of_the_whole_maps(kind, is_causal, window, streams, key_maps, monkeypatch):
    monkeypatch.setattr(blocks, "QUERY_ROWS", 12)  # several blocks, several units
    monkeypatch.setattr(blocks, "SCORES_IN_CACHE", 2 * 12 * N)
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(B, G, R, streams, N, D, generator=generator, dtype=torch.float64)
    key = torch.randn(B, G, key_maps, N, D, generator=generator, dtype=torch.float64)
    lam = torch.rand(B, G, R, N, generator=generator, dtype=torch.float64) if streams == 2 else None
    mask, real = masks(kind, N)
    found = layer_statistics(query, key, Visibility(mask, is_causal, window), scale=D**-0.5, real=real, lam=lam, top=7)

    visible = visibility(N, N, is_causal=is_causal, window=window, mask=mask)
    scores, weights = whole_maps(query, key, visible)
    counted = weights * real[:, None, None, None, :, None]
    queries = (visible[:, 0] & real[:, :, None]).sum(1)  # (B, M)
    torch.testing.assert_close(found.queries, queries)
    received = counted.sum(-2) / queries[:, None, None, None]
    torch.testing.assert_close(found.maps.received, received.where(queries[:, None, None, None] > 0, torch.nan),
                               equal_nan=True)  # fmt: skip
    count = real.sum(1).view(-1, 1, 1, 1)
    torch.testing.assert_close(found.maps.mass, counted.sum(-2) / count.unsqueeze(-1))
    torch.testing.assert_close(found.maps.entropy, torch.special.entr(counted).sum((-1, -2)) / count)
    sizes = (scores * real[:, None, None, None, :, None]).abs().flatten(-2)
    torch.testing.assert_close(found.top_logits, sizes.topk(7).values)
    if lam is None:
        assert found.differences is None
        return
    difference = counted[:, :, :, 0] - lam.unsqueeze(-1) * counted[:, :, :, 1]
    total = difference.abs().sum(-1, keepdim=True)
    shares = difference.abs() / total.where(total > 0, 1.0)
    negative = (-difference).clamp(min=0) / total.where(total > 0, 1.0)
    by_head = count[..., 0]
    torch.testing.assert_close(found.differences.signed_mass, difference.sum(-2) / by_head.unsqueeze(-1))
    torch.testing.assert_close(found.differences.absolute_mass, shares.sum(-2) / by_head.unsqueeze(-1))
    torch.testing.assert_close(found.differences.entropy, torch.special.entr(shares).sum((-1, -2)) / by_head)
    torch.testing.assert_close(found.differences.negative_share, negative.sum((-1, -2)) / by_head)


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["none", "left", "right", "by query"])
@pytest.mark.parametrize(("is_causal", "window"), [(True, None), (True, 5), (False, None)])
@pytest.mark.parametrize("earlier", [0, 6])
def test_visible_queries_most_keys_of_one_and_uniform_maps(kind, is_causal, window, earlier):
    keys = N + earlier
    mask, real = masks(kind, keys)
    if mask is not None and mask.shape[2] > 1:
        mask = mask[:, :, earlier:]
    real = real[:, earlier:]
    visible = visibility(N, keys, is_causal=is_causal, window=window, mask=mask)[:, 0]
    rule = Visibility(mask, is_causal, window)
    torch.testing.assert_close(visible_queries(real, keys, rule), (visible & real[:, :, None]).sum(1))
    seen = visible.sum(-1)
    found = keys_seen(real, keys, rule)
    torch.testing.assert_close(most_seen(real, found), seen.where(real, 0).amax(1))
    uniform = (visible & real[:, :, None]) / seen.clamp(min=1)[:, :, None].double()
    queries = (visible & real[:, :, None]).sum(1).double()
    expected = uniform.sum(1) / queries.where(queries > 0, torch.nan)
    queries = visible_queries(real, keys, rule)
    torch.testing.assert_close(uniform_received(real, found, queries, rule), expected, equal_nan=True)


def test_the_last_query_of_a_chunk_of_its_own_does_not_set_the_threshold():
    places = torch.arange(9)
    mask = (places[:, None] // 4 == places // 4)[None, None]  # the last query sees itself alone
    real = torch.ones(1, 9, dtype=torch.bool)
    assert most_seen(real, keys_seen(real, 9, Visibility(mask, True))).tolist() == [4]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_a_uniform_map_whose_keys_get_just_the_threshold_has_no_sink(is_causal, alpha):
    for length in range(2, 120):
        real, rule = torch.ones(1, length, dtype=torch.bool), Visibility(None, is_causal)
        seen, queries = keys_seen(real, length, rule), visible_queries(real, length, rule)
        found = sinks(
            uniform_received(real, seen, queries, rule), torch.tensor([0]), most_seen(real, seen), alpha=alpha
        )
        shares = [Fraction(1, row + 1 if is_causal else length) for row in range(length)]
        received = [sum(shares[key:]) / (length - key) if is_causal else Fraction(1, length) for key in range(length)]
        assert found[0].tolist() == [bool(key and got > Fraction(alpha) / length) for key, got in enumerate(received)]


def test_sinks_are_above_the_threshold_and_never_the_first_token():
    received = torch.tensor([[0.9, 0.5, 0.49, float("nan")], [float("nan"), 0.9, 0.6, 0.5]])
    found = sinks(received, torch.tensor([0, 1]), torch.tensor([4, 4]), alpha=1.96)
    assert found.tolist() == [[False, True, False, False], [False, False, True, True]]


def test_enough_queries_means_that_no_single_one_makes_a_sink():
    queries = torch.arange(40, 0, -1)[None]
    found = enough_queries(queries, torch.tensor([40]), alpha=5.0)
    assert found.sum() == 40 - 7  # seen by 8 or more
    assert not (1 / queries[found] > 5.0 / 40).any()


def test_rows_without_weights_have_no_negative_share():
    """A query that sees nothing, and one whose maps cancel."""
    query = torch.ones(1, 1, 1, 2, 2, D, dtype=torch.float64)
    key = torch.ones(1, 1, 2, 2, D, dtype=torch.float64)
    mask = torch.tensor([[False, False], [True, True]])[None, None]
    for lam in (0.0, 1.0):
        found = layer_statistics(
            query, key, Visibility(mask, False, None), scale=1.0, real=torch.ones(1, 2, dtype=torch.bool),
            lam=torch.full((1, 1, 1, 2), lam, dtype=torch.float64), top=1,
        )  # fmt: skip
        assert found.differences.negative_share.item() == 0.0
