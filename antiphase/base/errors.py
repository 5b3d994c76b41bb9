"""Errors that the command line reports in one sentence: unusable input, and runs that diverged or were stopped; and how
text of strangers is shown in sentences and terminals.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

DIVERGED = 3
"""Exit code of a command whose training diverged."""
NO_MEMORY = re.compile(r"can't allocate memory|out of memory|[Ss]torage size calculation overflowed|overflow.* numel|"
                       r"integer multiplication overflow|Overflow when unpacking long")  # fmt: skip
"""In torch's errors about tensors that no memory can hold; on a CPU they have no class of their own."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What makes a terminal do something else than show a letter: all control characters but the tab and the new line,
marks of direction, separators of lines, halves of pairs."""


class InputError(ValueError):
    """Input that cannot be used. The message is one sentence that names the flag or field and the remedy."""


class NonFiniteError(ValueError, ArithmeticError):
    """A model's logits, losses or attention are NaN or infinite, so there is no valid result."""


class DivergedError(ArithmeticError):
    """A loss, gradient or weights in training are not finite; nothing of that step was saved."""


class BrokenRunError(RuntimeError):
    """A process of a study broke; the message names its log. The others have written their checkpoints."""


class Interrupted(Exception):  # noqa: N818 – not a failure: the work can be resumed
    """Ctrl-C, a termination signal or the end of torchrun stopped the work; finished parts are in a checkpoint."""


class _Short(reprlib.Repr):
    """Representations that a sentence has room for; they are formed no further than they are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxset = 3, 10, 10, 10
        self.maxstring = self.maxother = self.maxlong = 100

    def repr_int(self, value: int, level: int) -> str:
        bits = value.bit_length()
        return super().repr_int(value, level) if bits < 10_000 else f"a number of {bits} bits"  # Python prints no more

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        """In the order of the file, unlike the base class."""
        if level <= 0:
            return "{...}"
        shown = [f"{self.repr1(key, level - 1)}: {self.repr1(value[key], level - 1)}" for key in list(value)[:10]]
        return "{" + ", ".join([*shown, *(["..."] if len(value) > 10 else [])]) + "}"


shown = _Short().repr
"""``repr`` for messages: the beginning of a value that is long or deep."""


def visible(text: str) -> str:
    """The text with control characters as Python writes them: a terminal shows ``\\x1b`` and obeys nothing."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def complain(message: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"antiphase: {visible(' '.join(message.splitlines()))}\n")
    sys.stderr.flush()


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had, by Python, numpy or torch."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error))))


@contextmanager
def naming(words: Mapping[str, str]) -> Iterator[None]:
    """Rename fields in error messages to the names that the user set: a flag, or another field."""
    try:
        yield
    except InputError as error:
        pattern = r"(?<![\w./-])(" + "|".join(map(re.escape, words)) + r")(?![\w/-]|\.\w)"
        message = re.sub(pattern, lambda found: words[found[1]], str(error)) if words else str(error)
        raise InputError(message) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'hidden_size'?``, or the list of known names if none is similar."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if matches:
        return f"; did you mean '{matches[0]}'?"
    return f"; known: {', '.join(names)}"
