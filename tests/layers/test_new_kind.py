"""A new kind of attention is one class and one line in the registry: everything else reads what it says of itself."""

from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import antiphase
from antiphase.base.errors import InputError
from antiphase.lab.settings.schema import ModelSettings
from antiphase.lab.training.run_model import attention_only
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.functions import antiphase_attention
from antiphase.layers.registry import LAYERS, set_training_step
from antiphase.layers.softmax import SoftmaxAttention
from antiphase.models import portable_parts
from antiphase.models.initialization import initialize
from antiphase.models.tensor_plan import tensor_plan
from antiphase.models.variants import own_fields
from support.models import randomize


class Warmed(DifferentialAttentionV1):
    """V1 whose heads have a learned bias, and whose λ is divided by a number in training."""

    zero_at_start = ("head_bias",)
    kept_in_fp32 = (*DifferentialAttentionV1.kept_in_fp32, "head_bias")

    def __init__(self, hidden_size, num_attention_heads, *, coolness=1.0, **common):
        super().__init__(hidden_size, num_attention_heads, **common)
        self.coolness, self.steps = coolness, 0
        self.head_bias = nn.Parameter(torch.zeros(num_attention_heads // 2, 1))

    @classmethod
    def check(cls, given):
        super().check(given)
        if given.get("coolness") is not None and not given["coolness"] > 0:
            raise InputError(f"coolness must be above 0, got {given['coolness']!r}")

    def at_step(self, step):
        self.steps = step

    def lam(self):
        return super().lam() / self.coolness

    def _finish(self, out, hidden_states):
        return super()._finish(out, hidden_states) + self.head_bias


class Sunk(SoftmaxAttention):
    """Softmax attention in which every layer has sink logits, whatever its options are."""

    zero_at_start = ()

    def __init__(self, hidden_size, num_attention_heads, **common):
        super().__init__(hidden_size, num_attention_heads, **common)
        self.drain = nn.Parameter(torch.ones(num_attention_heads))

    @classmethod
    def needs(cls, given):
        return {"s_aux": "attention_type=sunk"}

    def _extra(self, hidden_states):
        return {"s_aux": self.drain}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(LAYERS, "warmed", Warmed)
    monkeypatch.setitem(LAYERS, "sunk", Sunk)


def test_a_preset_can_name_every_kind(monkeypatch):
    monkeypatch.undo()  # the kinds of this file
    assert set(get_args(get_type_hints(ModelSettings)["attention_type"])) == set(LAYERS)


def test_a_configuration_has_its_fields_and_its_checks(tiny_config):
    config = tiny_config("warmed", coolness=2.0)
    assert own_fields(config) == ["coolness"]
    with pytest.raises(InputError, match="coolness must be above 0, got -1"):
        tiny_config("warmed", coolness=-1)
    with pytest.raises(InputError, match="coolness needs attention_type=warmed, got softmax"):
        tiny_config("softmax", coolness=2.0)
    with pytest.raises(InputError, match="num_key_value_heads must be even"):
        tiny_config("warmed", num_key_value_heads=1)


@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
def test_a_model_trains_decodes_and_comes_back_from_its_folder(tiny_config, tmp_path, implementation):
    config = tiny_config("warmed", coolness=2.0)
    config._attn_implementation = implementation
    model = antiphase.AntiphaseForCausalLM(config)
    initialize(model, 3)
    layers = [block.self_attn for block in model.model.layers]
    assert all(not layer.head_bias.any() and layer.lambda_q1.any() for layer in layers)
    assert attention_only(model) == 3 * (4 * 6 + 12 + 4)
    set_training_step(model, 5)
    assert [layer.steps for layer in layers] == [5, 5, 5]
    ids = torch.randint(3, 61, (2, 9))
    model(ids, labels=ids).loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
    with torch.no_grad():
        for layer in layers:
            layer.head_bias.normal_()
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))
    model.save_pretrained(tmp_path)
    again = antiphase.AntiphaseForCausalLM.from_pretrained(tmp_path, attn_implementation=implementation)
    assert again.config.coolness == 2.0
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_statistics_and_calibration_know_what_it_subtracts(tiny_config):
    """Both go by the class's own λ, half of V1's, and by its own end of a head."""
    model, plain = (
        antiphase.AntiphaseForCausalLM(tiny_config(kind, **more)).eval()
        for kind, more in (("warmed", {"coolness": 2.0}), ("differential", {}))
    )
    plain.load_state_dict(randomize(model).state_dict(), strict=False)
    ids = torch.randint(3, 61, (2, 11))
    found, of_plain = (antiphase.attention_statistics(one, input_ids=ids) for one in (model, plain))
    assert torch.equal(found.received[0], of_plain.received[0])  # maps before the subtraction
    entropy = found.differences.entropy
    assert not torch.allclose(entropy[0], of_plain.differences.entropy[0])
    model.set_attn_implementation("eager")
    weights = torch.stack(model(ids, output_attentions=True).attentions)  # (layers, B, heads, N, M)
    model.set_attn_implementation("antiphase")
    shares = weights.abs() / weights.abs().sum(-1, keepdim=True)
    expected = -torch.xlogy(shares, shares).sum(-1).mean(-1)
    torch.testing.assert_close(entropy, expected.to(entropy), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.head_bias.normal_()
    expected = model(ids).logits
    with antiphase.calibrated(model, antiphase.CalibrationPlan(heads={1: [0, 5]}, alpha=1.0, beta=1.0)):
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
    with antiphase.calibrated(model, antiphase.CalibrationPlan(heads={1: [0, 5]}, alpha=1.0, beta=0.1)):
        assert not torch.allclose(model(ids).logits, expected, rtol=1e-3, atol=1e-3)


def deaf(module, query, key, value, attention_mask, **kwargs):
    """An attention function that ignores whatever it does not know."""
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=kwargs["scaling"])


def hearing(module, query, key, value, attention_mask, *, s_aux, **kwargs):
    return antiphase_attention(module, query, key, value, attention_mask, s_aux=s_aux, scaling=kwargs["scaling"])


def test_a_function_that_would_drop_what_a_layer_needs_is_refused(tiny_config):
    AttentionInterface.register("deaf", deaf)
    AttentionInterface.register("hearing", hearing)
    config, ids = tiny_config("sunk"), torch.randint(3, 61, (2, 9))
    model = antiphase.AntiphaseForCausalLM(config).eval()
    plain = antiphase.AntiphaseForCausalLM(tiny_config("softmax")).eval()
    plain.load_state_dict(randomize(model).state_dict(), strict=False)
    expected = model(ids).logits
    assert (expected - plain(ids).logits).abs().max() > 1e-2  # the sinks count
    for name in ("eager", "hearing"):
        model.set_attn_implementation(name)
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    for name in ("sdpa", "flex_attention", "flash_attention_2", "deaf"):
        with pytest.raises(ValueError, match=f"attention_type=sunk cannot run with attn_implementation='{name}'"):
            model.set_attn_implementation(name)
    with pytest.raises(
        ValueError, match="attention_type=sunk cannot run with attn_implementation='sdpa'; choose eager"
    ):
        portable_parts.chosen_implementation(config, "sdpa")
    assert portable_parts.chosen_implementation(config, None) == "eager"
    with pytest.raises(InputError, match="attention_type=sunk needs an attention function with a parameter s_aux"):
        Sunk(48, 8, layer_idx=0, attention=deaf)
    assert tensor_plan(config) is None
    assert tensor_plan(tiny_config("softmax")) is not None
