"""Training and comparing text classifiers: ``antiphase classify``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.errors import InputError
from antiphase.base.typed import OPTIONAL
from antiphase.lab.lineage.names import (
    check_seeds,
    check_training,
    device_flag,
    seeds_flag,
    settings_flag,
    vocabulary_flag,
)
from antiphase.lab.lineage.results import ClassificationScore, Duplicates, Epoch, ShownOutput
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.training.execution.settings import ExecutorSettings

KINDS_OF_LABELS = ("coarse", "fine")


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(ExecutorSettings):
    """Train and test text classifiers side by side, from recurrent networks to differential attention.

    Example: [bold]antiphase classify --model cnn,bilstm --train train.txt --test test.txt --output runs/trec[/]
    """

    counted = "runs"

    train: Sequence[str] = flag("File, folder or Hub dataset of labelled text.")
    test: Sequence[str] = flag("Test set; default: a tenth of --train is held out.", default=())
    models: Sequence[str] = flag(
        "cnn, rnn, birnn, lstm, bilstm, transformer, differential, differential_v2; several by commas.",
        name="--model", default=("cnn",), separated=True, repeated=True,
    )  # fmt: skip
    seeds: Sequence[int] = seeds_flag(0)
    folds: int | None = flag("Number of cross-validation folds, e.g. 10.", default=None, least=2)
    labels: str = flag(
        "Which part of COARSE:fine labels to use: coarse or fine.", default="coarse", choices=KINDS_OF_LABELS
    )
    text_field: str | None = flag("Column with the text.", default=None)
    label_field: str | None = flag("Column with the label.", default=None)
    tokenizer: str = flag("Tokenizer: words, characters, bpe, unigram, a folder or a Hub name.", default="words")
    vocabulary: int | None = vocabulary_flag()
    least_count: int | None = flag(
        "Minimum count of a word in the vocabulary; default: 2, or 1 with --word-vectors.",
        name="--min-count",
        default=None,
        least=1,
        most=10**9,
    )
    word_vectors: str | None = flag("Text file of pretrained word vectors.", default=None)
    settings: Sequence[str] = settings_flag("cnn.dropout=0.4")
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        check_seeds(self.seeds)
        check_training([self.tokenizer], {"--vocabulary": self.vocabulary})
        if self.least_count is not None and self.tokenizer != "words":
            raise InputError("--min-count counts words; remove it, or give --tokenizer words")
        if self.folds is not None and self.test:
            raise InputError("--folds and --test exclude each other: folds are parts of --train")


SETTINGS = ClassifySettings


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """The rows that were read."""

    split: str
    """Where the test parts come from."""
    train: Duplicates
    """Rows of ``--train``."""
    test: Duplicates | None
    """Rows of ``--test``."""
    test_rows_in_train: int | None
    """Number of rows of ``--test`` whose text is in ``--train``; None without ``--test``."""
    rows_by_label: dict[str, int]
    """Of ``--train``."""


@dataclass(frozen=True, kw_only=True)
class TestScore:
    """Score on the test part of one run."""

    test_accuracy: float
    macro_f1: float | None
    samples: int
    correct: int
    confusion: list[list[int]]
    """Counts: rows are the true labels, columns the predicted ones."""
    unseen: ClassificationScore
    """On the texts that are neither in the training nor in the development part."""


@dataclass(frozen=True, kw_only=True)
class DevelopmentScore:
    """Score of the kept weights on the development part."""

    samples: int
    accuracy: float
    loss: float | None
    """Nats per text."""


@dataclass(frozen=True, kw_only=True)
class ClassifierRun(TestScore):
    """One model, trained with one seed and fold."""

    model: str
    seed: int
    fold: int | None
    development: DevelopmentScore
    training_samples: int
    best_epoch: int
    epochs: int
    curve: list[Epoch]
    parameters: int
    vocabulary: int
    words_with_vectors: int | None
    """Number of words with vectors from ``--word-vectors``; None without it."""
    seconds: float
    folder: str
    shown: list[ShownOutput] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class ClassifierMean:
    """One model: means over its runs. The folds of a seed count as one test of all rows."""

    model: str
    seeds: int
    folds: int
    accuracy: float
    interval: list[float]
    """95 %, Wilson's over the test rows."""
    macro_f1: float | None
    unseen_accuracy: float | None
    development_accuracy: float
    difference: float | None
    """Difference from the first model, paired by seed; None for the first."""
    difference_interval: list[float] | None
    """95 %, over seeds; None with one."""
    parameters: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Classify(Result):
    """Result of ``antiphase classify``, and of one of its runs, which has neither ``data`` nor ``best``."""

    labels: list[str]
    data: LabelledData | None = field(default=None, metadata=OPTIONAL)
    models: list[ClassifierMean]
    runs: list[ClassifierRun]
    best: str | None = field(default=None, metadata=OPTIONAL)
    """Folder of the run with the best development score."""


RESULT = Classify
