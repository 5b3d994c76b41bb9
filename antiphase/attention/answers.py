"""Scores of a known answer of one or more tokens, given a model's logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.base.errors import NonFiniteError


@dataclass(frozen=True)
class AnswerScores:
    """Scores of answers, one number each (...), on the CPU."""

    log_probability: Tensor
    """Of the whole answer given the text before it, in nats, fp64."""
    log_odds: Tensor
    """log p - log(1 - p) of the same, fp64: unlike log p it still changes where the answer is nearly certain."""
    is_right: Tensor
    """Whether every token of the answer is the most likely one, bool."""


def answer_scores(logits: Tensor, targets: Tensor) -> AnswerScores:
    """Scores of answers.

    Args:
        logits: (..., A, vocabulary), each given the true tokens before it.
        targets: token ids (..., A); negative ids are skipped.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    logits, targets = logits.double(), targets.to(logits.device)
    known = targets >= 0
    wanted = targets.clamp(min=0).unsqueeze(-1)
    chosen = logits.gather(-1, wanted).squeeze(-1)
    others = logits.scatter(-1, wanted, -torch.inf).logsumexp(-1)
    # Through the odds of a token, whose logarithm is exact where 1 - p is lost to rounding.
    logs = torch.nn.functional.logsigmoid(chosen - others).where(known, 0.0).sum(-1)
    odds = logs - torch.log(-torch.expm1(logs))
    if not bool(odds[known.any(-1)].isfinite().all()):
        raise NonFiniteError("its logits are NaN or infinite, so nothing can be measured")
    is_right = ((logits.argmax(-1) == targets) | ~known).all(-1)
    return AnswerScores(logs.cpu(), odds.cpu(), is_right.cpu())
