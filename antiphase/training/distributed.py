"""Several processes started by ``torchrun``: who this one is, and sums over all. One process needs none of it."""

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
    """Rank of this process and how many there are."""

    rank: int
    count: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose backward pass averages gradients over the processes."""
        return model if self.count == 1 else DistributedDataParallel(model)

    def accumulating(self, model: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Around a forward and backward pass: only the last of a step needs gradients from the other processes."""
        if is_last or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return model.no_sync()

    def share(self, batch: Tensor) -> Tensor:
        """This process's rows; together the processes have each row once, whatever their number."""
        return batch[self.rank :: self.count]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process; all get the same answer."""
        return bool(self.sum(torch.tensor(int(flag), device=device)).item())

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()


def is_first_process() -> bool:
    """Whether this is the process that writes and speaks, before and after there is a group, too."""
    if not dist.is_torchelastic_launched():
        return True
    return int(os.environ["RANK"]) == 0  # noqa: TID251 – how torchrun tells a process who it is


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Join the group that ``torchrun`` announces, if it did; leave it afterwards."""
    if not dist.is_torchelastic_launched():
        yield Processes(rank=0, count=1)
        return
    if str(device) == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())  # "cuda" is another GPU in every process of a machine
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(rank=dist.get_rank(), count=dist.get_world_size())
    finally:
        dist.destroy_process_group()
