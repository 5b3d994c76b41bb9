"""Attention logits in few bits: the formula, and a model whose every map goes through it."""

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MambaConfig, MambaModel

from antiphase.base.errors import InputError
from antiphase.lab.measures.quantization import GRANULARITIES
from antiphase.lab.measures.quantization.logits import quantized_logits, rounded
from antiphase.lab.measures.quantization.measure import quantization
from antiphase.lab.measures.quantization.weights import quantized_weights
from antiphase.lab.scoring.likelihood import negative_log_likelihoods
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from antiphase.lab.text.streams import Batch

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
    with pytest.raises(InputError, match="models of type mamba have no attention logits"), quantized_logits(mamba, 8):
        pass


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_row_is_the_model_in_its_number_of_bits(tiny_model, granularity):
    model = tiny_model("softmax", vocab_size=2 + 7 + 9 + 11)
    held_out = Batch(*[torch.randint(1, 29, (3, 24))] * 2)
    batch = RetrievalTask(SymbolLanguage(7, 9, 11), sequence_length=24, needles=2, queries=1).sample(
        3, torch.Generator().manual_seed(0)
    )
    found = quantization(model, held_out, batch, guess_rate=0.5, bits=[8, 3], granularity=granularity)

    def loss():
        return float(negative_log_likelihoods(model, held_out.input_ids, held_out.labels).double().mean())

    expected = [loss()]
    for bits in (8, 3):
        with quantized_logits(model, bits, granularity=granularity):
            expected.append(loss())
    assert [row.loss for row in found.rows] == pytest.approx(expected, rel=1e-6)
    assert abs(expected[2] - expected[0]) > 10 * abs(expected[1] - expected[0]) > 0


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
def test_rows_of_weights_are_the_model_with_such_weights(tiny_model):
    model = tiny_model("softmax", vocab_size=2 + 7 + 9 + 11)
    held_out = Batch(*[torch.randint(1, 29, (3, 24))] * 2)
    batch = RetrievalTask(SymbolLanguage(7, 9, 11), sequence_length=24, needles=2, queries=1).sample(
        3, torch.Generator().manual_seed(0)
    )
    found = quantization(model, held_out, batch, guess_rate=0.5, bits=[8], weights=[4])
    few = quantized_weights(model, 4).model
    expected = float(negative_log_likelihoods(few, held_out.input_ids, held_out.labels).double().mean())
    assert found.weights[0].loss == pytest.approx(expected, rel=1e-6) != found.rows[0].loss
