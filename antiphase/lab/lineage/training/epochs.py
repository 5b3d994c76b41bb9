"""Training in epochs over texts of different lengths, shared by classifiers and translators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.errors import DivergedError, InputError, NonFiniteError
from antiphase.lab.lineage.data.text_batches import EncodedTexts, shuffled_batches


@dataclass(frozen=True, kw_only=True)
class EpochTraining:
    """Training settings for epochs: Adam, gradient clipping."""

    learning_rate: float = 1e-3
    """Learning rate of Adam, constant after the warm-up."""
    batch_size: int = 50
    """Number of texts in a step."""
    epochs: int = 25
    """Largest number of passes over the training part."""
    warmup_steps: int = 0
    """Number of steps over which the learning rate rises from 0."""
    gradient_norm: float = 1.0
    """Gradients are clipped to this norm."""

    def __post_init__(self) -> None:
        for name, least in self.counts().items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("learning_rate", "gradient_norm"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise InputError(f"{name} must be a number above 0, got {value!r}")

    def counts(self) -> dict[str, int]:
        """Fields that are whole numbers, with their smallest values."""
        return {"batch_size": 1, "epochs": 1, "warmup_steps": 0}

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of the 0-based step ``step`` of ``steps``."""
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))


def train_epochs(
    model: PreTrainedModel,
    training: EpochTraining,
    texts: EncodedTexts,
    loss_of: Callable[[list[int]], tuple[Tensor, int]],
    *,
    seed: int,
    after_epoch: Callable[[int, int, float], bool],
    report: Callable[[int, int], None] = lambda done, count: None,
) -> None:
    """Train in place. All random draws depend only on the seed, and the state of torch's generators is restored.

    Args:
        texts: texts whose lengths determine which rows share a batch.
        loss_of: returns the mean loss of some rows and the number of items in the mean.
        after_epoch: called with the epoch (from 1), the number of finished steps and the epoch's mean loss; returns
            whether to continue.
        report: called after each step with the number of finished steps and the largest possible number.

    Raises:
        DivergedError: the loss or gradient of a step, or a measurement after an epoch, is not finite.
    """

    def diverged(reason: str) -> DivergedError:
        return DivergedError(
            f"training diverged at step {step} of {steps}, in epoch {epoch}, {reason}; a lower learning rate helps, "
            f"e.g. --set MODEL.learning_rate={training.learning_rate / 10:g}"
        )

    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate, fused=True)
    steps = training.epochs * -(-len(texts) // training.batch_size)
    step = 0
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # for dropout
        for epoch in range(1, training.epochs + 1):
            model.train()
            total, count = 0.0, 0
            for rows in shuffled_batches(texts, training.batch_size, seed, "epoch", epoch):
                for group in optimizer.param_groups:
                    group["lr"] = training.rate(step, steps)
                loss, weight = loss_of(rows)
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_norm)
                step += 1
                for what, number in (("loss", loss.item()), ("gradient norm", norm.item())):
                    if not math.isfinite(number):
                        raise diverged(f"its {what} is {number}")
                optimizer.step()
                total += loss.item() * weight
                count += weight
                report(step, steps)
            try:
                if not after_epoch(epoch, step, total / count):
                    break
            except NonFiniteError as error:
                raise diverged(f"when measured {error}") from error
