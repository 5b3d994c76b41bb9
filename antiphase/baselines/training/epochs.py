"""Epochs over texts of different lengths: the steps that classifiers and translators share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.baselines.data.text_batches import EncodedTexts, shuffled_batches
from antiphase.errors import DivergedError, InputError, NonFiniteError


@dataclass(frozen=True, kw_only=True)
class EpochTraining:
    """How a model is trained in epochs: Adam, gradients cut to a length."""

    learning_rate: float = 1e-3
    """Of Adam; the same at every step after the warm-up."""
    batch_size: int = 50
    """Texts in a step."""
    epochs: int = 25
    """Passes over the training part, at most."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0."""
    gradient_norm: float = 1.0
    """Longest gradient of a step."""

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
        """Fields that are whole numbers, and the least of each."""
        return {"batch_size": 1, "epochs": 1, "warmup_steps": 0}

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of step ``step`` (from 0) of ``steps``."""
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
    """Train in place. Everything drawn depends on the seed alone, and torch's own generators stay as they are.

    Args:
        texts: their lengths say which rows share a batch.
        loss_of: the mean loss of some rows, and over how many things it is the mean.
        after_epoch: called with the epoch (from 1), the steps done and the epoch's mean loss; says whether to go on.
        report: called after each step with the steps done and the most there can be.

    Raises:
        DivergedError: the loss or gradient of a step is not finite, or what is measured after an epoch.
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
        torch.manual_seed(seed)  # dropout
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
                raise diverged(f"on the development part {error}") from error
