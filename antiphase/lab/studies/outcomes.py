"""Descriptions of outcomes.

If some models learned and others did not, accuracies are reported as counts of seeds, never as a mean with an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GAP = 0.25
"""Smallest gap between models that learned and those that did not, as a share of the range from guessing to 1."""
APART = 3
"""Smallest distance between groups of losses, as a multiple of the spread within groups."""
Counts = dict[str, list[int]]
"""By arm, how many of its seeds learned, and the number of seeds."""


@dataclass(frozen=True)
class LearnedThreshold:
    """The accuracy above which a model has learned."""

    guess: float
    """Accuracy of guessing, which is that of a model that has not learned."""
    at: float

    @classmethod
    def of(cls, guess: float, threshold: float | None = None) -> LearnedThreshold:
        """Use the given threshold, or the midpoint between guessing and 1 if there is none above guessing."""
        return cls(guess, threshold if threshold is not None and threshold > guess else (1 + guess) / 2)

    def splits(self, values: Sequence[float | None]) -> bool:
        """Whether some values are above the threshold and others are not, with a gap between them.

        The gap is at least ``GAP`` of the range from guessing to 1, so that a mean would describe no model.
        """
        known = [value for value in values if value is not None]
        above, below = self._above(known), [value for value in known if value <= self.at]
        return bool(above and below) and min(above) - max(below) >= GAP * (1 - self.guess)

    def counts(self, by_arm: Mapping[str, Sequence[float | None]]) -> Counts | None:
        """How many seeds of each arm learned, if the seeds of some arm are split; None if means are adequate."""
        if not any(map(self.splits, by_arm.values())):
            return None
        return {
            arm: [len(self._above([value for value in values if value is not None])), len(values)]
            for arm, values in by_arm.items()
        }

    def _above(self, values: Sequence[float]) -> list[float]:
        return [value for value in values if value > self.at]


def follows(losses: Sequence[float | None], accuracies: Sequence[float | None], threshold: LearnedThreshold) -> bool:
    """Whether the losses of the same models form the same two groups.

    This means that every model that did not learn has a higher loss than any model that did, by more than ``APART``
    times the spread of the losses within either group.
    """
    pairs = [(one, two) for one, two in zip(losses, accuracies, strict=True) if one is not None and two is not None]
    learned, others = ([one for one, two in pairs if (two > threshold.at) == above] for above in (True, False))
    if not threshold.splits(accuracies) or not learned or not others:
        return False
    return min(others) - max(learned) > APART * max(max(group) - min(group) for group in (learned, others))


def learned_words(counts: Mapping[str, Sequence[int]]) -> str:
    """For example ``softmax in 3 of 3 seeds, differential in 2 of 3 seeds``."""
    return ", ".join(
        f"{arm} in {learned} of {seeds} seed{'s' * (seeds != 1)}" for arm, (learned, seeds) in counts.items()
    )


def split_sentence(metric: str, counts: Mapping[str, Sequence[int]], threshold: LearnedThreshold) -> str:
    """A sentence about a split accuracy."""
    return (
        f"{metric[0].upper()}{metric[1:]}: models either learned (above {100 * threshold.at:g} %) or did not; learned: "
        f"{learned_words(counts)}."
    )


def following_sentence(metric: str, arms: Sequence[str]) -> str:
    """A sentence about a metric that follows a split accuracy."""
    return (
        f"{metric[0].upper()}{metric[1:]}: depends on who learned, so no mean of {' and '.join(arms)} is compared; the "
        "numbers are given by seed."
    )
