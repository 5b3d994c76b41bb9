"""Models whose weights transformers divides over processes by the plan of their configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import antiphase

SCRIPT = Path(__file__).parents[1] / "support" / "tensor_parallel.py"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 24, "num_attention_heads": 8,
         "vocab_size": 61, "max_position_embeddings": 64}  # fmt: skip


@pytest.mark.slow
def test_divided_weights_have_the_logits_and_tokens_of_whole_ones(tmp_path):
    """V1's halves of values and its norm, gates, V2's λ, tied embeddings, biases, norms of queries and keys."""
    cases = {
        "softmax": {},
        "differential": {"num_key_value_heads": 4, "output_gate": True},
        "differential_v2": {"tie_word_embeddings": True},
        "gpt_neox": {"attention_type": "softmax", "attention_bias": True, "mlp_bias": True, "gated_mlp": False,
                     "norm_type": "layer_norm", "use_parallel_residual": True},
        "motif": {"attention_type": "differential", "hidden_act": "poly_norm", "lambda_init": [-0.01, 0.2]},
        "qwen3": {"attention_type": "differential_v2", "use_qk_norm": True, "qkv_bias": True},
    }  # fmt: skip
    for seed, (kind, fields) in enumerate(cases.items()):
        torch.manual_seed(seed)
        config = antiphase.AntiphaseConfig(**{"attention_type": kind, **SIZES, **fields})
        model = antiphase.AntiphaseForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
        model.save_pretrained(tmp_path / kind)
    folders = [str(tmp_path / kind) for kind in cases]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(SCRIPT), json.dumps(folders), str(tmp_path / "found.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for kind, one in zip(cases, json.loads((tmp_path / "found.json").read_text()), strict=True):
        assert one["difference"] < 2e-6
        assert one["same"]
        assert one["share"] < (0.76 if kind == "motif" else 0.52)  # its MLP is whole


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_type": "softmax", "sink_logits": True},
        {"attention_type": "softmax", "use_qk_norm": True, "whole_qk_norm": True},
        {"attention_type": "softmax", "dex_heads": [[0], [1]]},
        {"attention_type": "differential", "num_noise_heads": 2},
        {"attention_type": "differential", "lambda_form": "head"},
        {"attention_type": "differential_v2_across", "num_key_value_heads": 4},
    ],
)
def test_what_counts_heads_itself_has_no_plan(fields):
    assert antiphase.AntiphaseConfig(**SIZES, **fields).base_model_tp_plan is None


def test_a_plan_is_no_field(tmp_path):
    config = antiphase.AntiphaseConfig(**SIZES)
    assert "layers.*.self_attn.head_norm" in config.base_model_tp_plan
    config.save_pretrained(tmp_path)
    assert "tp_plan" not in (tmp_path / "config.json").read_text()
    assert antiphase.AntiphaseConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
