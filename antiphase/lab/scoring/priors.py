"""Corrections of labels' scores for their prior, and measures of a set that show whether more than the prior moved.

A change of a model that favours one label for every prompt moves its accuracy, though it reads no prompt better. The
area under the curve of two labels and the mean-centred accuracy stay the same. N samples, L labels.
"""

from __future__ import annotations

import numpy
import torch
from scipy import stats
from torch import Tensor


def content_free_corrected(scores: Tensor, free: Tensor) -> Tensor:
    """Log scores (N, L) minus the log of the mean probability that labels have without content, free (F, L).

    Contextual calibration (Zhao et al. 2021, 2102.09690, section 5): p / p_free.
    """
    return scores.log_softmax(-1) - free.softmax(-1).mean(0).log()


def mean_centred(scores: Tensor) -> Tensor:
    """Log scores (N, L) minus each label's mean over the set: batch calibration (Zhou et al. 2024, 2309.17249)."""
    logs = scores.log_softmax(-1)
    return logs - logs.mean(0)


def right(scores: Tensor, targets: Tensor) -> Tensor:
    """Whether the likeliest label is the target: (N,) float64."""
    return (scores.argmax(-1) == targets).double()


def balanced_accuracy(scores: Tensor, targets: Tensor) -> float:
    """Mean over the labels that occur of the share of their samples that are answered right."""
    hits = right(scores, targets)
    return float(torch.stack([hits[targets == label].mean() for label in targets.unique()]).mean())


def area_under_curve(scores: Tensor, targets: Tensor) -> float | None:
    """Probability that a label has a higher share of the probability in a sample of its own than in another one.

    Shares are those after mean-centring, so that a label's prior does not matter with more than two labels either. The
    mean over labels (one against the rest); ties count half. None if only one label occurs.
    """
    shares = mean_centred(scores).softmax(-1)
    found = []
    for label in targets.unique().tolist():
        own = (targets == label).numpy()
        positive, negative = int(own.sum()), int((~own).sum())
        if negative:
            ranks = stats.rankdata(shares[:, label].numpy())
            found.append((ranks[own].sum() - positive * (positive + 1) / 2) / (positive * negative))
    return float(numpy.mean(found)) if found else None


def label_measures(scores: Tensor, targets: Tensor, free: Tensor | None = None) -> dict[str, float | None]:
    """Accuracy, balanced accuracy, area under the curve, and accuracy after each correction.

    Args:
        scores: (N, L) float64, log scores of labels.
        targets: (N,) int64.
        free: (F, L), scores after prompts without content.
    """
    return {
        "accuracy": float(right(scores, targets).mean()),
        "balanced_accuracy": balanced_accuracy(scores, targets),
        "auc": area_under_curve(scores, targets),
        "mean_centred_accuracy": float(right(mean_centred(scores), targets).mean()),
        "content_free_accuracy": None if free is None else float(
            right(content_free_corrected(scores, free), targets).mean()
        ),
    }  # fmt: skip
