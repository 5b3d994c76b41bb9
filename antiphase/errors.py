"""Errors that the command line turns into one sentence: what a person gave cannot be used, or a run was stopped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used. The message is one sentence that names the flag or field and the remedy."""


class Interrupted(Exception):  # noqa: N818 – not a failure: the work can go on
    """Ctrl-C or a termination signal stopped the work; what was done is in a checkpoint."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'hidden_size'?``, or the list of known names when none is near."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if matches:
        return f"; did you mean '{matches[0]}'?"
    return f"; known: {', '.join(names)}"
