"""Training speed by sequence length: ``antiphase study throughput``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphase.base.errors import InputError
from antiphase.lab.lineage.names import device_flag, models_flag, settings_flag
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import Settings, flag


@dataclass(frozen=True, kw_only=True)
class ThroughputSettings(Settings):
    """Training tokens per second by sequence length, in paired rounds.

    Example: [bold]antiphase study throughput --models lstm,transformer,differential --output runs/throughput[/]
    """

    folder = "new"
    counted = "lengths"
    quick: ClassVar[Mapping[str, Any]] = {"lengths": (32, 128, 512), "rounds": 5, "seconds": 4.0}

    models: Sequence[str] = models_flag()
    lengths: Sequence[int] = flag(
        "Tokens of a sequence.", default=(32, 64, 128, 256, 512, 1024, 2048), least=1, separated=True
    )
    tokens: int = flag("Tokens in one training step; the number of sequences follows from it.", default=4096)
    rounds: int = flag("Maximum number of rounds at each length.", default=15, least=1)
    seconds: float = flag(
        "Seconds at each length after which no further round begins; three rounds are always run.", default=45.0
    )
    seed: int = flag("Random seed.", default=0, least=0, most=2**63 - 1)
    settings: Sequence[str] = settings_flag("lstm.hidden_size=128")
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        if not self.lengths:
            raise InputError("--lengths names nothing to time")
        if self.tokens < max(self.lengths):
            raise InputError(f"--tokens must be at least {max(self.lengths)}, the longest sequence; got {self.tokens}")


SETTINGS = ThroughputSettings


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Training speed of a model at one length; medians over rounds."""

    model: str
    length: int
    """Tokens of a sequence."""
    seconds: float
    """Time of a training step."""
    tokens_per_second: float
    quartiles: list[float]
    """First and third quartile of tokens per second."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """Time of a model's step divided by the baseline's in the same round, as ``benchmarks.timing.ratios`` gives it."""

    length: int
    subject: str
    baseline: str
    ratio: float
    quartiles: list[float]
    rounds: int
    subject_seconds: float
    baseline_seconds: float


@dataclass(frozen=True, kw_only=True)
class Throughput(Result):
    """Result of ``antiphase study throughput``."""

    models: list[str]
    baseline: str
    parameters: dict[str, int]
    speeds: list[Speed]
    rows: list[SpeedRatio]

    @property
    def lengths(self) -> list[int]:
        return sorted({speed.length for speed in self.speeds})


RESULT = Throughput
