"""A training step with every tensor's bytes and every collective's counted; alone, or as one of torchrun's processes.

python counted_step.py PRESET OUTPUT [KEY=VALUE ...] writes what the second step took: the first makes the optimizer's
state.
"""

import json
import sys
import weakref
from pathlib import Path
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from antiphase.lab.settings.presets import load_preset
from antiphase.lab.training import objective
from antiphase.lab.training.distributed import processes
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.optimizer import build_optimizer
from antiphase.lab.training.run_model import sized_config
from antiphase.models.initialization import initialize
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.ops.plain import plain_cross_entropies

COLLECTIVES = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
               "all_to_all_single": "all_to_all", "all_reduce": "sums", "allreduce_": "all_reduce"}  # fmt: skip
"""By operation; terms of blocks are added up by functional ones, gradients of copies by those of the process group."""


class Counted(TorchDispatchMode):
    """Bytes of all storages that live, at their most; and of gathered results and other collectives' inputs."""

    def __init__(self):
        super().__init__()
        self.alive = {}
        self.begin()

    def begin(self):
        """Count from here; what lives is kept."""
        self.most, self.communicated = 0, dict.fromkeys(COLLECTIVES.values(), 0)

    def add(self, tensors):
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            storage = local.untyped_storage()
            self.alive[storage._cdata] = weakref.ref(storage)

    def now(self):
        found = {key: storage for key, ref in self.alive.items() if (storage := ref()) is not None}
        self.alive = {key: weakref.ref(storage) for key, storage in found.items()}
        return sum(storage.nbytes() for storage in found.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        if name in COLLECTIVES:
            counted = args[1] if name == "_reduce_scatter_base_" else args[0]
            self.communicated[COLLECTIVES[name]] += sum(one.nbytes for one in tree_leaves(counted))
        out = func(*args, **(kwargs or {}))
        self.add(one for one in tree_leaves((out, args, kwargs)) if isinstance(one, torch.Tensor))
        self.most = max(self.most, self.now())
        return out


@patch.object(objective, "cross_entropies", plain_cross_entropies)
def counted_step(run, group):
    """What one step of a run takes in one of the processes of a group, which divide it as a run's own processes do.

    Estimates are for GPUs, whose fused norms keep what the native ones do, but which have no native loss.
    """
    torch.manual_seed(0)
    training = run.training
    precision = torch.bfloat16 if training.precision == "bfloat16" else None
    config = sized_config(run, vocab_size=run.data.vocabulary_size)
    model = AntiphaseForCausalLM(config)
    initialize(model, 0)
    if training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    group.place(model.train(), precision)
    objective = group.wrap(NextTokenLoss(model, group.exchange))
    optimizer = build_optimizer(model, training)

    def step():
        ids = torch.randint(0, config.vocab_size, (training.batch_size, run.data.sequence_length))
        passes = group.passes(ids, ids, training.micro_batch_size)
        for index, (piece, targets, _) in enumerate(passes):
            with group.accumulating(objective, is_last=index == len(passes) - 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
                    loss = objective(piece, targets)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    with Counted() as counted:
        counted.add(model.parameters())
        counted.add(model.buffers())
        counted.add(one for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one))
        at_rest = counted.now()
        step()  # shows the buffers of DistributedDataParallel, which no operation of Python has made
        counted.begin()
        step()
    return {"at_rest": at_rest, "peak": counted.most, **counted.communicated}


def main():
    preset, output, *overrides = sys.argv[1:]
    torch.set_num_threads(1)
    run = load_preset(preset, overrides).run
    with processes(torch.device("cpu"), run.training) as group:
        found = counted_step(run, group)
    if group.is_first:
        Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
