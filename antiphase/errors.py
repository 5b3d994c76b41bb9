"""Errors that the command line turns into one sentence: what a person gave cannot be used, or a run diverged
or was stopped.
"""

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
    """What a model computes is not finite: NaN or infinite logits, losses or attention are no result."""


class DivergedError(ArithmeticError):
    """A training came to a loss, gradient or weights that are not finite; nothing of that step was kept."""


class Interrupted(Exception):  # noqa: N818 – not a failure: the work can go on
    """Ctrl-C or a termination signal stopped the work; what was done is in a checkpoint."""


@contextmanager
def naming(words: Mapping[str, str]) -> Iterator[None]:
    """Name a field by what the person set: the flag or the other field that stands for it here."""
    try:
        yield
    except InputError as error:
        pattern = r"(?<![\w./-])(" + "|".join(map(re.escape, words)) + r")(?![\w/-]|\.\w)"
        message = re.sub(pattern, lambda found: words[found[1]], str(error)) if words else str(error)
        raise InputError(message) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'hidden_size'?``, or the list of known names when none is near."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if matches:
        return f"; did you mean '{matches[0]}'?"
    return f"; known: {', '.join(names)}"
