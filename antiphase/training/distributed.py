"""Distributed training with processes started by ``torchrun``: ranks and sums. A single process needs no group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Processes:
    """Rank of this process and number of processes."""

    rank: int
    count: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that its backward pass averages gradients over the processes."""
        return model if self.count == 1 else DistributedDataParallel(model)

    def accumulating(self, model: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Context of a forward and backward pass: only the last one of a step synchronizes gradients."""
        if is_last or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return model.no_sync()

    def share(self, batch: Tensor) -> Tensor:
        """The rows of this process; together, the processes have each row exactly once."""
        return batch[self.rank :: self.count]

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process; every process gets the same answer."""
        return bool(self.sum(torch.tensor(int(flag), device=device)).item())

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()


def is_first_process() -> bool:
    """Whether this is the process that writes files and messages; also works outside a process group."""
    if not dist.is_torchelastic_launched():
        return True
    return int(os.environ["RANK"]) == 0  # noqa: TID251 – how torchrun tells a process who it is


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Join the process group of ``torchrun``, if there is one, and leave it afterwards."""
    if not dist.is_torchelastic_launched():
        yield Processes(rank=0, count=1)
        return
    if str(device) == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())  # "cuda" is a different GPU in each process of a machine
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(rank=dist.get_rank(), count=dist.get_world_size())
    finally:
        dist.destroy_process_group()
