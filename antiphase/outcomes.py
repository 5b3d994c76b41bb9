"""Words for outcomes, of records as they are made and of older ones as they are shown.

Accuracies of models that either learned or did not are told as counts of seeds, never as a mean with an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GAP = 0.25
"""Share of the way from the guess to 1 that lies empty between models that learned and models that did not."""
APART = 3
"""Times the spread within groups by which groups of losses lie apart."""
NOT_SEEN = "not seen at this scale"
"""The word where a baseline is ahead at another scale than a claim's own: that contradicts nothing."""
Counts = dict[str, list[int]]
"""Arm to how many of its seeds learned, and of how many."""


@dataclass(frozen=True)
class LearnedThreshold:
    """The accuracy above which a model has learned."""

    guess: float
    """What a model scores that has not."""
    at: float

    @classmethod
    def of(cls, guess: float, threshold: float | None = None) -> LearnedThreshold:
        """At the threshold, or halfway from the guess to 1 where there is none above the guess."""
        return cls(guess, threshold if threshold is not None and threshold > guess else (1 + guess) / 2)

    def splits(self, values: Sequence[float | None]) -> bool:
        """Whether some of the values are above the threshold, others not, and a gap lies between.

        The gap is at least a quarter of the way from the guess to 1: a mean over it describes no model.
        """
        known = [value for value in values if value is not None]
        above, below = self._above(known), [value for value in known if value <= self.at]
        return bool(above and below) and min(above) - max(below) >= GAP * (1 - self.guess)

    def counts(self, by_arm: Mapping[str, Sequence[float | None]]) -> Counts | None:
        """How many seeds of each arm learned, if some arm's are split; None: means describe the models."""
        if not any(map(self.splits, by_arm.values())):
            return None
        return {
            arm: [len(self._above([value for value in values if value is not None])), len(values)]
            for arm, values in by_arm.items()
        }

    def _above(self, values: Sequence[float]) -> list[float]:
        return [value for value in values if value > self.at]


def follows(losses: Sequence[float | None], accuracies: Sequence[float | None], threshold: LearnedThreshold) -> bool:
    """Whether the losses of the same models fall into the same two groups.

    Then every model that did not learn has a higher loss than any that did, by more than three times what the losses of
    either group differ by.
    """
    pairs = [(one, two) for one, two in zip(losses, accuracies, strict=True) if one is not None and two is not None]
    learned, others = ([one for one, two in pairs if (two > threshold.at) == above] for above in (True, False))
    if not threshold.splits(accuracies) or not learned or not others:
        return False
    return min(others) - max(learned) > APART * max(max(group) - min(group) for group in (learned, others))


def learned_words(counts: Mapping[str, Sequence[int]]) -> str:
    """``softmax in 3 of 3 seeds, differential in 2 of 3 seeds``."""
    return ", ".join(
        f"{arm} in {learned} of {seeds} seed{'s' * (seeds != 1)}" for arm, (learned, seeds) in counts.items()
    )


def split_sentence(metric: str, counts: Mapping[str, Sequence[int]], threshold: LearnedThreshold) -> str:
    """What is said of a split accuracy."""
    return (
        f"{metric[0].upper()}{metric[1:]}: models either learned (above {100 * threshold.at:g} %) or did not; learned: "
        f"{learned_words(counts)}."
    )


def following_sentence(metric: str, arms: Sequence[str]) -> str:
    """What is said of a number that follows a split accuracy."""
    return (
        f"{metric[0].upper()}{metric[1:]}: follows who learned, so no mean of {' and '.join(arms)} is compared; the "
        "numbers stand by seed."
    )
