"""Training of one text classifier: epochs over labelled texts until a development part gets no better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.data.text_batches import EncodedTexts, shuffled_batches
from antiphase.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ClassifierTraining:
    """How a classifier is trained: Adam, early stopping, gradients cut to a length."""

    learning_rate: float = 1e-3
    """Of Adam; the same at every step after the warm-up."""
    batch_size: int = 50
    """Texts in a step (Kim 2014, 1408.5882, section 3.1)."""
    epochs: int = 25
    """Passes over the training part, at most."""
    patience: int = 3
    """Epochs without a better development part after which training ends."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0."""
    gradient_norm: float = 1.0
    """Longest gradient of a step."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("epochs", 1), ("patience", 1), ("warmup_steps", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("learning_rate", "gradient_norm"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise InputError(f"{name} must be a number above 0, got {value!r}")


def train_classifier(
    model: PreTrainedModel,
    training: ClassifierTraining,
    texts: EncodedTexts,
    targets: Tensor,
    *,
    seed: int,
    evaluate: Callable[[PreTrainedModel], Mapping[str, float]],
    report: Callable[[int, int], None] = lambda done, count: None,
) -> list[dict[str, Any]]:
    """Train in place; the model is left with the weights of its best epoch, in evaluation mode.

    An epoch is better with a higher ``accuracy`` on the development part, or an equal one and a lower ``loss``.
    Everything drawn depends on the seed alone, and torch's own generators stay as they are.

    Args:
        targets: (texts,) label numbers.
        evaluate: ``accuracy`` and ``loss`` on the development part.
        report: called after each step with the steps done and the most there can be.

    Returns:
        For each epoch ``epoch`` (from 1), ``step``, ``train_loss`` (mean over texts, in nats), ``accuracy``, ``loss``
        and ``best``, true at the one whose weights are kept.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate, fused=True)
    steps = -(-len(texts) // training.batch_size)
    curve: list[dict[str, Any]] = []
    best, kept, chosen, waited, step = (-1.0, 0.0), {}, 0, 0, 0
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # dropout
        for epoch in range(1, training.epochs + 1):
            model.train()
            total = torch.zeros((), device=model.device)
            for rows in shuffled_batches(texts, training.batch_size, seed, "epoch", epoch):
                for group in optimizer.param_groups:
                    group["lr"] = training.learning_rate * min(1.0, (step + 1) / max(1, training.warmup_steps))
                ids, mask = (tensor.to(model.device) for tensor in texts.batch(rows))
                loss = model(input_ids=ids, attention_mask=mask, labels=targets[rows].to(model.device)).loss
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_norm)
                optimizer.step()
                total += loss.detach() * len(rows)
                step += 1
                report(step, steps * training.epochs)
            found = evaluate(model)
            curve.append({"epoch": epoch, "step": step, "train_loss": float(total) / len(texts), **found})
            score = (found["accuracy"], -found["loss"])
            waited = 0 if score > best else waited + 1
            if waited == 0:
                best = score
                kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
                chosen = epoch
            if waited >= training.patience:
                break
    model.load_state_dict(kept)
    model.eval()
    return [{**point, "best": point["epoch"] == chosen} for point in curve]
