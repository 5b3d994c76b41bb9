"""AdamW, its parameter groups, and the learning-rate schedule."""

from __future__ import annotations

import torch
from torch import nn

from antiphase.lab.settings.presets import TrainingSettings
from antiphase.lab.training.trained import is_lambda


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW of the parameters that are trained, with weight decay on matrices, but not on norms, biases and λ vectors.

    Each group has a ``rate``, its multiple of the learning rate: ``lambda_rate`` for the parameters of λ, else 1.
    """
    members: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = settings.lambda_rate if is_lambda(name) else 1.0
        members.setdefault((rate, parameter.dim() >= 2), []).append(parameter)
    groups = [
        {"params": parameters, "rate": rate, "weight_decay": settings.weight_decay if decays else 0.0}
        for (rate, decays), parameters in members.items()
        if parameters
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), fused=True)


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """Learning rate of a 0-based step: linear warm-up to the peak, then linear decay to zero at ``decay_steps``."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    end = settings.decay_steps or settings.steps
    return settings.learning_rate * max(0.0, (end - step) / max(1, end - settings.warmup_steps))
