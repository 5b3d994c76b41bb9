"""What a training run takes, from its settings alone: parameters, floating-point operations, memory and days.

The model is built on the meta device, so this needs no memory.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from antiphase.config import Preset, RunSettings, arm_run, load_preset
from antiphase.errors import InputError
from antiphase.folders.ownership import check_empty, make_folder
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.records import Record, finite
from antiphase.studies.estimate.operations import forward_flops
from antiphase.studies.reproduce import RunBudget
from antiphase.training.run_model import sized_config

STATE_BYTES = 16
"""A parameter in fp32, its gradient and Adam's two moments."""
SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class Fleet:
    """Machines to train on."""

    devices: int
    flops: float
    """Operations per second that one device sustains: a share of its peak, about 0.4 if all goes well."""


def budget(preset: Preset, fleet: Fleet) -> list[RunBudget]:
    """One row for each arm of a preset.

    Raises:
        InputError: sizes that do not fit, or a kind of model whose cost is not known here.
    """
    return [run_budget(arm, arm_run(preset.run, preset.compare, arm, seed=0), fleet) for arm in preset.compare.arms]


def paper_budget(fleet: Fleet, output: Path) -> Record:
    """What the paper's 3B models take. Writes ``record.json`` in ``output``.

    Raises:
        InputError: a folder that is not empty.
    """
    check_empty(output)
    preset = load_preset("paper", data=["a trillion tokens"])
    started = time.perf_counter()
    rows = budget(preset, fleet)
    record = Record(
        kind="budget", values={"rows": finite(rows)}, config=finite({"fleet": asdict(fleet), "run": preset.run}),
        seeds=[], seconds=time.perf_counter() - started,
    )  # fmt: skip
    make_folder(output)
    record.save(output)
    return record


def run_budget(arm: str, run: RunSettings, fleet: Fleet) -> RunBudget:
    """Parameters, tokens, operations, bytes and days of one run."""
    config = sized_config(run, vocab_size=run.data.vocabulary_size)
    if not isinstance(config, AntiphaseConfig):
        raise InputError(f"model.kind {run.model.kind}: the cost of a recurrent network is not counted; remove it")
    with torch.device("meta"):
        model = AntiphaseForCausalLM(config)
    training, length = run.training, run.data.sequence_length
    tokens = training.steps * training.batch_size * length
    forward = forward_flops(model, length)
    # the backward pass costs two products for each of the forward pass; checkpoints compute the blocks a second time
    passes = 4 if training.gradient_checkpointing else 3
    sequences = training.micro_batch_size or training.batch_size
    return RunBudget(
        arm=arm, parameters=model.num_parameters(), tokens=tokens,
        embedding_parameters=config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2),
        flops_a_token=3 * forward, flops=3 * forward * tokens, state_bytes=STATE_BYTES * model.num_parameters(),
        activation_bytes=activation_bytes(config, sequences, length, checkpointed=training.gradient_checkpointing),
        days=passes * forward * tokens / (fleet.devices * fleet.flops) / SECONDS_A_DAY,
    )  # fmt: skip


def activation_bytes(config: AntiphaseConfig, sequences: int, length: int, *, checkpointed: bool) -> int:
    """What a pass over ``sequences`` keeps for the backward pass, in bf16 and without maps; a lower bound.

    Of a block: its input, the two norms' outputs, queries, keys, values and the heads' outputs, and of the MLP gate, up
    and their product. With checkpoints only inputs, and one block whole. Logits are in fp32, once more for the loss.
    """
    hidden, width = config.hidden_size, config.num_attention_heads * config.head_dim
    block = 3 * hidden + 4 * width + 3 * config.intermediate_size
    layers = config.num_hidden_layers
    kept = layers * hidden + block if checkpointed else layers * block
    return sequences * length * (2 * kept + 8 * config.vocab_size)
