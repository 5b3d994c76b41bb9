"""How much of everything ``antiphase reproduce`` does at each scale, and about how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from antiphase.lab.settings.presets import Preset
from antiphase.lab.studies.ablations.rows import TABLE_6
from antiphase.lab.studies.claims import LOSS_SPREAD
from antiphase.lab.training.device import choose_device


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    preset: str
    tokens_a_second: int
    """That one core (``for_gpu``: one large GPU) trains at these sizes, for the estimate before the start."""
    widths: Sequence[int]
    """Widths of the ladder of sizes, each trained with ``ladder_steps``."""
    ladder_steps: int
    samples: int
    """Number of samples in each evaluation of a model."""
    cell_samples: int
    """Number of samples in each cell of the needle grid."""
    needles: Sequence[int]
    shots: Sequence[int]
    words: int
    """Words in one pairing of words and labels, each asked once. So few that nearly all are shown at the most shots: a
    guess at others would be taken for spread over orders. But two for each label, so that a label which was seen beside
    another word is not thereby excluded."""
    orders: int
    ablations: Sequence[str] = TABLE_6
    """Rows of the paper's Table 6, each trained with ``ladder_steps`` and one seed."""
    order_samples: int = 200
    """Rows asked in every order of the examples, of a model; fewer say nothing of orders."""
    spread: float = LOSS_SPREAD
    """Residual standard deviation that is expected of a held-out loss, nats a token."""
    for_gpu: bool = False
    reads_documents: bool = True
    """Whether its contexts hold a text and a summary of it."""

    @property
    def budgets(self) -> list[int]:
        """Steps of the ladder of tokens."""
        return sorted({self.ladder_steps // factor for factor in (8, 4, 2, 1)})


SCALES = {
    "tiny": Scale(
        "reproduce-tiny", 17_000, (32, 64, 96, 128), 160, 100, 100, (2, 4), (1, 2, 4, 8, 16), 8, 10,
        reads_documents=False, spread=0.034,  # of five pairs
    ),
    "small": Scale(
        "reproduce-small", 400_000, (256, 384, 512, 768), 4000, 200, 50, (2, 4, 6), (1, 4, 16, 64, 128), 16, 10,
        for_gpu=True,
    ),
    "medium": Scale(
        "reproduce-medium", 60_000, (512, 640, 768, 1024), 4000, 500, 50, (2, 4, 6), (1, 4, 16, 64, 256), 32, 10,
        for_gpu=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Announcement:
    """What is announced before the start."""

    runs: int
    short_runs: int
    tokens: int
    """Number of tokens to train on."""
    minutes: float | None
    """About; None on a machine that the scale is not for."""


def estimate(name: str, parts: Sequence[str], preset: Preset, cores: int) -> Announcement:
    """Runs and tokens to train, and how long that takes."""
    scale, training, arms = SCALES[name], preset.run.training, len(preset.compare.arms)
    runs = arms * len(preset.compare.seeds)
    short: list[int] = []  # steps; a ladder's narrower models are quicker, so as many as a whole model each is a bound
    if "scaling" in parts:
        ladder = {(width, scale.ladder_steps) for width in scale.widths}
        ladder |= {(preset.run.model.hidden_size, steps) for steps in scale.budgets}
        short += [steps for _, steps in ladder] * 2  # the arms that are judged
    if "ablations" in parts:
        short += [scale.ladder_steps] * len(scale.ablations)
    tokens = (runs * training.steps + sum(short)) * training.batch_size * preset.run.data.sequence_length
    on_gpu = choose_device(training.device).type == "cuda"
    # as runs are trained: one on each GPU, else one on each core
    at_once = min(max(1, torch.cuda.device_count()) if on_gpu else cores, runs)
    known = on_gpu or not scale.for_gpu
    minutes = tokens / scale.tokens_a_second / at_once / 60 if known else None
    return Announcement(runs, len(short), tokens, minutes)
