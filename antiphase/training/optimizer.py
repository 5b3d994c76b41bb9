"""AdamW, who decays, and the learning rate of a step."""

from __future__ import annotations

import torch
from torch import nn

from antiphase.config import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW over two groups: matrices decay; norms, biases and λ vectors (one dimension) do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), fused=True)


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """Rate of a 0-based step: linear warm-up to the peak, then linear decay to zero at ``decay_steps``."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    end = settings.decay_steps or settings.steps
    return settings.learning_rate * max(0.0, (end - step) / max(1, end - settings.warmup_steps))
