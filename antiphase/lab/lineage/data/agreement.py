"""Sentences whose verb must agree with a subject several words earlier, across inserted clauses with other nouns.

A sentence is cut off before a verb, and the task is to predict that verb's number, as in Linzen, Dupoux and Goldberg
(2016, 1611.01368, section 3). Clauses are nested, and the cut follows one of them:

    beside the boats , the key that the child near the gulls moved above the lamp …   → singular, of key
    beside the boats , the key that the child near the gulls …                        → singular, of child

Sentences come in pairs that differ only in the number of that subject. So any system that uses only the other words
(the nearest noun, the opening's, the length) is correct in exactly half of the sentences; only information from the
subject scores more. The subject depends on how many clauses have been closed by a verb, so no marker next to a noun
identifies it, and an opening with its own noun varies the positions.

More than a half does not mean that clauses are counted: ``SHORTCUTS`` sees the subject often enough without that. With
two subjects, the least that solves the task is to remember both and whether a verb has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from antiphase.base.errors import InputError
from antiphase.lab.lineage.names import PHRASE

NOUNS = (
    ("boat", "boats"), ("key", "keys"), ("door", "doors"), ("gull", "gulls"), ("lamp", "lamps"), ("child", "children"),
    ("letter", "letters"), ("table", "tables"), ("mouse", "mice"), ("tree", "trees"), ("woman", "women"),
    ("wolf", "wolves"), ("stone", "stones"), ("bridge", "bridges"), ("goose", "geese"), ("ship", "ships"),
)  # fmt: skip
"""Singular and plural forms."""
ADJECTIVES = ("old", "grey", "small", "wet", "red", "quiet", "broken", "heavy", "tall", "narrow")
PREPOSITIONS = ("near", "beside", "behind", "above", "below", "against")
VERBS = ("saw", "followed", "hid", "moved", "touched", "passed")
"""Past forms, which do not show number."""
OTHERS = ("the", "that", ",")
LABELS = ("singular", "plural")
CLAUSE = 4
"""Words of a clause without phrases: that, article, noun, verb."""
MOST_ADJECTIVES = 3
"""Largest number of adjectives before a noun."""
Token = str | tuple[int, bool]
"""A word, or a noun as its index in ``NOUNS`` and whether it is plural."""


@dataclass(frozen=True)
class AgreementSentence:
    """A sentence up to (without) one of its verbs."""

    text: str
    """Words and commas, separated by spaces."""
    nouns: tuple[bool, ...]
    """Whether each noun is plural, in the order of the text."""
    subject: int
    """Index in ``nouns`` of the verb's subject."""
    clauses: int
    """Number of complete clauses between the subject and the cut."""
    distance: int
    """Number of words between the subject and the cut."""

    @property
    def plural(self) -> bool:
        """The verb's number, which is that of its subject."""
        return self.nouns[self.subject]

    @property
    def misleading(self) -> bool:
        """Whether the noun nearest to the cut has the other number."""
        return self.nouns[-1] != self.plural


SHORTCUTS: Mapping[str, Callable[[AgreementSentence], float]] = {
    "nearest noun": lambda sentence: float(sentence.nouns[-1]),
    "first subject": lambda sentence: float(sentence.nouns[1]),
    "most nouns": lambda sentence: (1 + np.sign(2 * sum(sentence.nouns) - len(sentence.nouns))) / 2,
}
"""Systems that need no clauses, by name: their share of the answer "plural", 0.5 for a tie. The first subject is the
noun after the opening."""


def words() -> list[str]:
    """The vocabulary of the sentences."""
    return [*OTHERS, *PREPOSITIONS, *VERBS, *ADJECTIVES, *(form for noun in NOUNS for form in noun)]


def agreement_pairs(
    count: int, distance: int, generator: torch.Generator, *, depth: int = 2
) -> list[AgreementSentence]:
    """``count`` pairs, 2 · ``count`` sentences: neighbours that differ only in the number of one subject.

    Args:
        distance: number of words between subject and cut.
        depth: number of subjects in a sentence, each except the first in a clause about the previous one. The number of
            complete clauses before the cut is drawn from those that fit in the distance.

    Raises:
        InputError: the distance is too short, or there are fewer than two subjects.
    """
    if depth < 2:
        raise InputError(f"--depth must be at least 2, a sentence with a clause in it; got {depth}")
    if distance < PHRASE:
        raise InputError(f"distances must be at least {PHRASE} words, one phrase with a noun; got {distance}")
    draw = _Draw(generator)
    return [sentence for _ in range(count) for sentence in _pair(distance, depth, draw)]


class _Draw:
    """Random choices from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def number(self, below: int) -> int:
        return int(torch.randint(below, (1,), generator=self.generator))

    def one(self, of: tuple[str, ...]) -> str:
        return of[self.number(len(of))]

    def noun_phrase(self, adjectives: int) -> list[Token]:
        """Article, adjectives and noun."""
        described = [self.one(ADJECTIVES) for _ in range(adjectives)]
        return ["the", *described, (self.number(len(NOUNS)), self.number(2) == 1)]

    def shared_out(self, count: int, places: int, *, most: int) -> list[int]:
        """Distribute ``count`` items over places that take ``most`` each."""
        held = [0] * places
        for _ in range(count):
            free = [place for place, holds in enumerate(held) if holds < most]
            held[free[self.number(len(free))]] += 1
        return held


def _pair(distance: int, depth: int, draw: _Draw) -> list[AgreementSentence]:
    shapes = [
        (clauses, phrases)
        for clauses in range(depth)
        for phrases in range(distance // PHRASE + 1)
        if 0 <= distance - CLAUSE * clauses - PHRASE * phrases <= MOST_ADJECTIVES * (clauses + phrases)
    ]
    possible = sorted({clauses for clauses, _ in shapes})
    clauses = possible[draw.number(len(possible))]
    counts = [phrases for number, phrases in shapes if number == clauses]
    begin: list[Token] = [draw.one(PREPOSITIONS), *draw.noun_phrase(draw.number(MOST_ADJECTIVES + 1)), ","]
    for level in range(depth - clauses):
        begin += [*(["that"] if level else []), *draw.noun_phrase(draw.number(MOST_ADJECTIVES + 1))]
    asked = begin.pop()
    assert isinstance(asked, tuple)  # a phrase ends with its noun
    subject = sum(isinstance(token, tuple) for token in begin)
    inserted = _inserted(distance, clauses, counts[draw.number(len(counts))], draw)
    found = []
    for plural in (False, True):
        tokens = [*begin, (asked[0], plural), *inserted]
        found.append(
            AgreementSentence(
                text=" ".join(token if isinstance(token, str) else NOUNS[token[0]][token[1]] for token in tokens),
                nouns=tuple(token[1] for token in tokens if not isinstance(token, str)),
                subject=subject, clauses=clauses, distance=distance,
            )
        )  # fmt: skip
    return found


def _inserted(distance: int, clauses: int, phrases: int, draw: _Draw) -> list[Token]:
    """Exactly ``distance`` words: nested clauses, and phrases after the last subject and after each verb."""
    free = distance - CLAUSE * clauses - PHRASE * phrases
    adjectives = draw.shared_out(free, clauses + phrases, most=MOST_ADJECTIVES)
    behind = draw.shared_out(phrases, clauses + 1, most=phrases)
    words: list[Token] = []
    for _ in range(clauses):
        words += ["that", *draw.noun_phrase(adjectives.pop())]
    for place, count in enumerate(behind):
        if place:
            words.append(draw.one(VERBS))
        for _ in range(count):
            words += [draw.one(PREPOSITIONS), *draw.noun_phrase(adjectives.pop())]
    return words
