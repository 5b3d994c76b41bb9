"""Attention logits in few bits: the formula, and a model whose every map goes through it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MambaConfig, MambaModel

from antiphase.errors import InputError
from antiphase.evaluations.quantization import GRANULARITIES
from antiphase.evaluations.quantization.logits import quantized_logits, rounded

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


def test_out_of_range(tiny_model):
    model = tiny_model("softmax")
    with pytest.raises(InputError, match="bits must be at least 2, got 1"), quantized_logits(model, 1):
        pass
    with pytest.raises(InputError, match="granularity must be one of"), quantized_logits(model, 8, granularity="x"):
        pass
    mamba = MambaModel(MambaConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(InputError, match="a mamba model has no attention logits"), quantized_logits(mamba, 8):
        pass
