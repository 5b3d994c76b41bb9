"""Training of an encoder–decoder on pairs of texts, for a fixed number of epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.lineage.results import Epoch
from antiphase.lab.lineage.training.epochs import EpochTraining, train_epochs
from antiphase.ops.shapes import IGNORED_TARGET


@dataclass(frozen=True, kw_only=True)
class TranslatorTraining(EpochTraining):
    """Training settings of a translator: Adam, gradient clipping, a learning rate that rises and then falls to 0."""

    learning_rate: float = 3e-3
    """Learning rate of Adam at the end of the warm-up."""
    batch_size: int = 64
    epochs: int = 8
    """Number of passes over the training part."""
    warmup_steps: int = 100

    def rate(self, step: int, steps: int) -> float:
        return super().rate(step, steps) * (1 - step / steps)


def train_translator(
    model: PreTrainedModel,
    training: TranslatorTraining,
    sources: EncodedTexts,
    targets: EncodedTexts,
    *,
    seed: int,
    evaluate: Callable[[PreTrainedModel], Mapping[str, float]],
    report: Callable[[int, int], None] = lambda done, count: None,
) -> list[Epoch]:
    """Train in place; the model ends in evaluation mode.

    All random draws depend only on the seed, and the state of torch's generators is restored.

    Returns:
        The curve, with the result of ``evaluate`` after each epoch.
    """
    curve: list[Epoch] = []

    def loss_of(rows: list[int]) -> tuple[Tensor, int]:
        ids, mask = (tensor.to(model.device) for tensor in sources.batch(rows))
        labels = targets.labels(rows)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels.to(model.device)).loss
        return loss, int((labels != IGNORED_TARGET).sum())

    def after_epoch(epoch: int, step: int, train_loss: float) -> bool:
        found = evaluate(model)
        curve.append(
            Epoch(epoch=epoch, step=step, train_loss=train_loss, accuracy=found["accuracy"], loss=found["loss"])
        )
        return True

    train_epochs(model, training, targets, loss_of, seed=seed, after_epoch=after_epoch, report=report)
    model.eval()
    return curve
