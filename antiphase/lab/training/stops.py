"""Ctrl-C and termination, noted while a run is in a step and obeyed after it."""

from __future__ import annotations

import errno
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from antiphase.base.errors import Interrupted

TERMINATIONS = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
"""What asks a process to end: a command or a batch system, its terminal that is closed, its processor time used up."""


@dataclass
class Stops:
    """Whether Ctrl-C or a termination signal asked the run to stop, and whether it can stop where it is."""

    requested: bool = False
    at_once: bool = False


@contextmanager
def noted(stops: Stops) -> Iterator[None]:
    """Note Ctrl-C and termination in ``stops``, so that no step is interrupted. A second Ctrl-C stops at once.

    While ``stops.at_once``, a signal raises ``Interrupted`` where the program is.
    """

    def handle(number: int) -> None:
        if stops.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stops.requested = True
        if stops.at_once:
            raise Interrupted

    with handled((signal.SIGINT, *TERMINATIONS), handle):
        yield


@contextmanager
def handled(signals: Sequence[int], handle: Callable[[int], None]) -> Iterator[None]:
    """Call ``handle`` with the number of each of these signals that arrives within the block.

    A termination that this process was started to ignore stays ignored, as ``nohup`` asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    previous: dict[int, Any] = {}

    def arrived(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            _leave_closed_terminal()
        handle(number)

    for caught in signals:
        if caught == signal.SIGINT or signal.getsignal(caught) is not signal.SIG_IGN:
            previous[caught] = signal.signal(caught, arrived)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave_closed_terminal() -> None:
    """Let what is printed go nowhere if the terminal has been closed: progress must not fail before the checkpoint."""
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # another error: it is no terminal
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)
