"""Contextual hallucination (2410.05258, section 3.6, table 4): is what a model writes about a text true of it?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphase.errors import InputError
from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import ModelSettings
from antiphase.flags import flag
from antiphase.reading.files import read_text

MODEL, LEAD, GOLD, WRONG = "model", "lead", "gold", "wrong"
"""What is judged: the model, the first three sentences, the references, and references made wrong."""


@dataclass(frozen=True, kw_only=True)
class HallucinationSettings(ModelSettings):
    """Judge whether summaries and answers are supported by their text, and measure how often the judge errs.

    Example: [bold]antiphase evaluate hallucination MODEL --data xsum.jsonl --judge JUDGE --output runs/faithful[/]
    """

    judge: str = flag("Judge model: a folder, a Hub name, or its name at --judge-url.")
    data: Sequence[str] = flag(
        "File with documents and summaries, or with contexts, questions and answers. Repeatable."
    )
    samples: int = flag("Number of rows drawn from each file.", default=100, least=1)
    max_new_tokens: int = flag("Maximum number of tokens that the model generates.", default=64, least=1)
    judge_url: str | None = flag("OpenAI-compatible endpoint, e.g. http://localhost:8000/v1.", default=None)
    judge_key_file: str | None = flag("File with the endpoint's key.", default=None)
    judge_key_variable: str | None = flag("Environment variable with the endpoint's key.", default=None)
    judge_price: Sequence[float] = flag(
        "Price in dollars per million input and output tokens, e.g. 2.5,10.",
        default=(),
        separated=True,
        allows_duplicates=True,
    )
    judge_budget: float | None = flag("Maximum cost in dollars.", default=None)
    judge_answers: str | None = flag(
        "File in which the judge's answers are kept; default: one in --output.", default=None
    )
    judge_tokens: int = flag("Maximum number of tokens in an answer of the judge.", default=16, least=1)
    judge_timeout: float = flag("Seconds to wait for the endpoint.", default=60.0)

    def check(self) -> None:
        if not self.data or len({Path(path).stem for path in self.data}) < len(self.data):
            raise InputError(f"--data must name one or more files of different names, got {', '.join(self.data)}")
        super().check()
        if self.judge_timeout <= 0:
            raise InputError(f"--judge-timeout must be above 0, got {self.judge_timeout:g}")
        if self.judge_key_file and self.judge_key_variable:
            raise InputError("--judge-key-file and --judge-key-variable are both given; give one")
        paid = (self.judge_key_file, self.judge_key_variable, self.judge_price, self.judge_budget)
        if self.judge_url is None and any(paid):
            raise InputError("--judge-key-file, -key-variable, -price and -budget cannot be used without --judge-url")
        if self.judge_price and (len(self.judge_price) != 2 or min(self.judge_price) < 0):
            raise InputError("--judge-price must be two numbers, dollars for a million tokens read and written")
        if self.judge_budget is not None and not self.judge_price:
            raise InputError("--judge-budget needs --judge-price")

    def key(self) -> str | None:
        """The key of the endpoint.

        Raises:
            InputError: the file or the variable that is named holds none.
        """
        if self.judge_key_file is not None:
            remedy = "give a file that holds the key and nothing else"
            return read_text(self.judge_key_file, "--judge-key-file", remedy).strip()
        if self.judge_key_variable is not None:
            key = os.environ.get(self.judge_key_variable, "").strip()  # noqa: TID251 – a variable that the user names
            if not key:
                raise InputError(f"--judge-key-variable {self.judge_key_variable}: it is not set, or empty")
            return key
        return None


SETTINGS = HallucinationSettings


@dataclass(frozen=True, kw_only=True)
class SystemScore:
    """Verdicts on what one system wrote, and the measures beside them; all but counts and ``words`` are shares."""

    system: str
    """``model``; ``lead``, the first three sentences; ``gold``, the references; ``wrong``, references made wrong."""
    samples: int
    right: int
    wrong: int
    empty: int
    """Part of the wrong ones."""
    unjudged: int
    accuracy: float
    """Right ones among all."""
    interval: list[float]
    """95 %, Wilson."""
    accuracy_at_most: float
    """Were every unjudged output right."""
    coverage: float | None
    """Of the reference's content words, those that the output has."""
    entity_coverage: float | None
    """Of the reference's names and numbers."""
    copied: float | None
    """Of the output's words, those in runs of four that stand in the text."""
    words: float | None
    """Mean length."""
    f1: float | None = None
    """SQuAD's, of answers."""
    judge_error: float | None = None
    """Wrong verdicts among those given, where the truth is known."""
    judge_interval: list[float] | None = None
    """95 %, Wilson."""


@dataclass(frozen=True)
class DataVerdicts:
    """Of one data set."""

    kind: str
    """``summarization`` or ``question answering``."""
    left_out: int
    """Rows that are longer than the model reads."""
    systems: list[SystemScore]


@dataclass(frozen=True)
class JudgeName:
    """Who judged."""

    model: str
    url: str | None = None


@dataclass(frozen=True)
class Hallucination(Result):
    """What ``antiphase evaluate hallucination`` finds."""

    model: str
    judge: JudgeName
    tasks: dict[str, DataVerdicts]
    """By the name of the file."""
    without_answer: dict[str, int]
    """Why outputs have no verdict, and how many."""


RESULT = Hallucination
