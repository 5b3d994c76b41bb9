"""How much a document raises the likelihood of its own summary or answer: a measure of grounding without a judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import CausalModelSettings, chat_flag
from antiphase.lab.settings.flags import flag


@dataclass(frozen=True, kw_only=True)
class DocumentGainSettings(CausalModelSettings):
    """Measure how much likelier a model finds a summary or answer after its own document than after another one.

    Needs no judge. Example: [bold]antiphase evaluate document-gain MODEL --data xsum.jsonl --output runs/gain[/]
    """

    counted = "texts"
    data: Sequence[str] = flag(
        "File with documents and summaries, or with contexts, questions and answers. Repeatable."
    )
    samples: int = flag("Number of rows drawn from each file.", default=200, least=2)
    chat_template: bool = chat_flag()

    def check(self) -> None:
        if not self.data or len({Path(path).stem for path in self.data}) < len(self.data):
            raise InputError(f"--data must name one or more files of different names, got {', '.join(self.data)}")
        super().check()


SETTINGS = DocumentGainSettings


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Losses of the references of one data set: means over rows of a row's mean -log p, in nats per token."""

    kind: str
    """``summarization`` or ``question answering``."""
    samples: int
    left_out: int
    """Number of rows longer than the model's context."""
    own_loss: float
    """After the row's own document."""
    other_loss: float
    """After the document of another row, of nearly the same length."""
    no_loss: float
    """After an empty document."""
    gain: float
    """``other_loss`` minus ``own_loss``."""
    interval: list[float] | None
    """Student's 95 % interval of the gain over rows."""
    above: int
    """Number of rows with a gain above 0."""
    below: int
    """Number of rows with a gain below 0."""
    above_interval: list[float]
    """Wilson's 95 % interval of the share of rows with a gain above 0."""
    gains: list[float]
    """The gain of each row."""


@dataclass(frozen=True)
class DocumentGain(Result):
    """Result of ``antiphase evaluate document-gain``."""

    tasks: dict[str, Gain]
    """By name of the file."""


RESULT = DocumentGain
