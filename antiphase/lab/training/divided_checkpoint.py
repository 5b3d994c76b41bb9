"""Checkpoints of weights that are divided over processes, written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch import distributed as dist

from antiphase.base.errors import Interrupted
from antiphase.base.folders.contents import file_digest
from antiphase.base.folders.ownership import place_beside, sync
from antiphase.lab.training.checkpoint import (
    DIVIDED,
    MANIFEST,
    Progress,
    added,
    described,
    own_tensors,
    sealed,
    step_folder,
)
from antiphase.lab.training.distributed import Processes
from antiphase.lab.training.divided_files import own_files, staged, write_parts


class DividedCheckpoints:
    """Writes one checkpoint at a time, in a thread of every process.

    The thread works on copies of what its process holds, and the threads talk to each other in a process group of their
    own, so that neither the tensors nor the order of messages depend on what training does meanwhile. The folder is
    renamed once every process has written and hashed its files.
    """

    def __init__(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: Processes, limit: float
    ) -> None:
        """
        Args:
            limit: seconds that a process waits for the others.
        """
        self.folder, self.model, self.optimizer, self.group = folder, model, optimizer, group
        self.threads = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for a checkpoint that is being written; its error matters if there is no other than that it was stopped.

        Raises:
            OSError: the checkpoint could not be written.
        """
        self.executor.shutdown()
        if error is None or isinstance(error, Interrupted):
            self.finish()

    def save(self, progress: Progress) -> None:
        """Begin a checkpoint of the present state, once the one before is on disk.

        Raises:
            OSError: the one before could not be written.
        """
        self.finish()
        tensors, plain = described(self.model, self.optimizer)
        state = staged({**own_tensors(self.model), **tensors})
        tree = {"format": DIVIDED, "progress": asdict(progress), "optimizer": plain}
        self.writing = self.executor.submit(self._write, progress.step, state, tree)

    def finish(self) -> None:
        """Wait until the checkpoint that was begun is on disk.

        Raises:
            OSError: it could not be written.
        """
        if self.writing is not None:
            writing, self.writing = self.writing, None
            writing.result()

    def _write(self, step: int, state: Mapping[str, Tensor], tree: dict[str, Any]) -> None:
        final = step_folder(self.folder, step)
        first = self.group.is_first
        with added(self.folder, step) if first else nullcontext(place_beside(final)) as fresh:
            dist.barrier(self.threads)  # the folder exists
            write_parts(fresh, state, self.threads)
            files = own_files(fresh, self.group.rank)
            for path in files:
                sync(path)
            digests = self._gathered({path.name: file_digest(path) for path in files})
            if first:
                (fresh / MANIFEST).write_bytes(sealed({**tree, "files": digests}))
        dist.barrier(self.threads)  # it is complete

    def _gathered(self, digests: dict[str, str]) -> dict[str, str]:
        """Digests of all processes' files by name."""
        found: list[dict[str, str]] = [{}] * self.group.count
        dist.all_gather_object(found, digests, group=self.threads)
        return {name: digest for part in found for name, digest in sorted(part.items())}
