"""The best score of a system that does not read the prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from antiphase.lab.text.tasks.answers import exact_match, f1, normalized
from antiphase.lab.text.tasks.samples import Sample

CONSTANT_ANSWERS = 100
"""Number of most common answers among which the best constant one is searched."""


def best_guess(samples: Sequence[Sample]) -> float:
    """Accuracy of guessing among the options, or of always choosing the commonest, whichever is higher."""
    guess = sum(1 / len(sample.options) for sample in samples) / len(samples)
    targets = torch.tensor([sample.target for sample in samples])
    return max(guess, int(torch.bincount(targets).max()) / len(samples))


def best_constant(samples: Sequence[Sample]) -> float:
    """Best score from giving the same answer to all open questions, over their correct answers."""
    answers = Counter(answer for sample in samples for answer in {normalized(answer) for answer in sample.answers})
    metric = exact_match if samples[0].metric == "exact_match" else f1
    tried = [answer for answer, _ in answers.most_common(CONSTANT_ANSWERS)]
    return max(sum(metric(answer, sample.answers) for sample in samples) / len(samples) for answer in tried)


def by_length(samples: Sequence[Sample], *, longest: bool) -> float:
    """Accuracy of always choosing the option with the most tokens, or with the fewest; ties share the credit."""
    right = 0.0
    for sample in samples:
        lengths = [len(option) for option in sample.options]
        best = max(lengths) if longest else min(lengths)
        right += (lengths[sample.target] == best) / lengths.count(best)
    return right / len(samples)
