"""What each part of differential attention is worth: ``antiphase ablations``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.typed import OPTIONAL
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.metrics import Difference
from antiphase.lab.studies.settings import StudySettings
from antiphase.lab.training.divergence import Divergence


@dataclass(frozen=True, kw_only=True)
class AblationsSettings(StudySettings):
    """Train ablations of differential attention and rival methods, and split each loss into AR-hits and other tokens.

    Example: [bold]antiphase ablations --preset half-hour --data book.txt --seeds 0,1,2,3,4 --output runs/ablations[/]
    """

    rows: Sequence[str] = flag(
        "Variants to train, comma-separated, e.g. no-norm,gated.", default=(), separated=True, allows_duplicates=True
    )
    rivals: bool = flag("Also train V2, its ablations, and rival methods.", default=False)
    frequent: int = flag(
        "Pairs that occur more often than this in the training text do not count as AR-hits.", default=5, least=0
    )


SETTINGS = AblationsSettings


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Nats per held-out token: of all, of AR-hits and of the others; None without tokens, or of runs that diverged."""

    loss: float | None = None
    ar_hit: float | None = None
    others: float | None = None


@dataclass(frozen=True, kw_only=True)
class AblationRun(Losses):
    """A run of a row."""

    arm: str
    seed: int
    parameters: int
    intermediate_size: int
    learning_rate: float | None
    accuracy: float | None
    diverged: Divergence | None = None
    lambdas: list[float | None] | None
    gradient_norms: list[float | None]
    """By layer, mean over the logged steps."""


@dataclass(frozen=True, kw_only=True)
class AblationRow(Losses):
    """Means over seeds, and paired differences to the row that it departs from."""

    arm: str
    about: str
    against: str | None
    """The row that it departs from."""
    parameters: int
    intermediate_size: int
    diverged: int = 0
    """Seeds that did."""
    paper: Losses | None
    gradient_norms: list[float | None]
    loss_difference: Difference | None = field(default=None, metadata=OPTIONAL)
    ar_hit_difference: Difference | None = field(default=None, metadata=OPTIONAL)
    others_difference: Difference | None = field(default=None, metadata=OPTIONAL)

    def difference(self, name: str) -> Difference:
        """Of a slice of the loss; without a mean where there is none."""
        found: Difference | None = getattr(self, f"{name}_difference")
        return found or Difference()


@dataclass(frozen=True, kw_only=True)
class Slices:
    """How the tokens were divided (``scoring.recall.RecallSlices``)."""

    frequent: int
    repeated: int
    left_out: int
    training_tokens: int
    hits: int


@dataclass(frozen=True, kw_only=True)
class Ablations(Result):
    """What ``antiphase ablations`` finds."""

    source: str = ""
    arms: list[str] = field(default_factory=list)
    rows: list[AblationRow]
    left_out: dict[str, str] = field(default_factory=dict)
    """Rows that these sizes cannot have, and why."""
    slices: Slices
    runs: list[AblationRun] = field(default_factory=list)


RESULT = Ablations
