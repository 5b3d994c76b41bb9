"""Attention sinks of a model on text, by layer, head, position and token (2406.15765, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.errors import InputError
from antiphase.base.typed import OPTIONAL
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import LoadingSettings
from antiphase.lab.settings.flags import argument, flag


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(LoadingSettings):
    """Measure attention sinks of a model by layer, head, position and token.

    Example: [bold]antiphase probe MODEL --data book.txt --output runs/probe[/]
    """

    name: str = argument("MODEL", "Local folder, GGUF file or Hub name of a model.")
    paths: Sequence[str] = flag("File, folder or Hub dataset with text. Repeatable.", name="--data")
    text_field: str | None = flag("Column with the text.", default=None)
    length: int = flag("Tokens in a sequence.", default=512, least=2)
    samples: int = flag("Number of sequences.", default=32, least=1)
    alpha: float = flag("A key is a sink if it receives more than alpha / N of the attention.", default=5.0)

    def check(self) -> None:
        super().check()
        if not self.alpha > 0:
            raise InputError(f"--alpha must be above 0, got {self.alpha}")


SETTINGS = ProbeSettings


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Measurements of a map, or means over the maps of a layer; over sequences."""

    layer: int
    sinks: float
    """Share of keys that receive more than α / N on average."""
    sinks_enough_queries: float
    """Those of them that at least N / α queries see, so that no single query can make them a sink."""
    sink_share: float | None
    """Weight of a query on sinks other than the first token."""
    first_share: float | None
    """Weight of a query on the first token."""
    entropy: float | None
    """Entropy in nats."""
    top_logit: float | None
    """The largest |q·k| · scale."""
    unspent: float | None = field(default=None, metadata=OPTIONAL)
    """Weight of a query on no token, which a learned sink takes; None where maps are plain softmaxes."""


@dataclass(frozen=True, kw_only=True)
class ProbedMap(Figures):
    """Measurements of one map."""

    head: int


@dataclass(frozen=True)
class ByPosition:
    """Share of maps and sequences in which a position is a sink."""

    first: list[int]
    """First position of each column."""
    sink_rate: list[list[float]]
    """Layers × columns."""


@dataclass(frozen=True)
class TokenSinks:
    """How often a token is a sink."""

    token: str
    occurrences: int
    """At positions that enough queries see, in every layer."""
    sink_rate: float
    """Share of maps in which it is a sink, over its occurrences."""


@dataclass(frozen=True, kw_only=True)
class Probe(Result):
    """Result of ``antiphase probe``."""

    sequences: int
    length: int
    persistence: float | None
    """Share of the positions that are sinks in a layer and also in the next one."""
    persistence_chance: float | None
    """The same if layers were independent."""
    null_local: float
    """Share of sinks in maps whose queries attend to themselves alone, which have no real sinks; mean over layers."""
    null_uniform: float
    """The same for uniform maps."""
    judged_positions: int
    """Number of positions that enough queries see, in every layer."""
    layers: list[Figures]
    heads: list[ProbedMap]
    positions: ByPosition
    tokens: list[TokenSinks]
    """Tokens, ordered by how often they are sinks."""
    part: str | None = field(default=None, metadata=OPTIONAL)
    """``encoder`` for an encoder–decoder, whose encoder reads the text; None for a whole model."""


RESULT = Probe
