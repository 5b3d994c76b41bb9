"""The processes of a run, started by ``torchrun``: what each of them does, and what they add up.

A single process is a group of one, whose sums are its own numbers; it joins nothing.
"""

from __future__ import annotations

import math
import os
import socket
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from antiphase.base.errors import DivergedError, InputError, Interrupted, NonFiniteError
from antiphase.lab.settings.presets import TrainingSettings
from antiphase.lab.training.sharding import accumulate, shard
from antiphase.lab.training.tensor import divide_heads
from antiphase.lab.training.watch import Watch, watched
from antiphase.layers.exchange import Exchange
from antiphase.ops.shapes import IGNORED_TARGET

Piece = TypeVar("Piece")
JOIN_SECONDS = 0.02
"""Between two looks for processes that have begun."""
GRACE_SECONDS = 120.0
"""From the end of ``training.hang_limit`` until a collective operation fails by itself, without naming the process."""
ANSWER_SECONDS = 30.0
"""How long torchrun may take to answer a process that it has started."""
SEEN_SECONDS = 30.0
"""How long a file may take to appear on the other nodes."""


@dataclass(frozen=True)
class Processes:
    """Rank of this process, number of processes, and how they divide the model."""

    rank: int
    count: int
    device: torch.device
    mesh: DeviceMesh | None = None
    """(copies, shard) or (copies, shard, tensor) where the weights are divided; None where each process has all."""
    exchange: Exchange | None = None
    """The processes that divide the sequences of this one; None where it has its own."""
    tensor: int = 1
    """Processes that divide the heads: they have neighbouring ranks and the same tokens."""
    watch: Watch | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def place(self, model: PreTrainedModel, precision: torch.dtype | None) -> None:
        """Move the model to this process's device, or this process's part of it.

        Args:
            precision: the dtype of autocast; None means none.
        """
        if self.mesh is None:
            model.to(self.device)
        else:
            if self.tensor > 1:
                divide_heads(model, self.mesh["tensor"])
            shard(model, self.mesh, precision)

    def wrap(self, objective: nn.Module) -> nn.Module:
        """Wrap what is minimized, around a model of ``place``, so that gradients are averaged over the processes."""
        if self.count == 1 or self.mesh is not None:
            return objective
        # gradients lie in the buffers that are sent; otherwise they would take twice their size
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)

    def accumulating(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Context of a forward and backward pass: only the last one of a step adds gradients up over all copies."""
        if isinstance(objective, DistributedDataParallel) and not is_last:
            return objective.no_sync()
        if self.mesh is not None:
            accumulate(objective, is_last=is_last)
        return nullcontext()

    @property
    def shares(self) -> int:
        """Into how many parts the rows of a batch are divided."""
        return self.count // (self.tensor if self.exchange is None else self.tensor * self.exchange.count)

    def share(self, batch: Tensor) -> Tensor:
        """The rows of this process; together, the shares have each row exactly once.

        Processes that divide sequences or heads have neighbouring ranks, and the same rows.
        """
        return batch[self.rank * self.shares // self.count :: self.shares]

    def passes(
        self, ids: Tensor, labels: Tensor, rows: int | None, pages: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """This process's share of a batch, (B, L) each, as token ids, labels and pages of its forward passes.

        Processes that divide the weights take equally many passes; one with a row less may end with an empty one, which
        predicts nothing.

        Args:
            rows: of one pass; None means all.
            pages: number of pages of each row (B,), as in ``Batch``.
        """
        pages = torch.ones(len(ids), dtype=torch.int64) if pages is None else pages
        mine, targets, counts = self.share(ids), self.share(labels), self.share(pages)
        size = rows or len(mine)
        found = list(zip(mine.split(size), targets.split(size), counts.split(size), strict=True))
        if self.mesh is not None and rows is not None:
            most = -(-len(ids) // self.shares)
            empty = (mine[:1], torch.full_like(targets[:1], IGNORED_TARGET), counts[:1])
            found += [empty] * (-(-most // rows) - len(found))
        return found

    def divide(self, pieces: Sequence[Piece], compute: Callable[[Piece], Tensor]) -> list[Tensor]:
        """``scoring.division.Divide`` over these processes; each fills its part of zeros, and the parts are added."""
        if self.count == 1:
            return [compute(piece) for piece in pieces]
        mine: dict[int, Tensor] = {}
        failed = None
        teams, team = self.count // self.tensor, self.rank // self.tensor  # those that divide heads compute together
        for turn in range(0, len(pieces), teams):
            # A sharded model needs all processes in each of its forward passes, so the last turn may repeat a piece.
            place = min(turn + team, len(pieces) - 1)
            try:
                mine[place] = compute(pieces[place])
            except NonFiniteError as error:
                failed, mine[place] = error, torch.zeros(0)
        if self.any(failed is not None):
            raise failed or NonFiniteError("its results in another process are NaN or infinite")
        is_told = self.rank % self.tensor == 0
        own = {place: found for place, found in mine.items() if is_told and place % teams == team}
        dtype = next(iter(mine.values())).dtype
        lengths = torch.zeros(len(pieces), dtype=torch.int64, device=self.device)
        for place, found in own.items():
            lengths[place] = len(found)
        sizes = self.sum(lengths).tolist()
        parts = [own.get(place, torch.zeros(size, dtype=dtype)) for place, size in enumerate(sizes)]
        added = self.sum(torch.cat(parts).to(self.device)).cpu()
        return list(added.split(sizes))

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def total(self, value: Tensor) -> Tensor:
        """Sum over the tokens of all processes; those that divide heads have the same ones."""
        return self.sum(value) / self.tensor

    @property
    def averaged(self) -> int:
        """Over how many processes gradients are averaged."""
        return self.count // self.tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; every process gets the same answer."""
        return bool(self.sum(torch.tensor(int(flag), device=self.device)).item())

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Refuse input in every process if one of them refuses it within the block.

        Raises:
            InputError, DivergedError: as in the block; in the other processes it says who knows why.
        """
        refused = None
        try:
            yield
        except (InputError, DivergedError) as error:
            refused = error
        if self.any(refused is not None):
            raise refused or InputError("--output cannot be used, as another process of this run says")

    def tick(self, what: str) -> None:
        """Tell the watch what this process begins now."""
        if self.watch is not None:
            self.watch.tick(what)

    def go_on(self, what: str) -> None:
        """Tell the watch which part of it this process does now, where others may have another number of parts."""
        if self.watch is not None:
            self.watch.go_on(what)

    def check_storage(self, folder: Path) -> None:
        """Check that every process sees what the first one writes in the folder.

        Raises:
            InputError: one does not; the message names its machine.
        """
        if self.count == 1:
            return
        mark = torch.tensor([uuid4().int >> 65 if self.is_first else 0], device=self.device)
        path = folder / f".{int(self.sum(mark).item())}.tmp"
        if self.is_first:
            path.touch()
        self.wait()
        until = time.monotonic() + SEEN_SECONDS
        while not (seen := path.is_file()) and time.monotonic() < until:
            time.sleep(0.2)
        blind = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        blind[self.rank] = not seen
        ranks = self.sum(blind).nonzero().flatten().tolist()
        if self.is_first:
            path.unlink()
        if ranks:
            raise InputError(
                f"--output {folder}: process {ranks[0]} of {self.count} does not see what process 0 wrote there; give "
                "a folder on storage that all machines share"
            )


def alone() -> Processes:
    """This process by itself, on the CPU."""
    return Processes(rank=0, count=1, device=torch.device("cpu"))


def is_first_process() -> bool:
    """Whether this is the process that writes files and messages; also works outside a process group."""
    if not dist.is_torchelastic_launched():
        return True
    return int(os.environ["RANK"]) == 0  # noqa: TID251 – how torchrun tells a process who it is


def process_count() -> int:
    """Number of processes of this run; also works before they have joined a group."""
    if not dist.is_torchelastic_launched():
        return 1
    return int(os.environ["WORLD_SIZE"])  # noqa: TID251 – how torchrun tells the number of processes


def is_restarted() -> bool:
    """Whether ``torchrun --max-restarts`` started this process in the place of one that died."""
    if not dist.is_torchelastic_launched():
        return False
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0  # noqa: TID251 – how torchrun tells a process of it


@contextmanager
def processes(device: torch.device, training: TrainingSettings) -> Iterator[Processes]:
    """Join the process group of ``torchrun``, if there is one, and leave it afterwards.

    Raises:
        InputError: the mesh does not fit the number of processes.
        Interrupted: torchrun has ended before this process could join, or while it waited for others.
    """
    if not dist.is_torchelastic_launched():
        yield Processes(rank=0, count=1, device=device)
        return
    if str(device) == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())  # "cuda" is a different GPU in each process of a machine
    sizes = mesh_sizes(training, process_count())
    limit = training.hang_limit
    try:
        _check_launcher()
        store, rank, count = next(iter(rendezvous("env://", timeout=timedelta(seconds=ANSWER_SECONDS))))
        store.set_timeout(timedelta(seconds=limit + GRACE_SECONDS))
        watching, number = store.clone(), _attempt(store, rank, count)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"group-{number}", store), rank=rank, world_size=count,
            timeout=timedelta(seconds=limit + GRACE_SECONDS),
        )  # fmt: skip
        mesh, exchange = _groups(device, sizes)
    except (dist.DistNetworkError, dist.DistStoreError, ConnectionError, TimeoutError):
        raise Interrupted("torchrun, which started this process, has ended or cannot be reached") from None
    try:
        with watched(PrefixStore(f"watch-{number}", watching), rank, count, limit) as watch:
            yield Processes(
                rank=rank, count=count, device=device, mesh=mesh, exchange=exchange, tensor=sizes[3], watch=watch
            )
    except RuntimeError as error:  # as collective operations raise once another process has ended
        try:
            _check_launcher()
        except OSError:
            why = textwrap.shorten(str(error), 160, placeholder=" …")
            raise Interrupted(f"torchrun, which started this process, has ended ({why})") from error
        raise
    finally:
        dist.destroy_process_group()


def _check_launcher() -> None:
    """A process whose torchrun was killed would wait for it for a long time, and keep its folder meanwhile.

    Raises:
        ConnectionError: torchrun's store, which is there before its processes, does not answer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # noqa: TID251 – set by torchrun
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])  # noqa: TID251 – set by torchrun
        socket.create_connection(address, timeout=ANSWER_SECONDS).close()


def _groups(device: torch.device, sizes: tuple[int, int, int, int]) -> tuple[DeviceMesh | None, Exchange | None]:
    """Which processes divide weights, and which divide sequences; those of a head's tokens are neighbours, then these.

    Weights are copied over groups and over the processes of a sequence, which add up their gradients in the same way.
    """
    _, shards, context, tensor = sizes
    mesh = exchange = None
    ranks = torch.arange(math.prod(sizes)).view(sizes)
    if tensor > 1:
        names = ("copies", "shard", "tensor")
        mesh = DeviceMesh(device.type, ranks.movedim(2, 1).flatten(0, 1), mesh_dim_names=names)
    elif shards > 1:
        mesh = DeviceMesh(device.type, ranks.movedim(2, 1).flatten(0, 1).flatten(1), mesh_dim_names=("copies", "shard"))
    if context > 1:
        names = ("sequences", "context", "tensor")
        line = DeviceMesh(device.type, ranks.flatten(0, 1), mesh_dim_names=names)["context"]
        exchange = Exchange(line.get_group().group_name, context, line.get_local_rank())
    return mesh, exchange


def _attempt(store: Store, rank: int, count: int) -> str:
    """A number that these processes share, and that no earlier group had in this store.

    torchrun keeps its store when it starts processes again, with the addresses of the dead ones, and it counts restarts
    of each machine separately. So each process asks the first one under a name of its own.
    """
    if rank > 0:
        name = uuid4().hex
        store.set(f"hello/{rank}", name)
        number = store.get(f"welcome/{name}").decode()
        store.set(f"joined/{number}/{rank}", "")
        return number
    number = str(store.add("attempts", 1))
    missing = set(range(1, count))
    while missing:
        for other in sorted(missing):
            if store.check([f"hello/{other}"]):  # possibly that of a dead process, which is answered in vain
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", number)
        missing = {other for other in missing if not store.check([f"joined/{number}/{other}"])}
        time.sleep(JOIN_SECONDS)
    return number


def mesh_sizes(
    training: TrainingSettings, count: int, *, otherwise: str = "start another number with torchrun --nproc-per-node"
) -> tuple[int, int, int, int]:
    """Groups of processes, and how many of them divide the weights of a copy, each sequence, and the heads.

    Args:
        otherwise: what to do instead of changing the mesh.

    Raises:
        InputError: they do not make up the ``count`` processes.
    """
    mesh = training.mesh
    inside = mesh.context * mesh.shard * mesh.tensor
    if count % inside or mesh.replicate not in (None, count // inside):
        named = {"replicate": mesh.replicate, "shard": mesh.shard if inside == 1 or mesh.shard > 1 else None,
                 "context": mesh.context if mesh.context > 1 else None,
                 "tensor": mesh.tensor if mesh.tensor > 1 else None}  # fmt: skip
        given = [f"training.mesh.{name}={size}" for name, size in named.items() if size is not None]
        raise InputError(
            f"{' times '.join(given)} does not make up the {count} process{'es' if count > 1 else ''} of this run; "
            f"change it, or {otherwise}"
        )
    return count // inside, mesh.shard, mesh.context, mesh.tensor
