"""Training and comparing text classifiers: ``antiphase classify``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.baselines.names import device_flag, seeds_flag, settings_flag
from antiphase.errors import InputError
from antiphase.flags import Settings, flag

KINDS_OF_LABELS = ("coarse", "fine")


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(Settings):
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
    vocabulary: int = flag("Maximum vocabulary size of a trained tokenizer.", default=30_000)
    least_count: int | None = flag(
        "Minimum count of a word in the vocabulary; default: 2, or 1 with --word-vectors.",
        name="--min-count",
        default=None,
        least=1,
    )
    word_vectors: str | None = flag("Text file of pretrained word vectors.", default=None)
    settings: Sequence[str] = settings_flag("cnn.dropout=0.4")
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        if self.least_count is not None and self.tokenizer != "words":
            raise InputError("--min-count counts words; remove it, or give --tokenizer words")
        if self.folds is not None and self.test:
            raise InputError("--folds and --test exclude each other: folds are parts of --train")


SETTINGS = ClassifySettings
