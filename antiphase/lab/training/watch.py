"""Ends a run of several processes when one of them makes no progress, and says which one; or when torchrun is gone.

Each process reports to torchrun's store, from a thread, what it began last. Where one stops, the others soon wait for
it in a collective operation; the one that stopped has reported fewer beginnings, or reports nothing any more. Forward
passes within a step show that a process goes on, and are not counted, because processes may have different numbers.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from antiphase.base.errors import complain

INTERVAL_SECONDS = 1.0
"""Between two reports of a process; a shorter limit has ten reports."""
STALE = 5
"""Intervals without a report after which a process counts as stopped."""


@dataclass(frozen=True)
class Report:
    """What a process tells the others."""

    beginnings: int
    """Number of ``tick`` so far; equal in all processes while none hangs."""
    what: str
    """What it began last."""
    age: float
    """Seconds since then."""
    beat: int
    """Number of reports so far."""
    host: str


class Watch:
    """This process's reports, and the thread that sends them and compares them with those of the others."""

    def __init__(self, store: Store, rank: int, count: int, limit: float) -> None:
        self.store, self.rank, self.count, self.limit = store, rank, count, limit
        self.interval = min(INTERVAL_SECONDS, limit / 10)
        self._state = (0, "starting", time.monotonic())
        self._beat = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def tick(self, what: str) -> None:
        """Tell that this process begins something now; all processes begin the same things in the same order."""
        self._state = (self._state[0] + 1, what, time.monotonic())

    def go_on(self, what: str) -> None:
        """Tell that this process begins a part of what it does, of which others may have another number of parts."""
        self._state = (self._state[0], what, time.monotonic())

    def begin(self) -> None:
        """Start the thread."""
        self._report()
        self._thread.start()

    def end(self) -> None:
        """Stop the thread, before the store disappears."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.interval):
                if self._report().age > self.limit:
                    self._finish(self._hanging())
        except DistError:  # torchrun has ended; if it was killed, it has not ended this process
            if not self._ended.wait(self.interval):
                complain("torchrun has ended, and this process with it")
                os._exit(1)

    def _report(self) -> Report:
        beginnings, what, since = self._state
        self._beat += 1
        own = Report(beginnings, what, time.monotonic() - since, self._beat, socket.gethostname())
        self.store.set(str(self.rank), json.dumps(asdict(own)))
        return own

    def _read(self) -> list[Report]:
        return [Report(**json.loads(self.store.get(str(rank)))) for rank in range(self.count)]

    def _hanging(self) -> dict[int, Report]:
        """The processes for which the others wait; all of them, if none is behind the others."""
        before = self._read()
        for _ in range(STALE):
            time.sleep(self.interval)
            self._report()
        now = self._read()
        silent = {rank: now[rank] for rank in range(self.count) if now[rank].beat == before[rank].beat}
        behind = min(one.beginnings for one in now)
        return silent or {rank: one for rank, one in enumerate(now) if one.beginnings == behind}

    def _finish(self, hanging: dict[int, Report]) -> None:
        """Say what hangs, in one process, and end; a process that hangs itself shows where its threads are."""
        if self._state[2] > time.monotonic() - self.limit:
            return  # it went on meanwhile
        if self.rank in hanging:
            faulthandler.dump_traceback(sys.stderr)
        speaker = next((rank for rank in range(self.count) if rank not in hanging), 0)
        if self.rank == speaker:
            complain(hang_message(hanging, self.count, self.limit))
        else:
            time.sleep(2 * self.interval)  # torchrun ends all processes once one has ended
        os._exit(1)  # the main thread waits in code that cannot be interrupted


def hang_message(hanging: dict[int, Report], count: int, limit: float) -> str:
    """A sentence about the processes that hang."""
    rank, one = next(iter(hanging.items()))
    who = f"process {rank} of {count} ({one.host})" if len(hanging) < count else f"all {count} processes"
    more = f", and {len(hanging) - 1} more," if 1 < len(hanging) < count else ""
    return (
        f"{who}{more} made no progress for {limit:g} s (training.hang_limit), last: {one.what}; the run was ended, and "
        "goes on from its last checkpoint with --resume or torchrun --max-restarts"
    )


@contextmanager
def watched(store: Store, rank: int, count: int, limit: float) -> Iterator[Watch]:
    """A watch over this process within the block."""
    watch = Watch(store, rank, count, limit)
    watch.begin()
    try:
        yield watch
    finally:
        watch.end()
