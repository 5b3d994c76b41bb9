"""Models with a state are known, read whole, and refused where answers follow a prompt that was read once."""

import pytest
import torch
from transformers import AutoModelForCausalLM, JambaConfig, Lfm2Config, LlamaConfig, Mamba2Config, RwkvConfig

from antiphase.evaluations.long_context.measure import losses_by_position
from antiphase.scoring.constrained import choose_options
from antiphase.scoring.likelihood import score_options
from antiphase.scoring.states import carries_state

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
def test_a_model_with_a_state_is_read_whole_and_asked_for_no_options(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    assert carries_state(model)
    ids = torch.randint(1, 60, (1, 33))
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    expected = -logits.gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(losses_by_position(model, ids, chunk=8)[0], expected, atol=1e-4, rtol=1e-4)
    for score in (score_options, choose_options):
        with pytest.raises(ValueError, match=f"models of type {name} carry a state from token to token"):
            score(model, [[1, 2, 3], [1, 2, 4]], [[(5,), (6, 7)]] * 2)


def test_models_of_keys_and_values_have_none(any_model):
    assert not carries_state(AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, **HEADS)))
    assert not carries_state(any_model("differential"))
    assert not carries_state(any_model("softmax"))
