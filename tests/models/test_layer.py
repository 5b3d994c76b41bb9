"""The drop-in layer: self- and cross-attention, causal or not, with a cache."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, StaticCache

import antiphase
from antiphase.base.errors import InputError
from antiphase.layers.functions import join_halves


def layer_of(kind="DifferentialAttention", **fields):
    layer = getattr(antiphase, kind)(48, 8, **{"layer_idx": 0, **fields}).double()
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
    is_first = isinstance(layer, antiphase.DifferentialAttention)
    out = antiphase.differential_attention(
        query, key, join_halves(value) if is_first else value, inner.lam() if is_first else inner.lam(x),
        attn_mask=visible, impl="reference",
    ).transpose(1, 2)  # fmt: skip
    if not is_first:
        return inner.o_proj(out.flatten(2))
    norm = out / torch.sqrt((out**2).mean(-1, keepdim=True) + 1e-5) * inner.head_norm.weight * (1 - inner.lambda_init)
    return inner.o_proj(norm.flatten(2))


BOTH = pytest.mark.parametrize("kind", ["DifferentialAttention", "DifferentialAttentionV2"])


@BOTH
def test_a_new_layer_does_not_see_the_future_and_has_its_own_depth(kind):
    make = getattr(antiphase, kind)
    layer = layer_of(kind)
    x = torch.randn(1, 9, 48, dtype=torch.float64)
    changed = x.clone()
    changed[:, 6:] = 5.0
    assert torch.equal(layer(changed)[:, :6], layer(x)[:, :6])
    assert not torch.allclose(layer(changed)[:, 6:], layer(x)[:, 6:])
    seeing = layer_of(kind, is_causal=False)
    assert not torch.allclose(seeing(changed)[:, :6], seeing(x)[:, :6])
    with pytest.raises(ValueError, match=r"a causal layer cannot attend to a context.*is_causal=False"):
        layer(x, x)
    unknown = make(48, 8)
    assert unknown.inner.layer_idx is None
    assert getattr(unknown.inner, "lambda_init", 0.8) == 0.8
    with pytest.raises(ValueError, match="a cache keeps the keys of every layer apart: give each layer its layer_idx"):
        unknown(torch.randn(1, 2, 48), past_key_values=DynamicCache())
    for depth in range(3):
        assert make(48, 8, layer_idx=depth).inner.layer_idx == depth


@BOTH
def test_weights_are_those_of_the_output(kind):
    layer = layer_of(kind, bias=True)
    x = torch.randn(2, 6, 48, dtype=torch.float64)
    out, weights = layer(x, return_weights=True)
    assert weights.shape == (2, 4, 6, 6)
    torch.testing.assert_close(out, layer(x), rtol=1e-9, atol=1e-9)
    assert not weights.triu(1).any()
    lam = layer.inner.lam(x) if kind.endswith("V2") else layer.inner.lam().expand(2, 4, 6)
    torch.testing.assert_close(weights.sum(-1), (1 - lam).to(weights))


@BOTH
def test_habits_of_other_layers_are_answered(kind):
    make = getattr(antiphase, kind)
    layer = make(48, 8, layer_idx=0, bias=True, dropout=0.0)
    assert all(getattr(layer.inner, f"{name}_proj").bias.abs().sum() == 0 for name in "qkvo")
    with pytest.raises(InputError, match=r"dropout must be 0, got 0.1: .*nn.Dropout"):
        make(48, 8, layer_idx=0, dropout=0.1)
    for name, said in (
        ("num_heads", "num_attention_heads"),
        ("embed_dim", "hidden_size"),
        ("batch_first", "leave it out"),
        ("other", "see help"),
    ):
        with pytest.raises(TypeError, match=f"{name} is not an argument here; .*{said}"):
            make(48, 8, layer_idx=0, **{name: 8})
    with pytest.raises(TypeError, match="embed_dim is not an argument here; it is called hidden_size"):
        make(embed_dim=48, num_heads=8)
    x = torch.randn(2, 6, 48)
    mask = torch.ones(6, 6).tril().bool()
    for name, said in (
        ("attn_mask", "attention_mask=~attn_mask"), ("key_padding_mask", "~key_padding_mask"),
        ("need_weights", "return_weights=True"), ("is_causal", "when the layer is made"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"{name} is not an argument here; .*{said}"):
            layer(x, **{name: mask})
    with pytest.raises(TypeError, match="give hidden_states alone"):
        layer(x, x, x)
    with pytest.raises(ValueError, match=r"got torch.bool \(6, 6\), which is mask\[None, None"):
        layer(x, attention_mask=mask)
    torch.testing.assert_close(layer(x, attention_mask=mask[None, None]), layer(x))


@BOTH
def test_tokens_that_do_not_fit_the_weights_are_named(kind):
    layer = getattr(antiphase, kind)(48, 8, layer_idx=0, is_causal=False, context_size=20)
    x, context = torch.randn(2, 6, 48), torch.randn(2, 5, 20)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64):
        with pytest.raises(ValueError, match=rf"hidden_states has the dtype {dtype}, but the layer has torch.float32"):
            layer(x.to(dtype), context)
        with pytest.raises(ValueError, match=rf"context has the dtype {dtype}, .*context.to\(torch.float32\)"):
            layer(x, context.to(dtype))
    with pytest.raises(ValueError, match=r"hidden_states must have the shape \(batch, tokens, 48\), got \(6, 48\)"):
        layer(x[0], context)
    with pytest.raises(ValueError, match=r"context must have the shape \(batch, tokens, 20\), got \(2, 6, 48\)"):
        layer(x, x)
    with pytest.raises(ValueError, match=r"without context, hidden_states must have the shape \(batch, tokens, 20\)"):
        layer(x)
    assert layer(x[:0], context[:0]).shape == (0, 6, 48)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype):
            assert layer(x, context.to(dtype)).dtype == dtype
    half = layer.to(torch.bfloat16)
    assert half(x.bfloat16(), context.bfloat16()).dtype == torch.bfloat16


@BOTH
@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("key_maps", [None, 4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_self_attention(kind, length, key_maps, causal, padded):
    layer = layer_of(kind, num_key_value_heads=key_maps, is_causal=causal, layer_idx=2)
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
    layer = layer_of(context_size=20, is_causal=False)
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
        antiphase.DifferentialAttention(48, 3, layer_idx=0)
    with pytest.raises(InputError, match="layer_idx must not be below 0, got -1"):
        antiphase.DifferentialAttention(48, 4, layer_idx=-1)
    with pytest.raises(InputError, match="context_size must be at least 1, got 0"):
        antiphase.DifferentialAttention(48, 4, layer_idx=0, context_size=0)
    layer = antiphase.DifferentialAttention(48, 8, layer_idx=0, is_causal=False)
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
    layer = antiphase.DifferentialAttention(256, 8, layer_idx=0)
    vectors = torch.cat([parameter for name, parameter in layer.named_parameters() if "lambda" in name])
    assert vectors.std().item() == pytest.approx(0.1, rel=0.2)
    for name, parameter in layer.named_parameters():
        if name.endswith("proj.weight"):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
