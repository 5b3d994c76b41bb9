"""Settings that measurements share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphase.flags import Settings, argument, flag


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Of a measurement of one causal language model."""

    name: str = argument("MODEL", "Local folder or Hub name of a causal language model.")
    seed: int = flag("Seed of what is drawn at random.", default=0, least=0, most=2**63 - 1)
    device: str = flag("auto, cpu, cuda or cuda:0.", default="auto")


@dataclass(frozen=True, kw_only=True)
class TextSettings(ModelSettings):
    """Of a measurement on held-out text; a model trained here has its own."""

    paths: Sequence[str] = flag("File, folder or Hub dataset with text. Repeatable.", name="--data", default=())
    text_field: str | None = flag("Column that holds the text.", default=None)
    length: int | None = flag("Tokens in a sequence.", default=None, least=2)
    samples: int = flag("Sequences.", default=200, least=1)

    def task_sizes(self) -> Mapping[str, int]:
        """Numbers of needles and queries of the retrieval task, where the settings name some."""
        return {}


@dataclass(frozen=True, kw_only=True)
class RetrievalTextSettings(TextSettings):
    """Of a measurement that asks for facts in a text too."""

    needles: int | None = flag("Needles in a sequence.", default=None, least=1)
    queries: int | None = flag("Facts asked for in a sequence.", default=None, least=1)

    def task_sizes(self) -> Mapping[str, int]:
        sizes = {"needles": self.needles, "queries": self.queries}
        return {name: size for name, size in sizes.items() if size is not None}
