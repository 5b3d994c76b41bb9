"""Cuts text before single white space, where tokens do not change: pieces that can be tokenized by themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

from tokenizers import Tokenizer

# A single white space between two other characters: byte-level and word tokenizers split before it anyway
CUT = re.compile(r"(?<=\S)(?=\s\S)")
CUT_TRIES = 16
WINDOW = 64
"""Number of characters on either side of a cut that must tokenize equally with and without it."""

Unchanged = Callable[[str, int], bool]
"""Whether a cut of a text at a position leaves all of its tokens unchanged."""


def unchanged_by(backend: Tokenizer) -> Unchanged:
    """The check of cuts for a tokenizer, on the characters around a cut."""

    def unchanged(text: str, position: int) -> bool:
        left, right = text[max(position - WINDOW, 0) : position], text[position : position + WINDOW]
        whole, *parts = backend.encode_batch_fast([left + right, left, right], add_special_tokens=False)
        return bool(whole.ids == list(chain.from_iterable(part.ids for part in parts)))

    return unchanged


def pieces(text: str, size: int, unchanged: Unchanged | None = None) -> Iterator[str]:
    """Consecutive pieces of ``text``, cut before single white space.

    Args:
        size: number of characters per piece; a little more if the next white space is far away.
        unchanged: takes a text and a position and returns whether a cut there leaves all tokens unchanged; without such
            a position nearby, the piece grows. None means that any cut is allowed, and text without white space is cut
            at ``size``.
    """
    start = 0
    position = size
    while position < len(text):
        found = cut(text, position, size, unchanged)
        if found is None:
            position += size
            continue
        yield text[start:found]
        start, position = found, found + size
    if start < len(text):
        yield text[start:]


def cut(text: str, position: int, size: int, unchanged: Unchanged | None) -> int | None:
    """A position for a cut in the ``size`` characters from ``position`` on, or None."""
    for tried, match in enumerate(CUT.finditer(text, position, position + size + 2)):
        if unchanged is None or unchanged(text, match.start()):
            return match.start()
        if tried + 1 == CUT_TRIES:
            return None
    rest_is_short = position + size >= len(text)
    return position if unchanged is None and not rest_is_short else None
