"""Arms trained side by side: ``antiphase compare``."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphase.base.typed import OPTIONAL
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.retrieval_results import Accuracy, CellScore, Crossing, MapAllocation
from antiphase.lab.studies.metrics import ComparedMetric
from antiphase.lab.studies.runs import RunResult
from antiphase.lab.studies.settings import StudySettings


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(StudySettings):
    """Train softmax and differential models side by side, measure them, and show where they attend.

    Writes record.json, report.html and every model.
    Example: [bold]antiphase compare --preset demo --output runs/demo[/]
    """


SETTINGS = ComparisonSettings
RANDOM, STARTS = "random weights", "the checkpoints from which training started"
"""What a comparison measures as its untrained models."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun(RunResult):
    """A run of an arm."""

    arm: str
    passes: int | None = None
    """Step of the first evaluation above the threshold."""
    by_sequence: list[float | None] | None = None
    """Loss of each held-out sequence."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Counts of an arm."""

    total: int | None = None
    attention_only: int | None = None


@dataclass(frozen=True, kw_only=True)
class NeedleGrid:
    """Retrieval of all models, trained and untrained."""

    cells: list[CellScore] = field(default_factory=list)
    summary: list[Accuracy] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    """N50 and L50, where the grid has at least three sizes."""


@dataclass(frozen=True, kw_only=True)
class ModelLoss:
    """Held-out loss of a model."""

    arm: str
    seed: int
    trained: bool = True
    loss: float
    """Nats per predicted token."""
    perplexity: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The sequence whose attention is drawn."""

    tokens: list[str] = field(default_factory=list)
    query: int = 0
    """The last prompt position."""
    rows: list[int] = field(default_factory=list)
    """Query positions of the stored rows."""
    answer: list[int] = field(default_factory=list)
    layers: int | None = None
    arrays: dict[str, str] = field(default_factory=dict)
    """Arm to the record's array of its weights, (layers, heads, rows, tokens)."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A held-out retrieval text, and what the arms answered to its first question."""

    question: str
    """The last tokens before the answer."""
    right: str
    answers: dict[str, str]
    """By arm, of its model of the first seed."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What the numbers of the runs say of the arms."""

    comparison: list[ComparedMetric] = field(default_factory=list)
    further_comparison: list[ComparedMetric] = field(default_factory=list)
    """Of arms beside another than the first."""
    verdict: str = ""
    """On the primary contrast."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Numbers, Result):
    """What ``antiphase compare`` finds."""

    source: str = ""
    """``text`` or ``retrieval``."""
    arms: list[str] = field(default_factory=list)
    baseline: str = "baseline"
    threshold: float | None = None
    """Accuracy whose first passing counts."""
    guess_rate: float | None = None
    parameters: dict[str, Parameters] = field(default_factory=dict)
    """Numbers of parameters by arm."""
    runs: list[ComparedRun] = field(default_factory=list)
    untrained: str = RANDOM
    """What was measured as untrained models."""
    needles: NeedleGrid = field(default_factory=NeedleGrid)
    perplexity: list[ModelLoss] = field(default_factory=list)
    allocation: list[MapAllocation] = field(default_factory=list)
    attention_map: Picture = field(default_factory=Picture)
    samples: list[Sample] = field(default_factory=list)
    unfinished: float | None = field(default=None, metadata=OPTIONAL)
    """Share of the training that is done, of a page during training."""
    stopped: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether the work ended there, of such a page."""

    def runs_of(self, arm: str) -> list[ComparedRun]:
        """The runs of one arm, in the order of seeds."""
        return [run for run in self.runs if run.arm == arm]

    def values(self, metric: str) -> dict[str, list[float | None]]:
        """Arm to one value for each seed; nothing where the metric was not measured."""
        found = next((entry for entry in self.comparison if entry.metric == metric), None)
        return {} if found is None else {arm: summary.values for arm, summary in found.arms.items()}


RESULT = Comparison
