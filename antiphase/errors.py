"""Errors that the command line reports in one sentence: unusable input, and runs that diverged or were stopped."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

DIVERGED = 3
"""Exit code of a command whose training diverged."""


class InputError(ValueError):
    """Input that cannot be used. The message is one sentence that names the flag or field and the remedy."""


class NonFiniteError(ValueError, ArithmeticError):
    """A model's logits, losses or attention are NaN or infinite, so there is no valid result."""


class DivergedError(ArithmeticError):
    """A loss, gradient or weights in training are not finite; nothing of that step was saved."""


class Interrupted(Exception):  # noqa: N818 – not a failure: the work can be resumed
    """Ctrl-C or a termination signal stopped the work; finished parts are in a checkpoint."""


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
