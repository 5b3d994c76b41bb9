"""Ctrl-C and termination, noted while a run is in a step and obeyed after it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from antiphase.errors import Interrupted


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
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    previous: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if stops.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stops.requested = True
        if stops.at_once:
            raise Interrupted

    for caught in (signal.SIGINT, signal.SIGTERM):
        previous[caught] = signal.signal(caught, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
