"""Contextual hallucination (2410.05258, section 3.6, table 4): whether a model's text is supported by its context."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphase.base.errors import InputError
from antiphase.base.files import read_text
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import CausalModelSettings, chat_flag
from antiphase.lab.settings.flags import flag

MODEL, LEAD, GOLD, WRONG = "model", "lead", "gold", "wrong"
"""Judged systems: the model, the first three sentences, the references, and references with an error."""


@dataclass(frozen=True, kw_only=True)
class HallucinationSettings(CausalModelSettings):
    """Judge whether summaries and answers are supported by their text, and measure how often the judge errs.

    Example: [bold]antiphase evaluate hallucination MODEL --data xsum.jsonl --judge JUDGE --output runs/faithful[/]
    """

    judge: str = flag("Judge model: a folder, a Hub name, or its name at --judge-url.")
    data: Sequence[str] = flag(
        "File with documents and summaries, or with contexts, questions and answers. Repeatable."
    )
    samples: int = flag("Number of rows drawn from each file.", default=100, least=1)
    max_new_tokens: int = flag("Maximum number of tokens that the model generates.", default=64, least=1)
    chat_template: bool = chat_flag()
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
    judge_tokens: int = flag("Maximum number of tokens in an answer of the endpoint.", default=16, least=1)
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
        """The API key of the endpoint.

        Raises:
            InputError: the named file or variable does not contain one.
        """
        if self.judge_key_file is not None:
            remedy = "give a file that holds the key and nothing else"
            return read_text(self.judge_key_file, "judge_key_file", remedy).strip()
        if self.judge_key_variable is not None:
            key = os.environ.get(self.judge_key_variable, "").strip()  # noqa: TID251 – a variable that the user names
            if not key:
                raise InputError(f"--judge-key-variable {self.judge_key_variable}: it is not set, or empty")
            return key
        return None


SETTINGS = HallucinationSettings


@dataclass(frozen=True, kw_only=True)
class SystemScore:
    """Verdicts on one system's outputs, with other measures; all values except counts and ``words`` are shares."""

    system: str
    """``model``; ``lead``, the first three sentences; ``gold``, the references; ``wrong``, references with an error."""
    samples: int
    right: int
    wrong: int
    empty: int
    """Number of empty outputs, which are included in ``wrong``."""
    unjudged: int
    accuracy: float
    """Share of correct outputs."""
    interval: list[float]
    """Wilson's 95 % interval."""
    accuracy_at_most: float
    """The accuracy if all unjudged outputs were correct."""
    coverage: float | None
    """Share of the reference's content words that occur in the output."""
    entity_coverage: float | None
    """Share of the reference's names and numbers that occur in the output."""
    copied: float | None
    """Share of the output's words in runs of four that occur in the text."""
    words: float | None
    """Mean length in words."""
    f1: float | None = None
    """SQuAD's F1, for answers."""
    judge_error: float | None = None
    """Share of wrong verdicts, for outputs with known truth."""
    judge_interval: list[float] | None = None
    """Wilson's 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class JudgeControl:
    """How well the judge tells references from the same references made wrong."""

    texts: int
    """Number of texts, half of which are wrong."""
    accuracy: float
    """Share of right verdicts; a missing one is not right."""
    interval: list[float]
    """Wilson's 95 % interval."""
    auc: float | None = None
    """Area under the curve of log p(yes) - log p(no); None of an endpoint, which gives no probabilities."""
    auc_interval: list[float] | None = None
    """95 % interval by Hanley and McNeil's standard error."""

    @property
    def at_chance(self) -> bool:
        """Whether verdicts or log-odds are not better than chance: their interval reaches 50 %."""
        return min(self.interval[0], 1.0 if self.auc_interval is None else self.auc_interval[0]) <= 0.5


@dataclass(frozen=True)
class DataVerdicts:
    """Verdicts for one data set."""

    kind: str
    """``summarization`` or ``question answering``."""
    left_out: int
    """Number of rows longer than the model's context."""
    systems: list[SystemScore]
    judge: JudgeControl | None = None
    """None if no reference could be made wrong."""


@dataclass(frozen=True)
class JudgeName:
    """The judge."""

    model: str
    url: str | None = None


@dataclass(frozen=True)
class Hallucination(Result):
    """Result of ``antiphase evaluate hallucination``."""

    model: str
    judge: JudgeName
    tasks: dict[str, DataVerdicts]
    """Results by name of the file."""
    without_answer: dict[str, int]
    """Reasons for missing verdicts, with counts."""


RESULT = Hallucination
