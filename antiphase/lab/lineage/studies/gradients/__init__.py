"""Gradient norms by depth: ``antiphase study gradients``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphase.base.errors import InputError
from antiphase.lab.lineage.names import (
    CLASSIFIERS,
    ENCODER_NORMS,
    check_seeds,
    device_flag,
    models_flag,
    seeds_flag,
    settings_flag,
)
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import Settings, flag


@dataclass(frozen=True, kw_only=True)
class GradientsSettings(Settings):
    """Gradient norms by layer in deep models: pre-norm compared with post-norm.

    Example: [bold]antiphase study gradients --models transformer --norms layer_norm,rms_norm --output runs/gradients[/]
    """

    counted = "models"
    quick: ClassVar[Mapping[str, Any]] = {"layers": 6, "steps": (0, 20), "seeds": (0,)}

    models: Sequence[str] = models_flag([name for name in CLASSIFIERS if name != "cnn"])
    norms: Sequence[str] = flag(
        f"{', '.join(ENCODER_NORMS)}; recurrent networks have none.",
        default=("layer_norm",),
        choices=ENCODER_NORMS,
        separated=True,
    )
    layers: int = flag("Depth of the models.", default=12, least=2, most=1000)
    steps: Sequence[int] = flag("Training steps after which to measure.", default=(0, 10, 100), least=0, separated=True)
    seeds: Sequence[int] = seeds_flag(0, 1, 2)
    settings: Sequence[str] = settings_flag("lstm.hidden_size=128")
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        check_seeds(self.seeds)
        for name, listed in (("--norms", self.norms), ("--steps", self.steps)):
            if not listed:
                raise InputError(f"{name} names nothing to measure")


SETTINGS = GradientsSettings


@dataclass(frozen=True, kw_only=True)
class MeasuredGradients:
    """Gradients of one model after some steps."""

    model: str
    place: str | None
    """Norms before the sublayers (``pre``) or after them (``post``); None: a model without norms."""
    norm: str | None
    seed: int
    step: int
    gradient_norms: list[float | None]
    """L2 norm over all parameters of each layer, mean over batches; None if it is not finite."""
    loss: float | None
    """Nats, mean over the same batches."""


@dataclass(frozen=True, kw_only=True)
class Gradients(Result):
    """Result of ``antiphase study gradients``."""

    models: list[str]
    layers: int
    rows: list[MeasuredGradients]


RESULT = Gradients
