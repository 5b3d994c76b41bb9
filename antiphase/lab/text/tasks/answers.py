"""Whether a written answer is right: exact match and F1 of words, as for SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Whether a text equals one of the answers, ignoring case, punctuation, articles and extra spaces (SQuAD).

    An empty text is no answer.
    """
    return float(bool(normalized(text)) and any(normalized(text) == normalized(answer) for answer in answers))


def f1(text: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, maximum over the answers (SQuAD)."""
    return max(_f1(normalized(text).split(), normalized(answer).split()) for answer in answers)


def _f1(found: list[str], right: list[str]) -> float:
    if not found or not right:
        return 0.0
    common = sum((Counter(found) & Counter(right)).values())
    return 2 * common / (len(found) + len(right))


def normalized(text: str) -> str:
    """The text in lower case without punctuation, articles and extra spaces, unless nothing else is left."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", plain).split()) or " ".join(text.lower().split())
