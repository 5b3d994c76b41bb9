"""Attention logits in few bits: the formula, and a model whose every map goes through it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaModel

from antiphase.errors import InputError
from antiphase.evaluations.quantization import GRANULARITIES
from antiphase.evaluations.quantization.logits import quantized_logits, rounded
from antiphase.instrumentation.hooks import wrapped_attention

SHARED = {"tensor": (1, 2, 3, 4), "head": (3, 4), "row": (4,)}


@settings(deadline=None)
@given(st.integers(2, 12), st.sampled_from(GRANULARITIES), st.integers(0, 1000))
def test_rounding_is_the_formula(bits, granularity, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = 5 * torch.randn(2, 3, 1, 4, 6, generator=generator, dtype=torch.float64)
    hidden = torch.rand(scores.shape, generator=generator) < 0.3
    found = rounded(scores.masked_fill(hidden, float("-inf")), bits, granularity)
    assert (found[hidden] == float("-inf")).all()
    largest = scores.masked_fill(hidden, 0.0).abs().amax(SHARED[granularity], keepdim=True)
    step = (largest / (2 ** (bits - 1) - 1)).expand_as(scores)
    seen = ~hidden & (step > 0)
    assert ((found - scores)[seen].abs() <= step[seen] / 2 * (1 + 1e-9)).all()
    levels = found[seen] / step[seen]
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-6)
    assert levels.abs().max() <= 2 ** (bits - 1) - 1 + 1e-6


def test_scores_of_zero_stay():
    zero = torch.zeros(1, 1, 1, 2, 3)
    assert torch.equal(rounded(zero, 4, "row"), zero)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "llama"])
@torch.no_grad()
def test_every_map_of_a_model_is_rounded(kind, granularity, tiny_model):
    """Against the same done by hand, with an attention function that forms whole maps."""
    if kind == "llama":
        config = LlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=24, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
        model = LlamaForCausalLM(config).double().eval()
    else:
        model = tiny_model(kind).double()
    ids = torch.randint(1, 61, (2, 13))

    def by_hand(function):
        def attend(module, query, key, value, attention_mask, **kwargs):
            maps = query.shape[1]
            form = getattr(module.config, "attention_type", "softmax")
            if form == "differential":
                heads = maps // 2
                groups = value.shape[1] // 2
                head = torch.arange(maps) // 2
                keys = key[:, 2 * (head // (heads // groups)) + torch.arange(maps) % 2]
                values = torch.cat([value[:, ::2], value[:, 1::2]], -1)[:, head // (heads // groups)]
            else:
                keys = key.repeat_interleave(maps // key.shape[1], 1)
                values = value.repeat_interleave(maps // value.shape[1], 1)
            scores = query @ keys.transpose(-1, -2) * kwargs["scaling"]
            hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
            scores = rounded(scores.masked_fill(hidden, float("-inf"))[:, :, None], 4, granularity)[:, :, 0]
            out = (scores.softmax(-1) @ values).transpose(1, 2)
            if form != "softmax":
                lam = kwargs["lam"]
                lam = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).transpose(1, 2).unsqueeze(-1)
                out = out[:, :, ::2] - lam * out[:, :, 1::2]
            return out, None

        return attend

    plain = model(ids).logits
    with wrapped_attention(model, by_hand):
        expected = model(ids).logits
    with quantized_logits(model, 4, granularity=granularity):
        found = model(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found, plain, atol=1e-4)
    with quantized_logits(model, 24, granularity=granularity):
        torch.testing.assert_close(model(ids).logits, plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(ids).logits, plain)  # as before afterwards


def test_out_of_range(tiny_model):
    model = tiny_model("softmax")
    with pytest.raises(InputError, match="bits must be at least 2, got 1"), quantized_logits(model, 1):
        pass
    with pytest.raises(InputError, match="granularity must be one of"), quantized_logits(model, 8, granularity="x"):
        pass
    mamba = MambaModel(MambaConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(InputError, match="a mamba model has no attention logits"), quantized_logits(mamba, 8):
        pass
