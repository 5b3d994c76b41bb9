"""One model: ``antiphase train``."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.settings import PresetSettings


@dataclass(frozen=True, kw_only=True)
class TrainSettings(PresetSettings):
    """Train one model, in several processes if started with torchrun.

    Example: [bold]antiphase train --preset demo --output runs/one --set model.attention_type=softmax[/]
    """

    start_from: str | None = flag(
        "Folder of a converted or trained model to go on from; sizes, tokenizer, tying and eps are its own.",
        default=None,
    )
    seed: int | None = flag("Seed of weights and data order.", default=None)

    def overrides(self) -> list[str]:
        return [*super().overrides(), *([f"training.seed={self.seed}"] if self.seed is not None else [])]


SETTINGS = TrainSettings
