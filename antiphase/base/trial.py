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
from contextvars import ContextVar
from typing import TypeVar

from antiphase.base.limits import ROOM, SECONDS, BoundError, bounded_work

Made = TypeVar("Made")
GRACE = 1.0
"""Seconds of the processor after its bound until a child that has not ended is ended."""
PATIENCE = 20
"""Seconds on the clock for each of the processor, after which a child is ended too: it may wait for something."""
ENDED, BOUND, GOES_ON = b"e", b"b", b"."
"""What a child says: that the work ended, with a result or an error, that it reached a bound, or begins its next piece.
"""
_PIECE: ContextVar[Callable[[float], None] | None] = ContextVar("_PIECE", default=None)
"""Within ``together``, what is called before each piece of the work, with its seconds of the processor."""


class _Unshown(BaseException):
    """Work needs a child, which none has begun yet; no error, so that nothing else answers it."""


def together(work: Callable[[], Made]) -> Made:
    """The result of work that may call ``tried`` many times: one child shows all of it, instead of one for each.

    Each piece has its own bounds, as without this. The work is begun up to three times, from the same random numbers,
    and must change nothing. Work that reaches a bound is done piece by piece after all, so that its error says where.
    """
    if _PIECE.get() is not None:
        return work()
    state = random.getstate()
    try:
        return _with_pieces(work, _unshown)
    except _Unshown:
        random.setstate(state)
    if (said := _shown_in_child(work, None)) is None or said[:1] != ENDED:
        return work()
    return _with_pieces(work, lambda seconds: None)


def _unshown(seconds: float) -> None:
    raise _Unshown


def _with_pieces(work: Callable[[], Made], before: Callable[[float], None]) -> Made:
    reset = _PIECE.set(before)
    try:
        return work()
    finally:
        _PIECE.reset(reset)


def tried(work: Callable[[], Made], *, seconds: float | None = None, room: int = ROOM) -> Made:
    """The result of work that takes a bounded time, which a fork of this process has shown.

    It is done twice, from the same state, random numbers included, and must change nothing outside the process.

    Args:
        seconds, room: as for ``bounded_work``; None means its ``SECONDS``.

    Raises:
        BoundError: it takes longer, or more memory.
    """
    limit = SECONDS if seconds is None else seconds
    piece = _PIECE.get()
    if piece is not None:
        piece(limit)
    if piece is None:
        said = _shown_in_child(work, (limit, room))
        if said is None:
            raise BoundError(f"it takes longer than {limit:g} s")
        if said[:1] != ENDED:
            raise BoundError(said[1:].decode(errors="replace") or f"it takes more than {room >> 20} MiB")
    with bounded_work(limit, room):
        return work()


def _shown_in_child(work: Callable[[], object], bounds: tuple[float, int] | None) -> bytes | None:
    """Do the work in a fork of this process, within its bounds or piece by piece.

    Returns:
        Its last word, empty if it died; None if it is too slow.
    """
    limit, room = bounds or (SECONDS, ROOM)
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
            random.setstate(state)
            if bounds is None:
                _with_pieces(work, lambda seconds: _next_piece(seconds, writes))
            else:
                _limit_processor(limit + GRACE)
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
        while (said := _said(reads, PATIENCE * (limit + GRACE))) and not said.strip(GOES_ON):
            pass
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    return None if said is None or is_slow else said.lstrip(GOES_ON)


def _next_piece(seconds: float, writes: int) -> None:
    os.write(writes, GOES_ON)
    _limit_processor(time.process_time() + seconds + GRACE)


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
