"""Time of a training step with every named arm against softmax, and what is saved where heads share second maps.

    python -m benchmarks.forms --output records    # on a quiet machine

Steps are those of the studies of loss (``experiments/programme_loss.yaml``), wider: six layers of width 256, eight maps
of width 32. A layer with shared second maps has the heads of Motif-2-12.7B, 32 with 8 second maps, of half the width:
these maps are formed once (40 in all) or for every head (64). All forms take turns in one process, so other work on the
machine slows each; ratios are medians within a round. Memory is what eager maps need beyond what was there before.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from antiphase.base.memory import peak_memory, restart_peak
from antiphase.lab.settings.arms import ARMS
from antiphase.lab.settings.presets import arm_run, load_preset
from antiphase.lab.speed.model import training_step
from antiphase.lab.speed.timing import paired_times, ratios
from antiphase.lab.training.run_model import sized_config
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.functions import antiphase_attention, eager_attention
from antiphase.models.attention import attention_layer
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from tools.script import script

BASE = "experiments/programme_loss.yaml"
SIZES = {"hidden_size": 256, "intermediate_size": 684, "num_hidden_layers": 6}
LAYER: dict[str, Any] = {
    "attention_type": "differential", "hidden_size": 2048, "num_attention_heads": 64, "num_key_value_heads": 16,
    "head_dim": 64,
}  # fmt: skip
NOISE_HEADS = 8
SHARED, OWN = "second maps formed once", "a second map for each head"
TOKENS, LENGTHS = 1024, (256, 1024)


def measure(given: Namespace) -> dict[str, Any]:
    """Training steps of all arms, and layers with shared second maps."""
    torch.manual_seed(0)
    steps = [row for length in LENGTHS for row in arm_steps(length, given.rounds)]
    layers = [row for length in LENGTHS for row in shared_maps(length, given.rounds)]
    values = {"steps": steps, "layers": layers, "threads": torch.get_num_threads()}
    config = {**SIZES, "tokens": TOKENS, "layer": LAYER, "noise_heads": NOISE_HEADS}
    return {"values": values, "config": config, "seeds": [0]}


def arm_steps(length: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each arm: its training step against that of softmax, fp32."""
    changes = [f"compare.arms={sorted(ARMS)}", f"data.sequence_length={length}"]
    preset = load_preset(BASE, changes + [f"model.{name}={size}" for name, size in SIZES.items()])
    ids = torch.randint(0, preset.run.data.vocabulary_size, (TOKENS // length, length))
    work = {}
    for arm in ARMS:
        settings = arm_run(preset.run, preset.compare, arm, seed=0)
        model = AntiphaseForCausalLM(sized_config(settings, vocab_size=settings.data.vocabulary_size))
        work[arm] = training_step(model, ids, is_half=False)
    times = paired_times(work, rounds=rounds)
    return [{"length": length, **ratios(times, arm, "S")} for arm in ARMS if arm != "S"]


def shared_maps(length: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each task: time or memory of a layer whose second maps are formed once against one a head, fp32."""
    layers = {
        name: attention_layer(AntiphaseConfig(**LAYER, num_noise_heads=noise), 0)
        for name, noise in ((SHARED, NOISE_HEADS), (OWN, None))
    }
    query, key, value = (torch.randn(1, heads, length, 64, requires_grad=True) for heads in (64, 16, 16))
    lam = torch.rand(32, 1)
    upstream = torch.randn(1, length, 32, 128)

    def forward(layer: AttentionLayer, function: Callable[..., Any] = antiphase_attention) -> torch.Tensor:
        out: torch.Tensor = function(layer, query, key, value, None, lam=lam)[0]
        return out

    def both(layer: AttentionLayer) -> object:
        return torch.autograd.grad(forward(layer), (query, key, value), upstream)

    found: list[dict[str, Any]] = []
    for task, run in (("forward", torch.no_grad()(forward)), ("forward and backward", both)):
        times = paired_times({name: partial(run, layer) for name, layer in layers.items()}, rounds=rounds)
        found.append({"task": task, "length": length, **ratios(times, SHARED, OWN)})
    if length < LENGTHS[-1]:  # a short text's maps fit into memory that was there before
        return found
    taken = {}
    for name, layer in layers.items():
        restart_peak()
        before = peak_memory() or 0
        with torch.no_grad():
            forward(layer, eager_attention)
        taken[name] = (peak_memory() or 0) - before
    return [*found, {"task": "memory of eager maps", "length": length, "bytes": taken}]


if __name__ == "__main__":
    script(__doc__, "forms", measure, {"--rounds": 7}, name="forms")
