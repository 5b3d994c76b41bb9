"""Time of a training step with weights divided over two processes, against DistributedDataParallel.

    torchrun --standalone --nproc-per-node=2 -m benchmarks.sharded_step --output records/sharded-step

Both forms stand in the same processes and take steps in turn, so other work on the machine slows both; the record has
the median of each and of the ratios of neighbouring steps, for steps of few and of many tokens: what is gathered and
added up does not depend on their number. One step is forward pass, backward pass, clipping and AdamW,
as in ``lab/training/loop.py``. Before the timing, the losses of both are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from antiphase.base.records import Record
from antiphase.lab.settings.presets import MeshSettings, TrainingSettings
from antiphase.lab.training.distributed import Processes, processes
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.optimizer import build_optimizer
from antiphase.lab.training.sharding import whole
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.initialization import initialize
from antiphase.models.transformer import AntiphaseForCausalLM

SIZES: dict[str, Any] = {
    "attention_type": "differential", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 8, "num_attention_heads": 16, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
ROWS, LENGTH = (8, 32), 256
"""Numbers of sequences of a step over both processes, and their tokens."""
AGREEMENT = 1e-5
"""Largest relative difference of the losses, in fp32."""


def stepper(group: Processes, training: TrainingSettings) -> Callable[[torch.Tensor], float]:
    """A function that takes one training step on token ids (B, L) and returns the loss over all processes."""
    model = AntiphaseForCausalLM(AntiphaseConfig(**SIZES)).train()
    initialize(model, 0)
    group.place(model, None)
    objective, optimizer = group.wrap(NextTokenLoss(model)), build_optimizer(model, training)

    def step(ids: torch.Tensor) -> float:
        mine = group.share(ids)
        with group.accumulating(objective, is_last=True):
            loss = objective(mine, mine) / (ids[:, 1:].numel())
            (loss * group.count).backward()
        norm = whole(nn.utils.clip_grad_norm_(model.parameters(), training.clip)).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert norm > 0
        return group.sum(loss.detach()).item()

    return step


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="Folder for sharded-step.json.")
    parser.add_argument("--steps", type=int, default=20, help="Timed steps of each form.")
    chosen = parser.parse_args()
    training = TrainingSettings(steps=chosen.steps, mesh=MeshSettings(shard=2))
    torch.set_num_threads(1)
    started, load = time.perf_counter(), os.getloadavg()[0]
    with processes(torch.device("cpu"), training) as group:
        forms = {"ddp": stepper(dataclasses.replace(group, mesh=None), training), "shard": stepper(group, training)}
        rows = [measured(forms, group, count, chosen.steps) for count in ROWS]
        if not group.is_first:
            return
    values = {"rows": rows, "load_before": load, "load_after": os.getloadavg()[0]}
    config = {"model": SIZES, "length": LENGTH, "steps": chosen.steps, "processes": 2, "threads": 1}
    record = Record(kind="benchmark-sharded-step", values=values, config=config, seconds=time.perf_counter() - started)
    written = record.save(chosen.output, "sharded-step")
    words = [f"{row['tokens']:,} tokens: shard / ddp {row['ratio_of_neighbours']:.3f}" for row in rows]
    Console(highlight=False).print("\n".join([*words, f"written: {written}"]))


def measured(
    forms: dict[str, Callable[[torch.Tensor], float]], group: Processes, count: int, steps: int
) -> dict[str, Any]:
    """Medians of both forms in steps of ``count`` sequences, and of the ratios of neighbouring steps."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for step in range(steps + 3):
        group.tick(f"step {step}")
        ids = torch.randint(SIZES["vocab_size"], (count, LENGTH), generator=torch.Generator().manual_seed(step))
        losses = {}
        for name in sorted(forms, reverse=bool(step % 2)):  # which is first alternates
            group.wait()
            began = time.perf_counter()
            losses[name] = forms[name](ids)
            times[name].append(time.perf_counter() - began)
        assert abs(losses["shard"] / losses["ddp"] - 1) < AGREEMENT, losses
    kept = {name: found[3:] for name, found in times.items()}  # the first steps allocate
    medians = {name: statistics.median(found) for name, found in kept.items()}
    ratios = sorted(one / other for one, other in zip(kept["shard"], kept["ddp"], strict=True))
    return {
        "tokens": count * LENGTH,
        "seconds": medians,
        "ratio": medians["shard"] / medians["ddp"],
        "ratio_of_neighbours": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
    }


if __name__ == "__main__":
    main()
