"""Errors that are reported in one sentence: unusable input, as data, and runs that diverged or were stopped; and how
text of strangers is shown in sentences and terminals.

Fields have Python's names here. A text mentions one through ``named``, which marks it, so that who shows the text can
name it otherwise: ``InputError(f"{named('data', 'book.txt')} is empty")`` reads ``data book.txt is empty`` in Python
and begins with the flag on the command line, which sets ``naming_fields`` (``cli/naming.py``).
"""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DIVERGED = 3
"""Exit code of a command whose training diverged."""
NO_MEMORY = re.compile(r"can't allocate memory|out of memory|[Ss]torage size calculation overflowed|overflow.* numel|"
                       r"integer multiplication overflow|Overflow when unpacking long")  # fmt: skip
"""In torch's errors about tensors that no memory can hold; on a CPU they have no class of their own."""


# ------------------------------------------------------------------------------ the errors


class InputError(ValueError):
    """Input that cannot be used. As text it is one sentence: ``FIELD PATH: problem; remedy``."""

    field: str | None
    """The argument or setting that gave the input, by its name in Python."""
    path: str | None
    """The file, folder or name that was given."""

    def __init__(
        self, problem: str, remedy: str = "", *, field: str | None = None, path: str | Path | None = None
    ) -> None:
        """
        Args:
            problem: what is wrong. One that begins with a space or a comma continues the path without a colon; one that
                begins with ``named(field, path)`` says both.
            remedy: what to do, if it is said.
        """
        super().__init__(problem, remedy)
        if field is None and path is None and (found := _HEAD.match(problem)):
            field, path, problem = found[1] or None, found[2], problem[found.end() :]
        self.field, self.path = field, None if path is None else str(path)
        self._texts = problem, remedy

    @property
    def problem(self) -> str:
        """What is wrong."""
        return worded(self._texts[0])

    @property
    def remedy(self) -> str:
        """What to do; empty if that is not said."""
        return worded(self._texts[1])

    @property
    def marked(self) -> str:
        """The sentence as part of another error's: its fields are still marked."""
        return _sentence("" if self.field is self.path is None else named(self.field or "", self.path), *self._texts)

    def __str__(self) -> str:
        return _sentence(_place(self.field, self.path), self.problem, self.remedy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Change the texts, in which fields are marked."""
        problem, remedy = self._texts
        self._texts = change(problem), change(remedy)

    def rename(self, fields: Mapping[str, str]) -> None:
        """Give fields other names, wherever the error mentions them."""
        self.rewrite(lambda text: _MARK.sub(lambda found: named(fields.get(found[1], found[1]), found[2]), text))
        self.field = fields.get(self.field, self.field) if self.field else None


class NonFiniteError(ValueError, ArithmeticError):
    """A model's logits, losses or attention are NaN or infinite, so there is no valid result."""


class DivergedError(ArithmeticError):
    """A loss, gradient or weights in training are not finite; nothing of that step was saved."""


class BrokenRunError(RuntimeError):
    """A process of a study broke; the message names its log. The others have written their checkpoints."""


class Interrupted(Exception):  # noqa: N818 – not a failure: the work can be resumed
    """Ctrl-C, a termination signal or the end of torchrun stopped the work; finished parts are in a checkpoint."""


@contextmanager
def renamed(fields: Mapping[str, str]) -> Iterator[None]:
    """Give fields of errors the names under which this caller was given them."""
    try:
        yield
    except InputError as error:
        error.rename(fields)
        raise


@contextmanager
def within(field: str, path: str | Path) -> Iterator[None]:
    """Errors of what a file holds, as errors of this file: ``FIELD PATH: FIELD PATH: problem; remedy``."""
    try:
        yield
    except InputError as error:
        raise InputError(error.marked, field=field, path=path) from error


# -------------------------------------------------------------------- fields within their texts

_MARK = re.compile("\ufdd0([^\ufdd0-\ufdd2]*)(?:\ufdd2([^\ufdd0-\ufdd2]*))?\ufdd1")
"""A field in a text, and what was given for it, between characters that Unicode keeps free for such uses."""
_HEAD = re.compile(f"{_MARK.pattern}(?:: |(?=[ ,]))")
_naming: Callable[[str], str] = str


def named(field: str, path: str | Path | None = None) -> str:
    """A field in the text of an error, and the path or name that was given for it, or nothing where there is no field.

    Args:
        field: an argument's name, or that of a setting in a file, which no naming changes: ``training.start_from``,
            or ``.data`` if it stands in no section.
    """
    given = "" if path is None else "\ufdd2" + re.sub("[\ufdd0-\ufdd2]", "\ufffd", str(path))
    return f"\ufdd0{field}{given}\ufdd1"


def worded(text: str) -> str:
    """A text with its fields as they are named where it is shown."""
    return _MARK.sub(lambda found: _place(found[1], found[2]), text)


def _place(field: str | None, path: str | None) -> str:
    known = [] if not field else [field.removeprefix(".") if "." in field else _naming(field)]
    return " ".join(known if path is None else [*known, path])


def _sentence(head: str, problem: str, remedy: str) -> str:
    continued = problem if not head or problem[:1] in (" ", ",", "") else f": {problem}"
    return f"{head}{continued}{remedy and f'; {remedy}'}".lstrip(" ")


@contextmanager
def naming_fields(naming: Callable[[str], str]) -> Iterator[None]:
    """Have ``naming`` say how errors name their fields: all of this process, also those that were raised before."""
    global _naming
    before, _naming = _naming, naming
    try:
        yield
    finally:
        _naming = before


# ------------------------------------------------------------ what strangers wrote, in a sentence

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What makes a terminal do something else than show a letter: all control characters but the tab and the new line,
marks of direction, separators of lines, halves of pairs."""


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


brief = _Short().repr
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


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'hidden_size'?``, or the list of known names if none is similar."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if matches:
        return f"; did you mean '{matches[0]}'?"
    return f"; known: {', '.join(names)}"
