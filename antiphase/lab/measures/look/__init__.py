"""Attention of every layer and head on one text: ``antiphase look``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.base.typed import OPTIONAL
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import LoadingSettings
from antiphase.lab.settings.flags import argument, flag

LONGEST = 512
"""Largest number of tokens: 12 layers with 12 maps then give a record of 38 MB and a page of about 25 MB."""


@dataclass(frozen=True, kw_only=True)
class LookSettings(LoadingSettings):
    """Show the attention of every layer and head on one text, as a record and an interactive page that opens offline.

    Example: [bold]antiphase look MODEL --text "The cat sat on the mat." --output runs/look[/]
    """

    folder = "new"
    counted = "texts"

    name: str = argument("MODEL", "Local folder, GGUF file or Hub name of a model.")
    text: str | None = flag("Text to look at.", default=None)
    text_file: str | None = flag("A UTF-8 file whose text to look at; - reads the standard input.", default=None)
    target: str | None = flag("For encoder–decoders: the text that the decoder writes.", default=None)
    length: int = flag("Maximum number of tokens; the page grows with its square.", default=256)
    truncate: bool = flag("Look at the beginning of a text that is longer than --length.", default=False)

    def check(self) -> None:
        super().check()
        if (self.text is None) == (self.text_file is None):
            raise InputError(
                f"--text and --text-file are {'missing' if self.text is None else 'both given'}; give one of them"
            )
        check_texts({"text": self.text, "text_target": self.target}, self.length)


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
            f"{named('length')} must lie between 1 and {LONGEST}, got {length}: maps grow with its square; for longer "
            "texts use `antiphase probe`"
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
    """``global``, ``causal``, ``local`` or ``other``."""
    window: int | None
    """Largest number of keys that a query sees; None without a window."""


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


RESULT = Look
