"""Agreement across clauses: accuracy of the verb's number, by distance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from antiphase.lab.lineage.data.agreement import SHORTCUTS, AgreementSentence
from antiphase.lab.statistics.intervals import wilson_interval

GUESS_RATE = 0.5
"""Sentences come in pairs with opposite answers."""


def shortcut_scores(sentences: Sequence[AgreementSentence]) -> list[dict[str, Any]]:
    """What systems score that need no clauses, one row per distance and system; a tie counts half.

    Returns:
        ``shortcut``, ``distance``, ``accuracy``, and ``misled``, the accuracy on the sentences whose nearest noun has
        the other number (None without such sentences).
    """
    found = []
    for distance in sorted({sentence.distance for sentence in sentences}):
        here = [sentence for sentence in sentences if sentence.distance == distance]
        for name, answers in SHORTCUTS.items():
            right = [1 - abs(answers(sentence) - sentence.plural) for sentence in here]
            misled = [score for score, sentence in zip(right, here, strict=True) if sentence.misleading]
            found.append({
                "shortcut": name, "distance": distance, "accuracy": fmean(right),
                "misled": fmean(misled) if misled else None,
            })  # fmt: skip
    return found


def agreement_scores(plural: Sequence[bool], sentences: Sequence[AgreementSentence]) -> list[dict[str, Any]]:
    """One row per distance, shortest first.

    Args:
        plural: a system's answer for each sentence.

    Returns:
        ``distance``, ``samples``, ``correct``, ``accuracy``, its Wilson 95 % ``interval``, and, under ``misled``, the
        same for the sentences whose nearest noun has the other number. Always answering with the nearest noun's number
        is correct in half of all sentences and in none of these.

    Raises:
        ValueError: the numbers of answers and sentences differ.
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
