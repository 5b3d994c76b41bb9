"""Settings that measurements share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.base.errors import InputError
from antiphase.lab.settings.flags import DEVICE_MAPS, DTYPE_HELP, DTYPES, Settings, argument, flag, flags_of

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Depths of the needle asked for: 0 at the start of a context, 1 at its end."""


def seed_flag(default: int = 0) -> Any:
    """The settings field of a seed."""
    return flag("Random seed.", default=default, least=0, most=2**63 - 1)


def chat_flag() -> Any:
    """The settings field of the chat template."""
    return flag("Ask through the model's chat template, as a user's message.", default=False)


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings):
    """Settings of any measurement."""

    device: str = flag("Device: auto, cpu, cuda or cuda:0.", default="auto")


@dataclass(frozen=True, kw_only=True)
class LoadingSettings(DeviceSettings):
    """Settings of a measurement that loads a model."""

    dtype: str | None = flag(DTYPE_HELP, default=None, choices=DTYPES)
    device_map: str | None = flag(
        f"Spread the model over devices with accelerate: {', '.join(DEVICE_MAPS)}, or a device.", default=None
    )

    def check(self) -> None:
        super().check()
        if self.device_map is not None and self.device != "auto":
            raise InputError(f"--device {self.device} and --device-map {self.device_map} are both given; give one")


@dataclass(frozen=True, kw_only=True)
class DrawnSettings(LoadingSettings):
    """Settings of a measurement that draws at random."""

    seed: int = seed_flag()


@dataclass(frozen=True, kw_only=True)
class CausalModelSettings(DrawnSettings):
    """Settings of a measurement of a causal language model."""

    name: str = argument("MODEL", "Local folder, GGUF file or Hub name of a causal language model.")


@dataclass(frozen=True, kw_only=True)
class TaskSettings(CausalModelSettings):
    """Settings of a command that gives tasks to a model."""

    tasks: Sequence[str] = flag(
        "Task file (YAML), at least 'template: trec' and 'data: FILE', or a table of texts and labels. Repeatable.",
        name="--task",
        default=(),
    )
    text_field: str | None = flag("Column with the text, where a task is a table.", default=None)
    label_field: str | None = flag("Column with the label, where a task is a table.", default=None)
    chat_template: bool = chat_flag()

    @property
    def columns(self) -> tuple[str | None, str | None]:
        """The columns of tables; None means one with a usual name."""
        return self.text_field, self.label_field


@dataclass(frozen=True, kw_only=True)
class HeldOutSettings(CausalModelSettings):
    """Settings of a measurement on held-out text, which models trained here have of their own."""

    paths: Sequence[str] = flag("File, folder or Hub dataset with text. Repeatable.", name="--data", default=())
    text_field: str | None = flag("Column with the text.", default=None)

    def data_sizes(self) -> Mapping[str, int]:
        """Sizes of the data in the settings, by field of ``schema.DataSettings``."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TextSettings(HeldOutSettings):
    """Settings of a measurement on windows of text."""

    length: int | None = flag("Tokens in a sequence.", default=None, least=2)
    samples: int = flag("Number of sequences.", default=200, least=1)

    def data_sizes(self) -> Mapping[str, int]:
        return _given(sequence_length=self.length)


@dataclass(frozen=True, kw_only=True)
class RetrievalTextSettings(TextSettings):
    """Settings of a measurement that also asks for facts in text."""

    needles: int | None = flag("Needles in a sequence.", default=None, least=1)
    queries: int | None = flag("Number of questions in a sequence.", default=None, least=1)

    def task_sizes(self) -> Mapping[str, int]:
        """Numbers of needles and queries of the retrieval task, if the settings have them."""
        return _given(needles=self.needles, queries=self.queries)

    def data_sizes(self) -> Mapping[str, int]:
        return {**super().data_sizes(), **self.task_sizes()}


@dataclass(frozen=True, kw_only=True)
class ComparedSettings(CausalModelSettings):
    """Settings of a measurement of several models on the same input."""

    against: Sequence[str] = flag("Another model, compared with MODEL on the same input. Repeatable.", default=())

    @property
    def names(self) -> list[str]:
        """Names of all models; the others are compared with the first."""
        return [self.name, *self.against]

    def check(self) -> None:
        super().check()
        if len(set(self.names)) < len(self.names):
            raise InputError(f"--against must not repeat a value, got {', '.join(self.names)}")


@dataclass(frozen=True, kw_only=True)
class ContextSettings(ComparedSettings, HeldOutSettings):
    """Settings of a measurement of several models on the same contexts.

    Sizes default to those of the first model's training, if known.
    """

    lengths: Sequence[int] = flag(
        "Length in tokens of a context with its output, e.g. 4096,8192.",
        name="--length",
        default=(),
        least=2,
        separated=True,
    )
    """In tokens of the first model's tokenizer."""
    needles: Sequence[int] = flag("Numbers of needles, e.g. 2,4,8.", default=(), least=1, separated=True)
    queries: Sequence[int] = flag("Numbers of questions asked together, e.g. 1,2.", default=(), least=1, separated=True)
    depths: Sequence[float] = flag(
        "Depths of the asked needle, 0 to 1.", default=DEPTHS, least=0, most=1, separated=True
    )
    samples: int = flag("Contexts in each cell.", default=50, least=1)

    def lengths_from(self, usual: int) -> Sequence[int]:
        """Lengths of contexts, given the usual one of the first model."""
        return self.lengths or [usual]

    def check_single(self, *names: str) -> None:
        """Check that fields hold one number at most.

        Raises:
            InputError: one holds several.
        """
        for name in names:
            if len(listed := getattr(self, name)) > 1:
                raise InputError(f"{flags_of(self)[name].name} takes one number, got {', '.join(map(str, listed))}")

    def data_sizes(self) -> Mapping[str, int]:
        """The first value of each size."""
        listed = {"sequence_length": self.lengths, "needles": self.needles, "queries": self.queries}
        return {field: sizes[0] for field, sizes in listed.items() if sizes}


def _given(**sizes: int | None) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size is not None}
