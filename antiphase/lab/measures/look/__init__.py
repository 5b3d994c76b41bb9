"""Attention of every layer and head on one text: ``antiphase look``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.base.typed import OPTIONAL
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import LoadingSettings
from antiphase.lab.settings.flags import argument, flag

EXACT = 512
"""Largest number of tokens seen one by one: 12 layers with 12 maps then give a record of 38 MB and a page of 25 MB."""
LONGEST = 8192
"""Largest number of tokens, seen by segments."""
SEGMENTS = 256
"""Largest number of segments of a long text."""
LARGEST, QUERIES, KEYS = "largest", "queries", "keys"
"""Sequences of a long text: its segments once more, where a cell is the largest weight in it; and a part of its tokens.
"""


@dataclass(frozen=True, kw_only=True)
class LookSettings(LoadingSettings):
    """Show the attention of every layer and head on one text, as a record and an interactive page that opens offline.

    A text of more than 512 tokens is shown by segments; --queries and --keys then show a part of it token by token.
    Example: [bold]antiphase look MODEL --text "The cat sat on the mat." --output runs/look[/]
    """

    folder = "new"
    counted = "texts"

    name: str = argument("MODEL", "Local folder, GGUF file or Hub name of a model.")
    text: str | None = flag("Text to look at.", default=None)
    text_file: str | None = flag("A UTF-8 file whose text to look at; - reads the standard input.", default=None)
    target: str | None = flag("For encoder–decoders: the text that the decoder writes.", default=None)
    length: int = flag(
        "Maximum number of tokens, at most 8192; up to 512, the page grows with its square.", default=256
    )
    queries: str | None = flag("Of a long text, the tokens whose attention to look at: 4000:4100.", default=None)
    keys: str | None = flag("With --queries: the tokens that they may look at, such as 90:200.", default=None)
    truncate: bool = flag("Look at the beginning of a text that is longer than --length.", default=False)

    def check(self) -> None:
        super().check()
        if (self.text is None) == (self.text_file is None):
            raise InputError(
                f"--text and --text-file are {'missing' if self.text is None else 'both given'}; give one of them"
            )
        check_texts({"text": self.text, "text_target": self.target}, self.length)
        self.span()

    def span(self) -> dict[str, range]:
        """The chosen queries and keys by name; empty for the whole text.

        Raises:
            InputError: one of them is missing, or no range.
        """
        given = {name: value for name, value in (("queries", self.queries), ("keys", self.keys)) if value is not None}
        if len(given) == 1:
            raise InputError("--queries and --keys are given together or not at all")
        return {name: checked_range(name, value.split(":")) for name, value in given.items()}


def checked_range(name: str, ends: Sequence[int | str]) -> range:
    """The tokens from the first of two numbers to before the second.

    Raises:
        InputError: these are no such numbers.
    """
    try:
        first, end = map(int, ends)
    except (TypeError, ValueError):
        first = end = 0
    if not 0 <= first < end or end - first > EXACT:
        shown = ":".join(map(str, ends))
        raise InputError(f"{named(name)} must be two numbers such as 90:200, at most {EXACT} apart, got {shown}")
    return range(first, end)


def check_texts(texts: Mapping[str, str | None], length: int) -> None:
    """
    Args:
        texts: by the name of their fields.

    Raises:
        InputError: a text is empty or cannot be read, or the largest number of tokens is out of range.
    """
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise InputError(f"{named(name)} must be one text, got {type(text).__name__}")
        if text is not None and not text.strip():
            raise InputError(f"{named(name)} is empty; give a sentence to look at")
        if any("\ud800" <= letter <= "\udfff" for letter in text or ""):  # bytes from the shell that are not UTF-8
            raise InputError(f"{named(name)} is not valid Unicode; write it in UTF-8")
    if not 1 <= length <= LONGEST:
        raise InputError(
            f"{named('length')} must lie between 1 and {LONGEST}, got {length}; for longer texts use `antiphase probe`"
        )


SETTINGS = LookSettings


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token of a text."""

    id: int
    piece: str
    """In the vocabulary."""
    text: str
    word: int | None
    """Index of its word; None for special tokens, and if the tokenizer does not give words."""


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """A text and its tokens."""

    text: str
    tokens: list[Token]


@dataclass(frozen=True, kw_only=True)
class StoredMaps:
    """The maps of one layer, which are in the record's arrays."""

    layer: int
    heads: int
    maps_per_head: int
    queries: str
    """Name of the sequence of queries."""
    keys: str
    mask: int
    """Index of its mask."""
    arrays: str
    """The beginning of the arrays' names."""


@dataclass(frozen=True, kw_only=True)
class StoredMask:
    """A mask, which is in the record's arrays."""

    array: str
    kind: str
    """``global``, ``causal``, ``local``, ``other``, or ``part`` of an unknown one."""
    window: int | None
    """Largest number of keys, or segments of them, that a query sees; None without a window."""


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """How the model was trained, if it was trained here."""

    arm: str
    seed: int | None
    curve: list[dict[str, Any]]
    """As in the record of the training."""


@dataclass(frozen=True, kw_only=True)
class Look(Result):
    """Result of ``antiphase look``."""

    model: str
    model_type: str
    attention_type: str | None
    sequences: dict[str, TokenSequence]
    """By name."""
    maps: list[StoredMaps]
    masks: list[StoredMask]
    runs: list[LearningCurve]
    without_attention: list[int] | None = field(default=None, metadata=OPTIONAL)
    """Layers of a hybrid model that attend to nothing, such as those of a state-space model."""
    segment: int | None = field(default=None, metadata=OPTIONAL)
    """Tokens of each row and column of a long text."""
    chosen: str | None = field(default=None, metadata=OPTIONAL)
    """The head that is shown large, as ``LAYER.HEAD``."""


RESULT = Look
