"""Bounds for what comes from strangers: time and memory of a template, values of a configuration that nobody checks."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from types import FrameType
from typing import Any

from antiphase.base.errors import InputError, brief

SECONDS = 3.0
"""Processor time for one template; the longest that are in use take milliseconds. A busy machine takes none of it."""
ROOM = 1 << 29
"""Bytes of address space that one template may take."""


LARGEST_DEPTH = 10_000
"""Layers of a model."""
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
RETURNED = ("output_hidden_states", "output_attentions")


class BoundError(ValueError):
    """A template took too long, or too much memory."""


@contextmanager
def bounded_work(seconds: float = SECONDS, room: int = ROOM) -> Iterator[None]:
    """Stop what runs within the block after a time, or when it asks for more memory.

    Time is that of the processor, and is bounded in the main thread only, where Python delivers signals; memory on
    Linux only, whose kernel bounds the address space of a process. Other threads must not need memory meanwhile.

    Raises:
        BoundError: the block reached a bound.
    """
    bounds = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + room
    is_timed = threading.current_thread() is threading.main_thread()

    def stop(number: int, frame: FrameType | None) -> None:
        raise BoundError(f"it takes longer than {seconds:g} s")

    if limit > room and (bounds[0] == resource.RLIM_INFINITY or limit < bounds[0]):
        resource.setrlimit(resource.RLIMIT_AS, (limit, bounds[1]))
    previous = signal.signal(signal.SIGVTALRM, stop) if is_timed else None
    try:
        if is_timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    except (MemoryError, OverflowError):
        raise BoundError(f"it takes more than {room >> 20} MiB") from None
    except RecursionError:
        raise BoundError("it calls itself without end") from None
    finally:
        if is_timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, bounds)


def _address_space() -> int:
    """Bytes of address space of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(99).split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def check_depth(tree: Any, place: str) -> None:
    """Compare numbers of layers and labels, before a class makes a list of that length, or as many modules.

    Raises:
        InputError: a model of so many cannot be made.
    """
    waiting = [tree]
    while waiting:  # without recursion, which a file can exhaust
        held = waiting.pop()
        for key, value in held.items() if isinstance(held, dict) else ():
            is_length = "layers" in str(key) or key in ("n_layer", "num_labels")
            if is_length and isinstance(value, int) and value > LARGEST_DEPTH:
                raise InputError(
                    f"{place}: its config.json cannot be used ({key} must be a whole number up to {LARGEST_DEPTH}, got "
                    f"{brief(value)})"
                )
            waiting.append(value)


def check_returned(config: Any) -> None:
    """
    Raises:
        TypeError: a field that transformers looks at in the forward pass only is neither true nor false.
    """
    for name in RETURNED:
        if not isinstance(getattr(config, name, None), bool | None):
            raise TypeError(f"{name} must be true or false, got {brief(getattr(config, name))}")


def check_special(model: Any, place: str) -> None:
    """
    Raises:
        InputError: a special token is no number of a token, which transformers finds out only when it generates.
    """
    settings = (model.config, getattr(model, "generation_config", None))
    for one, name in product(settings, SPECIAL_TOKENS):
        value = getattr(one, name, None)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and abs(token) < 1 << 31 for token in listed):
            raise InputError(f"{place}: {name} in its configuration must be the number of a token, got {brief(value)}")
