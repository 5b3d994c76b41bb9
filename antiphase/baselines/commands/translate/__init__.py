"""Encoder–decoders on parallel text: ``antiphase translate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.baselines.names import TRANSLATORS, check_seeds, device_flag, seeds_flag, settings_flag
from antiphase.errors import InputError
from antiphase.flags import Settings, flag

SAMPLES, TEST_SAMPLES, MOST_SAMPLES = 8000, 400, 1_000_000


@dataclass(frozen=True, kw_only=True)
class TranslateSettings(Settings):
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
        "Generated training pairs.", default=None, least=1, most=MOST_SAMPLES, shown=str(SAMPLES)
    )
    test_samples: int | None = flag(
        "Generated held-out pairs.", default=None, least=1, most=MOST_SAMPLES, shown=str(TEST_SAMPLES)
    )
    source_field: str = flag("Column with the source.", default="source")
    target_field: str = flag("Column with the target.", default="target")
    tokenizer: str | None = flag(
        "Tokenizer: words, characters, bpe, unigram, a folder or a Hub name.", default=None, shown="words"
    )
    vocabulary: int = flag("Maximum vocabulary size of a trained tokenizer.", default=30_000)
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
        if self.tokenizer is not None and not self.train:
            raise InputError(
                "--tokenizer needs --train: generated text is split into words, because their alignment is known"
            )


SETTINGS = TranslateSettings
