"""The drop-in layer: self- and cross-attention, causal or not, with a cache."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, StaticCache

import antiphase
from antiphase.errors import InputError
from antiphase.layers.functions import join_halves


def layer_of(**fields):
    layer = antiphase.DifferentialAttention(48, 8, **fields).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def expected(layer, x, context, visible):
    """Through the reference, with an explicit mask (B, 1, N, M)."""
    inner = layer.inner
    query, key, value = (
        projection(tokens).unflatten(-1, (-1, inner.head_dim)).transpose(1, 2)
        for projection, tokens in ((inner.q_proj, x), (inner.k_proj, context), (inner.v_proj, context))
    )
    out = antiphase.differential_attention(
        query, key, join_halves(value), inner.lam(), attn_mask=visible, impl="reference"
    ).transpose(1, 2)
    norm = out / torch.sqrt((out**2).mean(-1, keepdim=True) + 1e-5) * inner.head_norm.weight * (1 - inner.lambda_init)
    return inner.o_proj(norm.flatten(2))


@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("key_maps", [8, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_self_attention(length, key_maps, causal, padded):
    layer = layer_of(num_key_value_heads=key_maps, is_causal=causal, layer_idx=2)
    x = torch.randn(2, length, 48, dtype=torch.float64)
    mask = torch.ones(2, length, dtype=torch.bool)
    if padded:
        mask[1, -1] = False
    visible = mask[:, None, None, :].expand(-1, 1, length, -1)
    visible = visible & torch.ones(length, length, dtype=torch.bool).tril() if causal else visible
    found = layer(x, attention_mask=mask if padded else None)
    torch.testing.assert_close(found, expected(layer, x, x, visible), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(layer(x, attention_mask=visible), found, rtol=1e-9, atol=1e-9)


def test_cross_attention_to_a_context_of_another_width_and_length():
    layer = layer_of(context_size=20)
    x, context = torch.randn(2, 30, 48, dtype=torch.float64), torch.randn(2, 11, 20, dtype=torch.float64)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[0, 7:] = False
    visible = mask[:, None, None, :].expand(-1, 1, 30, -1)
    found = layer(x, context, attention_mask=mask)
    torch.testing.assert_close(found, expected(layer, x, context, visible), rtol=1e-9, atol=1e-9)
    changed = context.clone()
    changed[0, 7:] = 100.0
    assert torch.equal(layer(x, changed, attention_mask=mask)[1], found[1])
    torch.testing.assert_close(layer(x, changed, attention_mask=mask), found)


def test_a_cache_gives_what_one_call_gives():
    layer = layer_of(is_causal=True)
    x = torch.randn(2, 30, 48, dtype=torch.float64)
    cache, parts = DynamicCache(), []
    for part in x.split([24, 1, 4, 1], dim=1):
        parts.append(layer(part, past_key_values=cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x), rtol=1e-9, atol=1e-9)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="num_attention_heads must be even"):
        antiphase.DifferentialAttention(48, 3)
    with pytest.raises(InputError, match="layer_idx must not be below 0, got -1"):
        antiphase.DifferentialAttention(48, 4, layer_idx=-1)
    with pytest.raises(InputError, match="context_size must be at least 1, got 0"):
        antiphase.DifferentialAttention(48, 4, context_size=0)
    layer = antiphase.DifferentialAttention(48, 8)
    x = torch.randn(1, 5, 48)
    with pytest.raises(ValueError, match="context must have the batch size 1, got 2"):
        layer(x, torch.randn(2, 5, 48))
    with pytest.raises(ValueError, match="past_key_values cannot be combined with a context"):
        layer(x, x, past_key_values=DynamicCache())
    wrong_shapes = [torch.ones(shape).bool() for shape in ((5,), (2, 5), (1, 4), (1, 2, 5, 5))]
    for mask in (*wrong_shapes, torch.zeros(1, 5), torch.ones(1, 5).long()):
        with pytest.raises(ValueError, match=r"attention_mask must be boolean .* of shape \(1, 5\) or \(1, 1, 5, 5\)"):
            layer(x, attention_mask=mask)


def test_a_cache_of_fixed_length_needs_a_mask_by_query():
    layer = layer_of(is_causal=True)
    x = torch.randn(2, 6, 48, dtype=torch.float64)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 48}
    with pytest.raises(ValueError, match="the cache holds 9 places for 4 tokens; give attention_mask"):
        layer(x[:, :4], past_key_values=StaticCache(LlamaConfig(**sizes), max_cache_len=9))
    cache, parts = StaticCache(LlamaConfig(**sizes), max_cache_len=9), []
    for start, end in ((0, 4), (4, 5), (5, 6)):
        visible = torch.arange(9) <= torch.arange(start, end)[:, None]
        parts.append(layer(x[:, start:end], past_key_values=cache, attention_mask=visible[None, None]))
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x), rtol=1e-9, atol=1e-9)


def test_a_fresh_layer_starts_as_the_paper_has_it():
    """λ vectors that stay at zero would have no gradient for ever."""
    layer = antiphase.DifferentialAttention(256, 8)
    vectors = torch.cat([parameter for name, parameter in layer.named_parameters() if "lambda" in name])
    assert vectors.std().item() == pytest.approx(0.1, rel=0.2)
    for name, parameter in layer.named_parameters():
        if name.endswith("proj.weight"):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
