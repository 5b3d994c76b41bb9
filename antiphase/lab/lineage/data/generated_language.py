"""Pairs of sentences in English and in an artificial language, whose alignment is known by construction.

Words correspond one to one. Three rules change the order:

- modifiers follow their noun, and a preposition follows the whole phrase: ``near red lamp`` becomes
  ``lamp red near``;
- a verb ends its clause, and places come before objects;
- of two clauses, the second comes first.

So ``old boat saw gull near lamp`` is written in the order ``boat old lamp near gull saw``. No word occurs twice in a
sentence, so every target word has exactly one source word, which is the correct alignment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from antiphase.base.randomness import keyed_generator
from antiphase.lab.lineage.data import agreement
from antiphase.lab.lineage.data.parallel import Pair

NOUNS = tuple(singular for singular, _ in agreement.NOUNS)
ADJECTIVES, PREPOSITIONS, VERBS = agreement.ADJECTIVES, agreement.PREPOSITIONS, agreement.VERBS
CONJUNCTIONS = ("while", "because", "before", "after")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
MOST_ADJECTIVES = 2
"""Largest number of adjectives before a noun."""


@dataclass(frozen=True, kw_only=True)
class Clause:
    """The words of a clause in the order of the source; a phrase ends with its noun."""

    subject: Sequence[str]
    verb: str
    object: Sequence[str]
    place: Sequence[str] = ()
    """Preposition and phrase; empty if there is none."""


@cache
def lexicon() -> dict[str, str]:
    """The artificial word for each English word; both sides have distinct words, and none in common."""
    generator = keyed_generator("lexicon")
    words = (*NOUNS, *ADJECTIVES, *PREPOSITIONS, *VERBS, *CONJUNCTIONS)
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    made = [first + second for first in syllables for second in syllables]
    order = torch.randperm(len(made), generator=generator).tolist()
    return {word: made[order[number]] for number, word in enumerate(words)}


def pair_of(clauses: Sequence[Clause], conjunction: str | None = None) -> Pair:
    """One clause, or two joined by a conjunction, with their translation."""
    words: list[str] = []
    orders: list[list[int]] = []
    for number, clause in enumerate(clauses):
        if number:
            assert conjunction is not None  # it joins the two clauses
            words.append(conjunction)
        places = {}
        for part in ("subject", "verb", "object", "place"):
            held = getattr(clause, part)
            held = [held] if isinstance(held, str) else held
            places[part] = list(range(len(words), len(words) + len(held)))
            words += held
        orders.append([index for part in ("subject", "place", "object", "verb") for index in reversed(places[part])])
    order = orders[-1]
    for earlier in reversed(orders[:-1]):
        order = [*order, words.index(conjunction or ""), *earlier]
    target = " ".join(lexicon()[words[index]] for index in order)
    return Pair(place="generated", source=" ".join(words), target=target, alignment=tuple(order))


def generated_pairs(count: int, *key: object, unlike: Collection[str] = ()) -> list[Pair]:
    """Distinct pairs, a function of ``key``; none has a source sentence in ``unlike``."""
    draw = _Draw(keyed_generator("made language", *key))
    found: dict[str, Pair] = {}
    while len(found) < count:
        pair = draw.sentence()
        if pair.source not in unlike:
            found.setdefault(pair.source, pair)
    return list(found.values())


class _Draw:
    """Random sentences from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.left: dict[Sequence[str], list[str]] = {}
        """Words of each kind that the sentence does not contain yet."""

    def sentence(self) -> Pair:
        """One or two clauses with equal probability; no word occurs twice."""
        self.left = {kind: self._shuffled(kind) for kind in (NOUNS, ADJECTIVES, PREPOSITIONS, VERBS, CONJUNCTIONS)}
        clauses = [self._clause() for _ in range(1 + self._number(2))]
        return pair_of(clauses, self.left[CONJUNCTIONS].pop())

    def _clause(self) -> Clause:
        place = [self.left[PREPOSITIONS].pop(), *self._phrase()] if self._number(2) else []
        return Clause(subject=self._phrase(), verb=self.left[VERBS].pop(), object=self._phrase(), place=place)

    def _phrase(self) -> list[str]:
        described = [
            self.left[ADJECTIVES].pop() for _ in range(self._number(MOST_ADJECTIVES + 1)) if self.left[ADJECTIVES]
        ]
        return [*described, self.left[NOUNS].pop()]

    def _shuffled(self, words: Sequence[str]) -> list[str]:
        return [words[index] for index in torch.randperm(len(words), generator=self.generator).tolist()]

    def _number(self, below: int) -> int:
        return int(torch.randint(below, (1,), generator=self.generator))
