"""Weights in few bits: which layers, how close to the model with all bits, and what is said of the rest."""

import importlib.util

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from antiphase.base.errors import InputError
from antiphase.lab.measures.quantization.weights import (
    GROUP,
    SMALLEST_GROUP,
    check_weights,
    group_of,
    quantized_weights,
)

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao (antiphase[quantization]) is not installed"
)


@pytest.fixture(params=["softmax", "differential", "differential_v2"])
def model(request, tiny_model):
    return tiny_model(request.param)


@needs_torchao
@pytest.mark.parametrize("bits", [8, 4])
def test_every_linear_layer_is_rounded_to_its_grid_and_nothing_else(model, bits):
    few = quantized_weights(model, bits)
    layers = dict(few.model.named_modules())
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            found = layers[name].weight.dequantize()
            group = 0 if bits == 8 else group_of(layer.in_features)
            error = (found.double() - layer.weight.double()).abs()
            parts = layer.weight.double().reshape(len(layer.weight), -1, group or layer.in_features)
            step = (parts.abs().amax(-1, keepdim=True) / ((2**bits - 1) / 2)).expand_as(parts).reshape(found.shape)
            assert (error <= 0.51 * step + 1e-6).all(), name  # the largest weight may be cut by half a step
            assert error.max() > 0
    quantized = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    for name, parameter in model.named_parameters():
        if name not in quantized:
            assert torch.equal(few.model.get_parameter(name), parameter), name


@needs_torchao
def test_more_bits_are_closer_and_the_model_itself_stays(model):
    ids = torch.arange(40)[None] % model.config.vocab_size
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        errors = [(quantized_weights(model, bits).model(input_ids=ids).logits - whole).norm() for bits in (8, 4)]
    assert 0 < errors[0] < errors[1] / 4
    assert errors[0] < 0.15 * whole.norm()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


@needs_torchao
def test_the_share_counts_what_is_in_few_bits(tiny_model):
    model = tiny_model("softmax", tie_word_embeddings=True)
    linear = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    assert quantized_weights(model, 4).share == pytest.approx(
        linear / (model.num_parameters() + model.lm_head.weight.numel())
    )
    words = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = quantized_weights(GPT2LMHeadModel(GPT2Config(**words)), 8)  # its layers are no nn.Linear but for the head
    assert gpt2.share < 0.1
    assert gpt2.groups == (0,)


@pytest.mark.parametrize(("width", "group"), [(64, 32), (48, 24), (344, 8), (682, 31), (37, 0), (7, 0), (96, 32)])
def test_a_group_divides_the_row(width, group):
    assert group_of(width) == group
    assert group == 0 or (width % group == 0 and SMALLEST_GROUP <= group <= GROUP)


def test_other_widths_and_a_missing_extra_are_refused(monkeypatch):
    with pytest.raises(InputError, match="--weights must be 8 or 4, got 3"):
        check_weights(3)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'antiphase\[quantization\]'"):
        check_weights(8)
