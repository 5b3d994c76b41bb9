"""Accuracy, macro-F1 and confusion of a text classifier."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.modes import evaluation_mode
from antiphase.lab.lineage.data.text_batches import EncodedTexts, sorted_batches
from antiphase.lab.lineage.results import ClassificationScore
from antiphase.lab.pages.tables import mean_of_present
from antiphase.lab.scoring.likelihood import check_logits

TOKENS = 1 << 14
"""Number of tokens in a batch."""


@torch.no_grad()
def class_probabilities(model: PreTrainedModel, texts: EncodedTexts) -> Tensor:
    """Probability of each label, (texts, labels) in fp32 on the CPU; the model's mode is restored.

    Raises:
        NonFiniteError: logits are not finite.
    """
    found = torch.empty(len(texts), model.config.num_labels)
    with evaluation_mode(model):
        for rows in sorted_batches(texts, TOKENS):
            ids, mask = (tensor.to(model.device) for tensor in texts.batch(rows))
            logits = model(input_ids=ids, attention_mask=mask).logits
            check_logits(logits)
            found[rows] = logits.float().softmax(-1).cpu()
    return found


def confusion_matrix(predicted: Tensor, targets: Tensor, labels: int) -> Tensor:
    """(labels, labels) counts: rows are the true labels, columns the predicted ones."""
    return torch.bincount(targets * labels + predicted, minlength=labels**2).view(labels, labels)


def classification_scores(confusion: Tensor) -> ClassificationScore:
    """Scores of a confusion matrix; macro-F1 leaves out labels that neither occur nor are predicted."""
    samples, correct = int(confusion.sum()), int(confusion.diagonal().sum())
    return ClassificationScore(
        samples=samples,
        correct=correct,
        accuracy=correct / samples if samples else None,
        macro_f1=mean_of_present(label_f1(confusion)),
    )


def label_f1(confusion: Tensor) -> list[float | None]:
    """F1 of each label, 2·TP / (2·TP + FP + FN); None for a label that neither occurs nor is predicted."""
    both = confusion.sum(0) + confusion.sum(1)  # 2·TP + FP + FN
    return [2 * int(hit) / int(all_) if all_ else None for hit, all_ in zip(confusion.diagonal(), both, strict=True)]


def development_scores(model: PreTrainedModel, texts: EncodedTexts, targets: Tensor) -> dict[str, float]:
    """``accuracy``, and ``loss`` in nats per text, for early stopping; ``targets`` (texts,) are label indices."""
    found = class_probabilities(model, texts)
    right = found[torch.arange(len(found)), targets]
    accuracy = (found.argmax(1) == targets).float().mean()
    return {"accuracy": float(accuracy), "loss": float(-right.clamp(min=1e-30).log().mean())}
