"""Accuracy, macro-F1 and confusion of a text classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.baselines.data.text_batches import EncodedTexts, sorted_batches
from antiphase.scoring.likelihood import check_logits

TOKENS = 1 << 14
"""Number of tokens in a batch."""


@torch.no_grad()
def class_probabilities(model: PreTrainedModel, texts: EncodedTexts) -> Tensor:
    """Probability of each label, (texts, labels) in fp32 on the CPU; the model's mode is restored.

    Raises:
        NonFiniteError: logits are not finite.
    """
    was_training = model.training
    model.eval()
    found = torch.empty(len(texts), model.config.num_labels)
    for rows in sorted_batches(texts, TOKENS):
        ids, mask = (tensor.to(model.device) for tensor in texts.batch(rows))
        logits = model(input_ids=ids, attention_mask=mask).logits
        check_logits(logits)
        found[rows] = logits.float().softmax(-1).cpu()
    model.train(was_training)
    return found


def confusion_matrix(predicted: Tensor, targets: Tensor, labels: int) -> Tensor:
    """(labels, labels) counts: rows are the true labels, columns the predicted ones."""
    return torch.bincount(targets * labels + predicted, minlength=labels**2).view(labels, labels)


def classification_scores(confusion: Tensor) -> dict[str, Any]:
    """Scores of a confusion matrix: ``samples``, ``correct``, ``accuracy`` and ``macro_f1``, each label's ``f1``.

    F1 is 2·TP / (2·TP + FP + FN), None for a label that neither occurs nor is predicted; macro-F1 is the unweighted
    mean over the others. Accuracy is None without samples.
    """
    right = confusion.diagonal()
    both = confusion.sum(0) + confusion.sum(1)  # 2·TP + FP + FN
    f1 = [2 * int(hit) / int(all_) if all_ else None for hit, all_ in zip(right, both, strict=True)]
    known = [value for value in f1 if value is not None]
    samples, correct = int(confusion.sum()), int(right.sum())
    return {
        "samples": samples,
        "correct": correct,
        "accuracy": correct / samples if samples else None,
        "macro_f1": sum(known) / len(known) if known else None,
        "f1": f1,
    }
