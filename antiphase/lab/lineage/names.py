"""Names of the models in ``classify``, ``translate`` and the studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphase.base.errors import InputError
from antiphase.lab.settings.flags import flag

CLASSIFIERS = ("rnn", "birnn", "lstm", "bilstm", "cnn", "transformer", "differential", "differential_v2")
"""From recurrent networks to differential attention, in the order of their publication."""
TRANSLATORS = ("transformer", "differential", "differential_v2")
ENCODER_NORMS = ("layer_norm", "rms_norm", "batch_norm")
"""Norms of the encoders."""
PHRASE = 3
"""Number of words in the shortest phrase with a noun, which is the shortest distance between a subject and its verb."""
MOST_SAMPLES = 1_000_000
"""Texts of one set that are generated, in memory."""
TRAINED_TOKENIZERS = ("words", "characters", "bpe", "unigram")
VOCABULARY = 30_000
"""Maximum size of a trained tokenizer."""
LIST = ", ".join(CLASSIFIERS)
SEEDS_HELP = "Random seeds, comma-separated, e.g. 0,1,2."
SET_HELP = "FIELD=VALUE or MODEL.FIELD=VALUE, e.g. {}. Repeatable."


def models_flag(default: Sequence[str] = CLASSIFIERS) -> Sequence[str]:
    """The settings field for the models that a study compares."""
    return flag(f"{LIST}; default: all.", default=tuple(default), separated=True, default_text="")


def seeds_flag(*default: int) -> Sequence[int]:
    """The settings field for the seeds."""
    return flag(SEEDS_HELP, default=default, separated=True, alias="--seed")


def settings_flag(example: str) -> Sequence[str]:
    """The settings field for changes of models."""
    return flag(SET_HELP.format(example), name="--set", default=())


def vocabulary_flag(default: str = str(VOCABULARY)) -> int | None:
    """The settings field for the size of a trained tokenizer."""
    return flag("Maximum vocabulary size of a trained tokenizer.", default=None, least=3, default_text=default)


def check_training(tokenizers: Sequence[str], given: Mapping[str, object]) -> None:
    """
    Args:
        given: values by the names of flags that are for training a tokenizer.

    Raises:
        InputError: one is given, but none of these tokenizers is trained.
    """
    for name, value in given.items():
        if value and not set(tokenizers) & {*TRAINED_TOKENIZERS}:
            raise InputError(f"{name} is for a tokenizer that is trained here, such as bpe; remove it")


def device_flag() -> str:
    """The settings field for the device."""
    return flag("Device: auto, cpu, cuda or cuda:0.", default="auto")


def check_seeds(seeds: Sequence[int]) -> None:
    """
    Raises:
        InputError: there are no seeds, one occurs twice, or torch does not accept one.
    """
    given = ", ".join(map(str, seeds))
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds must be different whole numbers, got {given}")
    if not all(0 <= seed < 2**63 for seed in seeds):
        raise InputError(f"--seeds must lie between 0 and 2^63 - 1, got {given}")
