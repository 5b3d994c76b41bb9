"""A bound from outside: work is tried in a child process, which can be ended whatever it does, and then repeated here.

A signal stops Python between two of its steps. One step in C, such as rounding to a billion digits or comparing nested
lists, has no such moment, and no thread of the same process runs meanwhile.
"""

from __future__ import annotations

import math
import os
import random
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from antiphase.base.limits import ROOM, SECONDS, BoundError, bounded_work

Made = TypeVar("Made")
GRACE = 1.0
"""Seconds of the processor after its bound until a child that has not ended is ended."""
PATIENCE = 20
"""Seconds on the clock for each of the processor, after which a child is ended too: it may wait for something."""
ENDED, BOUND = b"e", b"b"
"""What a child says: that the work ended, with a result or an error, or that it reached a bound."""


def tried(work: Callable[[], Made], *, seconds: float | None = None, room: int = ROOM) -> Made:
    """The result of work that takes a bounded time, which a fork of this process has shown.

    It is done twice, from the same state, random numbers included, and must change nothing outside the process.

    Args:
        seconds, room: as for ``bounded_work``; None means its ``SECONDS``.

    Raises:
        BoundError: it takes longer, or more memory.
    """
    limit = SECONDS if seconds is None else seconds
    if not hasattr(os, "fork"):
        with bounded_work(limit, room):
            return work()
    state = random.getstate()
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of threads: the child uses none, and takes no lock of ours
        child = os.fork()
    if child == 0:
        ending = ENDED
        try:
            _limit_processor(limit + GRACE)
            random.setstate(state)
            with bounded_work(limit, room):
                work()
        except BoundError as error:
            ending = BOUND + str(error).encode(errors="replace")[:999]
        finally:  # also after an error of the work, which comes again in the parent
            with suppress(OSError):
                os.write(writes, ending)
            os._exit(0)
    os.close(writes)
    try:
        said = _said(reads, PATIENCE * (limit + GRACE))
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        raise BoundError(f"it takes longer than {limit:g} s")
    if said[:1] != ENDED:
        raise BoundError(said[1:].decode(errors="replace") or f"it takes more than {room >> 20} MiB")
    with bounded_work(limit, room):
        return work()


def _limit_processor(seconds: float) -> None:
    """Have the system end this process after whole seconds of the processor, in the middle of a step too."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    whole = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (whole if hard == resource.RLIM_INFINITY else min(whole, hard), hard))


def _said(reads: int, seconds: float) -> bytes | None:
    """What the child has written; empty if it died, None if it does not end in time."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if select.select([reads], [], [], left)[0]:
            return os.read(reads, 1000)
    return None
