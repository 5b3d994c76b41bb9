"""Models with a state are known, and refused where calibration reads a prompt before its answers."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    FalconH1Config,
    FalconH1ForCausalLM,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    RwkvConfig,
)
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.lab.scoring.constrained import choose_options
from antiphase.lab.scoring.likelihood import score_options
from antiphase.lab.scoring.states import carries_state, check_no_state

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
CONFIGS = {
    "mamba2": Mamba2Config(**SIZES, num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=8),
    "rwkv": RwkvConfig(**SIZES, attention_hidden_size=32, context_length=64),
    "jamba": JambaConfig(
        **SIZES, **HEADS, num_experts=2, num_experts_per_tok=1, attn_layer_period=2, attn_layer_offset=1,
        use_mamba_kernels=False, mamba_d_state=8,
    ),
    "lfm2": Lfm2Config(**SIZES, **HEADS, layer_types=["conv", "full_attention"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_with_a_state_is_known_and_not_calibrated_with_answers(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    assert carries_state(model)
    with pytest.raises(ValueError, match=f"models of type {name} carry a state from token to token"):
        check_no_state(model)


def test_options_are_refused_where_calibration_needs_the_prompt_alone():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["jamba"]).eval()
    for score in (score_options, choose_options):
        with calibrated(model, CalibrationPlan({1: [0]})), pytest.raises(ValueError, match="jamba carry a state"):
            score(model, [[1, 2, 3], [1, 2, 4]], [[(5,), (6, 7)]] * 2)


def test_a_layer_that_also_holds_a_state_makes_one(monkeypatch):
    """Of keys and values and of a state at once, though the class of the model does not say so."""
    config = FalconH1Config(**SIZES, **HEADS, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8)
    (layer, *_) = DynamicCache(config=config).layers
    assert isinstance(layer, DynamicLayer)
    assert isinstance(layer, LinearAttentionLayer)
    monkeypatch.setattr(FalconH1ForCausalLM, "_is_stateful", False)
    assert carries_state(FalconH1ForCausalLM(config))


def test_models_of_keys_and_values_have_none(any_model):
    assert not carries_state(AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, **HEADS)))
    assert not carries_state(any_model("differential"))
    assert not carries_state(any_model("softmax"))
