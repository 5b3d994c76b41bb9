"""Training of a text classifier: epochs over labelled texts with early stopping on a development part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor
from transformers import PreTrainedModel

from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.lineage.results import Epoch
from antiphase.lab.lineage.training.epochs import EpochTraining, train_epochs


@dataclass(frozen=True, kw_only=True)
class ClassifierTraining(EpochTraining):
    """Training settings of a classifier: Adam, early stopping, gradient clipping.

    The batch size is that of Kim (2014, 1408.5882, section 3.1).
    """

    patience: int = 3
    """Number of epochs without improvement on the development part after which training stops."""

    def counts(self) -> dict[str, int]:
        return {**super().counts(), "patience": 1}


def train_classifier(
    model: PreTrainedModel,
    training: ClassifierTraining,
    texts: EncodedTexts,
    targets: Tensor,
    *,
    seed: int,
    evaluate: Callable[[PreTrainedModel], Mapping[str, float]],
    report: Callable[[int, int], None] = lambda done, count: None,
) -> list[Epoch]:
    """Train in place; the model ends with the weights of its best epoch, in evaluation mode.

    An epoch is better if its ``accuracy`` on the development part is higher, or equal with a lower ``loss``. All random
    draws depend only on the seed, and the state of torch's generators is restored.

    Args:
        targets: (texts,) label indices.
        evaluate: returns ``accuracy`` and ``loss`` on the development part.
        report: called after each step with the number of finished steps and the largest possible number.

    Returns:
        The curve, in which ``best`` is true for the epoch whose weights are kept.
    """
    curve: list[Epoch] = []
    best, kept, chosen, waited = (-1.0, 0.0), {}, 0, 0

    def loss_of(rows: list[int]) -> tuple[Tensor, int]:
        ids, mask = (tensor.to(model.device) for tensor in texts.batch(rows))
        return model(input_ids=ids, attention_mask=mask, labels=targets[rows].to(model.device)).loss, len(rows)

    def after_epoch(epoch: int, step: int, train_loss: float) -> bool:
        nonlocal best, kept, chosen, waited
        found = evaluate(model)
        curve.append(
            Epoch(epoch=epoch, step=step, train_loss=train_loss, accuracy=found["accuracy"], loss=found["loss"])
        )
        score = (found["accuracy"], -found["loss"])
        waited = 0 if score > best else waited + 1
        if waited == 0:
            best, chosen = score, epoch
            kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
        return waited < training.patience

    train_epochs(model, training, texts, loss_of, seed=seed, after_epoch=after_epoch, report=report)
    model.load_state_dict(kept)
    model.eval()
    return [replace(point, best=point.epoch == chosen) for point in curve]
