"""The reference is the formula of the paper: checked against sums written out by hand, and by gradcheck."""

import math

import pytest
import torch

from antiphase import differential_attention


def tensors(batch=2, heads=4, groups=2, queries=5, keys=7, width=3, value_width=4, key_maps=2, dtype=torch.float64):
    query = torch.randn(batch, 2 * heads, queries, width, dtype=dtype)
    key = torch.randn(batch, key_maps * groups, keys, width, dtype=dtype)
    value = torch.randn(batch, groups, keys, value_width, dtype=dtype)
    return query, key, value


@pytest.mark.parametrize("key_maps", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_equals_the_formula_written_as_loops(key_maps, is_causal):
    """Equation 1, head by head and row by row: head i reads value g = i // (H / Hkv), keys 2g, 2g+1 or g."""
    query, key, value = tensors(key_maps=key_maps)
    lam = torch.rand(2, 4, 5, dtype=torch.float64)
    out, weights = differential_attention(
        query, key, value, lam, is_causal=is_causal, impl="reference", return_weights=True
    )
    for b in range(2):
        for head in range(4):
            group = head // 2
            for row in range(5):
                maps = []
                for which in (0, 1):
                    keys = key[b, key_maps * group + which * (key_maps - 1)]
                    scores = [float(query[b, 2 * head + which, row] @ keys[j]) / math.sqrt(3) for j in range(7)]
                    seen = [not is_causal or j <= row + 2 for j in range(7)]
                    total = sum(math.exp(s) for s, ok in zip(scores, seen, strict=True) if ok)
                    maps.append([math.exp(s) / total if ok else 0.0 for s, ok in zip(scores, seen, strict=True)])
                expected = [a - float(lam[b, head, row]) * c for a, c in zip(*maps, strict=True)]
                torch.testing.assert_close(weights[b, head, row], torch.tensor(expected, dtype=torch.float64))
                torch.testing.assert_close(out[b, head, row], weights[b, head, row] @ value[b, group])


@pytest.mark.parametrize("key_maps", [1, 2])
def test_gradcheck(key_maps):
    query, key, value = (t.requires_grad_() for t in tensors(1, 2, 1, 3, 4, 2, 3, key_maps))
    lam = torch.rand(2, 1, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(1, 1, 3, 4) > 0.3

    def call(*inputs):
        return differential_attention(*inputs, is_causal=True, attn_mask=mask, impl="reference")

    assert torch.autograd.gradcheck(call, (query, key, value, lam))


def test_statistics_are_fp32_for_bf16_input():
    query, key, value = (t.bfloat16() for t in tensors())
    out, weights = differential_attention(query, key, value, 0.5, impl="reference", return_weights=True)
    assert out.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
