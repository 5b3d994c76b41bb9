"""A training step with every tensor's bytes and every collective's counted; alone, or as one of torchrun's processes.

python counted_step.py PRESET OUTPUT [KEY=VALUE ...] writes what the second step took: the first makes the optimizer's
state.
"""

import json
import sys
import weakref
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from antiphase.config import load_preset
from antiphase.layers.exchange import Exchange
from antiphase.models.initialization import initialize
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.training.loop import NextTokenLoss
from antiphase.training.optimizer import build_optimizer
from antiphase.training.run_model import sized_config
from antiphase.training.sharding import shard as divide_weights
from antiphase.training.tensor import divide_heads

COLLECTIVES = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
               "all_to_all_single": "all_to_all", "all_reduce": "all_reduce"}  # fmt: skip


class Counted(TorchDispatchMode):
    """Bytes of all storages that live, at their most; and of gathered results and other collectives' inputs."""

    def __init__(self):
        super().__init__()
        self.alive, self.most, self.communicated = {}, 0, dict.fromkeys(COLLECTIVES.values(), 0)

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
            self.communicated[COLLECTIVES[name]] += counted.nbytes
        out = func(*args, **(kwargs or {}))
        self.add(one for one in tree_leaves((out, args, kwargs)) if isinstance(one, torch.Tensor))
        self.most = max(self.most, self.now())
        return out


def counted_step(run, *, shard, exchange=None, tensor=None):
    """What one step of a run takes.

    ``shard``: sharded by block over the processes; ``exchange``: those that share sequences; ``tensor``: the mesh
    (copies, shard, tensor) of those that divide heads.
    """
    torch.manual_seed(0)
    config = sized_config(run, vocab_size=run.data.vocabulary_size)
    model = AntiphaseForCausalLM(config)
    initialize(model, 0)
    if run.training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    objective = NextTokenLoss(model.train(), exchange)
    if tensor is not None:
        divide_heads(model, tensor["tensor"])
        divide_weights(model, tensor, torch.bfloat16 if run.training.precision == "bfloat16" else None)
    if shard:
        for block in model.model.layers:
            fully_shard(block)
        fully_shard(objective)
    optimizer = build_optimizer(model, run.training)
    if shard or tensor is not None:
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, None
    training = run.training
    mine = training.batch_size
    if shard or tensor is not None:
        mine //= dist.get_world_size() // training.mesh.tensor
    size = training.micro_batch_size or mine

    def step():
        ids = torch.randint(0, config.vocab_size, (mine, run.data.sequence_length))
        for piece in ids.split(size):
            with torch.autocast("cpu", torch.bfloat16, enabled=training.precision == "bfloat16"):
                loss = objective(piece, piece)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    with Counted() as counted:
        counted.add(model.parameters())
        counted.add(model.buffers())
        counted.add(one for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one))
        at_rest = counted.now()
        step()
    return {"at_rest": at_rest, "peak": counted.most, **counted.communicated}


def main():
    preset, output, *overrides = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = load_preset(preset, overrides).run
    exchange = mesh = None
    if run.training.mesh.context > 1:
        exchange = Exchange(dist.group.WORLD.group_name, dist.get_world_size(), dist.get_rank())
    if run.training.mesh.tensor > 1:
        ranks = torch.arange(dist.get_world_size()).view(1, -1, run.training.mesh.tensor)
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("copies", "shard", "tensor"))
    found = counted_step(run, shard=exchange is None and mesh is None, exchange=exchange, tensor=mesh)
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
