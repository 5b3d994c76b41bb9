"""Encoder–decoders on parallel text: ``antiphase translate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.errors import InputError
from antiphase.base.typed import OPTIONAL
from antiphase.lab.lineage.names import (
    MOST_SAMPLES,
    TRANSLATORS,
    check_seeds,
    check_training,
    device_flag,
    seeds_flag,
    settings_flag,
    vocabulary_flag,
)
from antiphase.lab.lineage.results import AlignmentAccuracy, Epoch, SentenceScore, ShownOutput
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.training.execution.settings import ExecutorSettings

SAMPLES, TEST_SAMPLES = 8000, 400


@dataclass(frozen=True, kw_only=True)
class TranslateSettings(ExecutorSettings):
    """Train and test encoder–decoders on parallel text, softmax and differential side by side.

    Example: [bold]antiphase translate --output runs/translate[/]
    """

    counted = "runs"

    train: Sequence[str] = flag(
        "Training pairs: lines of source<TAB>target, or named columns; default: generated pairs. Repeatable.",
        default=(),
    )
    test: Sequence[str] = flag("Test pairs; default: a tenth of --train is held out. Repeatable.", default=())
    models: Sequence[str] = flag(", ".join(TRANSLATORS) + ".", default=("transformer", "differential"), separated=True)
    seeds: Sequence[int] = seeds_flag(0)
    samples: int | None = flag(
        "Generated training pairs.", default=None, least=1, most=MOST_SAMPLES, default_text=str(SAMPLES)
    )
    test_samples: int | None = flag(
        "Generated held-out pairs.", default=None, least=1, most=MOST_SAMPLES, default_text=str(TEST_SAMPLES)
    )
    source_field: str = flag("Column with the source.", default="source")
    target_field: str = flag("Column with the target.", default="target")
    tokenizer: str | None = flag(
        "Tokenizer: words, characters, bpe, unigram, a folder or a Hub name.", default=None, default_text="words"
    )
    vocabulary: int | None = vocabulary_flag()
    settings: Sequence[str] = settings_flag("epochs=12")
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        check_seeds(self.seeds)
        for name, value in (("--samples", self.samples), ("--test-samples", self.test_samples)):
            if value is not None and self.train:
                raise InputError(f"{name} is for generated pairs; remove it, or omit --train")
        if self.test and not self.train:
            raise InputError("--test needs --train: models trained on generated pairs are tested on generated pairs")
        for name, given in (("--tokenizer", self.tokenizer), ("--vocabulary", self.vocabulary)):
            if given is not None and not self.train:
                raise InputError(
                    f"{name} needs --train: generated text is split into words, because their alignment is known"
                )
        for side, given in (("source", self.source_field), ("target", self.target_field)):
            if given != side and not self.train:
                raise InputError(f"--{side}-field needs --train: generated pairs have no columns")
        check_training([self.tokenizer or "words"], {"--vocabulary": self.vocabulary})


SETTINGS = TranslateSettings


@dataclass(frozen=True, kw_only=True)
class Alignment(AlignmentAccuracy):
    """Alignment on the test pairs, of the layer and the head that are best on training pairs."""

    layer: int
    mean_of_heads: float
    """Of the layer, by the mean of its heads."""
    head: list[int]
    """Layer and head."""
    best_head: float


@dataclass(frozen=True, kw_only=True)
class TranslatorScore(SentenceScore):
    """Score of a model on the test pairs; sentences are written greedily, tokens are predicted after the right ones."""

    loss: float | None
    """Nats per token."""
    token_accuracy: float
    alignment: Alignment | None
    """None where the right alignment is not known."""


@dataclass(frozen=True, kw_only=True)
class TranslatorRun(TranslatorScore):
    """One model, trained with one seed."""

    model: str
    seed: int
    untrained: TranslatorScore
    training_samples: int
    epochs: int
    curve: list[Epoch]
    parameters: int
    vocabulary: int
    seconds: float
    folder: str
    shown: list[ShownOutput] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class TranslatorMean:
    """One model, before or after training: means over its seeds."""

    model: str
    trained: bool
    seeds: int
    loss: float | None
    token_accuracy: float
    exact_match: float
    ended: float
    interval: list[float]
    """95 % interval of ``exact_match``: over seeds, with one seed Wilson's over sentences."""
    mean_of_heads: float | None
    best_head: float | None
    chance: float | None
    same_place: float | None
    parameters: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BaselineScore(SentenceScore):
    """Score of a system that needs no learning."""

    system: str


@dataclass(frozen=True, kw_only=True)
class PairedData:
    """The pairs of the first seed."""

    generated: bool
    split: str
    """Where the test pairs come from."""
    training_samples: int
    test_samples: int
    test_sources_in_train: int


@dataclass(frozen=True, kw_only=True)
class ShownPair:
    """The test pair whose alignment is shown."""

    seed: int
    source: list[str]
    target: list[str]
    alignment: list[int] | None
    """For each word of the target, the index of its source word; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Translate(Result):
    """Result of ``antiphase translate``, and of one of its runs, which has only ``models`` and ``runs``."""

    data: PairedData | None = field(default=None, metadata=OPTIONAL)
    models: list[TranslatorMean]
    baselines: list[BaselineScore] | None = field(default=None, metadata=OPTIONAL)
    example: ShownPair | None = field(default=None, metadata=OPTIONAL)
    runs: list[TranslatorRun]


RESULT = Translate
