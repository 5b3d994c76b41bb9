"""Budgets against counted operations, and the paper's own numbers."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from antiphase.config import arm_run, load_preset
from antiphase.errors import InputError
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.studies.estimate.operations import forward_flops
from antiphase.studies.reproduce import ReproduceSettings
from antiphase.studies.reproduce.budget import STATE_BYTES, Fleet, budget, run_budget


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_operations_are_those_that_torch_counts(kind):
    """With whole maps, which the eager way forms; where both maps meet the values apart, these count twice."""
    config = AntiphaseConfig(
        attention_type=kind, vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=8, head_dim=10,
    )  # fmt: skip
    model = AntiphaseForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(1, 32, dtype=torch.int64))
    assert counter.get_total_flops() == 32 * forward_flops(model, 32, causal=False)


def test_the_papers_3b_models():
    """3.2B parameters without embeddings in either arm, 1T tokens, 6 operations for a weight and a token."""
    preset = load_preset("paper", data=["book.txt"])
    rows = {row.arm: row for row in budget(preset, Fleet(devices=64, flops=4e14))}
    softmax, differential = rows["softmax"], rows["differential"]
    assert softmax.parameters == 28 * (4 * 3072**2 + 3 * 3072 * 8192 + 2 * 3072) + 3072 + 2 * 100288 * 3072
    assert differential.parameters - softmax.parameters == 28 * (4 * 128 + 2 * 128)
    assert softmax.tokens == 250_000 * 1024 * 4096
    assert softmax.flops == differential.flops
    plain = 6 * (softmax.parameters - 100288 * 3072) * softmax.tokens
    assert 1.0 < softmax.flops / plain < 1.15  # the rest is attention at 4,096 tokens
    assert softmax.state_bytes == STATE_BYTES * softmax.parameters
    assert softmax.days == pytest.approx(softmax.flops * 4 / 3 / (64 * 4e14) / 86400)


def test_checkpoints_keep_less():
    preset = load_preset("gpu", data=["book.txt"])
    run = arm_run(preset.run, preset.compare, "softmax", seed=0)
    plain = run_budget("softmax", run, Fleet(1, 1e14))
    run.training.gradient_checkpointing = True
    kept = run_budget("softmax", run, Fleet(1, 1e14))
    assert kept.activation_bytes < plain.activation_bytes
    assert kept.flops == plain.flops
    assert kept.days == pytest.approx(plain.days * 4 / 3)


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ({"devices": 0}, "--devices must be at least 1, got 0"),
        ({"device_flops": 0.0}, "--device-flops must be above 0"),
    ],
)
def test_fleets_out_of_range(fleet, message):
    with pytest.raises(InputError, match=message):
        ReproduceSettings(scale="paper", **fleet).check()


def test_recurrent_networks_are_refused():
    preset = load_preset("half-hour", ["model.kind=lstm"], data=["book.txt"])
    with pytest.raises(InputError, match="recurrent network"):
        run_budget("softmax", preset.run, Fleet(1, 1e12))
