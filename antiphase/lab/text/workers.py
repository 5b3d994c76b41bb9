"""Processes that work on text beside the one that trains: they leave Ctrl-C to it, and end with it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from antiphase.base.errors import named, worded

STOPS: list[Any] = []
"""In such a process, the event that stops it."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_processes(count: int, field: str) -> Iterator[ProcessPoolExecutor]:
    """Processes that stop at their next ``check_stop`` when this block is left early, and when this process dies.

    Raises:
        OSError: ENOMEM, if one of them was killed; ``field`` names what it read. Not an input error, so that what
            others have finished stays.
    """
    # spawned, because a fork of a process with threads may hang
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    try:
        with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(stop,)) as pool:
            try:
                yield pool
            finally:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
    except BrokenProcessPool:
        reason = "a process that reads it was killed, perhaps for lack of memory"
        raise OSError(errno.ENOMEM, reason, worded(named(field))) from None


def check_stop() -> None:
    """
    Raises:
        KeyboardInterrupt: the process that started this one no longer needs its work.
    """
    if any(stop.is_set() for stop in STOPS):
        raise KeyboardInterrupt


def _begin(stop: Any) -> None:
    STOPS.append(stop)
    for of_terminal in (signal.SIGINT, signal.SIGHUP):  # they reach this process too; the one that started it decides
        signal.signal(of_terminal, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if not parent.is_alive():  # killed while this one was imported: a task that waits here is not to begin
        os._exit(1)

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
