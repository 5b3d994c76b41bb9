"""Agreement across a clause: how often the verb's number is right, by the length of the clause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphase.baselines.data.agreement import AgreementSentence
from antiphase.uncertainty.intervals import wilson_interval

GUESS_RATE = 0.5
"""Sentences come in pairs with both answers."""


def agreement_scores(plural: Sequence[bool], sentences: Sequence[AgreementSentence]) -> list[dict[str, Any]]:
    """One row for each distance, the shortest first.

    Args:
        plural: what a system says of each sentence.

    Returns:
        ``distance``, ``samples``, ``correct``, ``accuracy``, its Wilson 95 % ``interval``, and the same under
        ``misled`` of those sentences whose nearest noun has the other number. Naming the nearest noun's number is right
        in half of the sentences and in none of those.

    Raises:
        ValueError: another number of answers than sentences.
    """
    if len(plural) != len(sentences):
        raise ValueError(f"{len(plural)} answers for {len(sentences)} sentences")
    answered = list(zip(plural, sentences, strict=True))
    return [
        {
            "distance": distance,
            **_score([(said, one) for said, one in answered if one.distance == distance]),
            "misled": _score([(said, one) for said, one in answered if one.distance == distance and one.misleading]),
        }
        for distance in sorted({sentence.distance for sentence in sentences})
    ]


def _score(answered: Sequence[tuple[bool, AgreementSentence]]) -> dict[str, Any]:
    correct = sum(bool(said) == sentence.plural for said, sentence in answered)
    return {
        "samples": len(answered),
        "correct": correct,
        "accuracy": correct / len(answered) if answered else None,
        "interval": wilson_interval(correct, len(answered)),
    }
