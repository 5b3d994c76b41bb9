"""What the results of several commands and studies of the earlier models have in common: curves, scores, texts."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphase.base.typed import OPTIONAL


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Losses and accuracy after an epoch, on the development part of a classifier or the test part of a translator."""

    epoch: int
    """From 1."""
    step: int
    train_loss: float | None
    """Mean over the epoch in nats per text of a classifier, per target token of a translator."""
    accuracy: float
    loss: float | None
    best: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether its weights are kept; None without early stopping."""


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Repeated texts among rows; texts count as one where they differ in capitals and white space alone."""

    rows: int
    texts: int
    """Number of distinct texts."""
    repeated_rows: int
    """Number of rows that repeat an earlier text."""
    texts_with_several_labels: int


@dataclass(frozen=True, kw_only=True)
class ClassificationScore:
    """Score of a classifier."""

    samples: int
    correct: int
    accuracy: float | None
    """None without samples."""
    macro_f1: float | None
    """Unweighted mean of F1 over the labels that occur or are predicted."""


@dataclass(frozen=True, kw_only=True)
class SentenceScore:
    """Score of written sentences against references."""

    samples: int
    exact: int
    exact_match: float
    """Share of outputs equal to the reference, including the end."""
    tokens_in_place: float
    """Share of the references' tokens that the output has at the same position."""
    ended: float
    """Share of outputs that end."""


@dataclass(frozen=True, kw_only=True)
class AlignmentAccuracy:
    """Share of target words with the largest weight of cross-attention on the correct source word."""

    words: int
    heads: list[list[float]]
    """(layers, heads)"""
    layers: list[float]
    """By the mean of a layer's heads."""
    chance: float
    """Share of a random source word."""
    same_place: float
    """Share of the source word at the target word's position."""


SHOWN = 10
"""Held-out texts whose outputs a run keeps: the first ones."""


@dataclass(frozen=True, kw_only=True)
class ShownOutput:
    """A held-out text, what is right, and what a model made of it."""

    text: str
    right: str
    output: str
