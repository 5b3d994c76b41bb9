"""Loss and retrieval with quantized attention logits (2410.05258, section 3.7, figure 8) or weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import RetrievalTextSettings
from antiphase.lab.settings.flags import flag

GRANULARITIES = ("tensor", "head", "row")
WEIGHT_BITS = (8, 4)


@dataclass(frozen=True, kw_only=True)
class QuantizationSettings(RetrievalTextSettings):
    """Loss and retrieval with quantized attention logits or weights.

    Example: [bold]antiphase evaluate quantization MODEL --data book.txt --bits 8,4 --output runs/bits[/]
    """

    bits: Sequence[int] = flag("Bits of the attention logits.", default=(16, 8, 6, 4), least=2, separated=True)
    granularity: str = flag(
        "Granularity of the quantization step: tensor, head or row.", default="head", choices=GRANULARITIES
    )
    weights: Sequence[int] = flag(
        "Also quantize weights to these bits (8,4); needs antiphase\\[quantization].", default=(), separated=True
    )

    def check(self) -> None:
        super().check()
        for bits in self.weights:
            check_weights(bits)


SETTINGS = QuantizationSettings


def check_weights(bits: int) -> None:
    """
    Raises:
        InputError: ``bits`` is not 8 or 4, or torchao is not installed.
    """
    if bits not in WEIGHT_BITS:
        raise InputError(f"--weights must be {' or '.join(map(str, WEIGHT_BITS))}, got {bits}")
    if importlib.util.find_spec("torchao") is None:
        raise InputError("--weights needs the extra: pip install 'antiphase[quantization]'")


@dataclass(frozen=True)
class Bits:
    """Loss and retrieval with attention logits of a given number of bits."""

    bits: int | None
    """None means unquantized."""
    loss: float
    """Nats per token."""
    retrieval: float
    """Accuracy on first questions."""
    interval: list[float]
    """Wilson's 95 % interval."""


@dataclass(frozen=True)
class WeightBits:
    """Loss and retrieval with weights of linear layers of a given number of bits."""

    bits: int
    share: float
    """Share of all weights that are quantized."""
    groups: list[int]
    """Numbers of weights that share a scale; 0 means a whole row."""
    loss: float
    retrieval: float
    interval: list[float]


@dataclass(frozen=True, kw_only=True)
class Quantization(Result):
    """Result of ``antiphase evaluate quantization``."""

    granularity: str
    guess_rate: float
    samples: int
    """Number of retrieval sequences."""
    sequences: int
    """Number of held-out sequences."""
    rows: list[Bits]
    weights: list[WeightBits] = field(default_factory=list)


RESULT = Quantization
