"""Which heads to calibrate (2406.15765, section 4): one at a time, judged on samples kept apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.calibrate.settings import ChoiceSettings, ControlEffect, Measures, Standing, score_flag


@dataclass(frozen=True, kw_only=True)
class SearchSettings(ChoiceSettings):
    """Find the heads whose calibration raises a score, and measure the gain on held-out samples.

    Writes plan.json, record.json and report.html.
    Example: [bold]antiphase calibrate search MODEL --task trec.yaml --samples 200 --output runs/search[/]
    """

    counted = "heads and controls"

    method: str = flag(
        "Search method: exhaustive, cached (lower layers run once) or screen (ranks heads by gradients first).",
        default="exhaustive", choices=("exhaustive", "cached", "screen"),
    )  # fmt: skip
    score: str = score_flag("Score to raise: metric, or probability of the right answers.")
    controls: bool = flag("Compare the gain with that of other heads, other tokens and the inverse.", default=True)


SETTINGS = SearchSettings


@dataclass(frozen=True, kw_only=True)
class HeadAlone:
    """What calibrating one head alone did on the samples that chose."""

    change: float
    """Change of the score, mean over tasks."""
    improved: int
    """Samples whose score rose."""
    worsened: int
    """Samples whose score fell."""
    slope: float | None = None
    """Derivative of the score with respect to the head's gate; only of the screen."""


@dataclass(frozen=True, kw_only=True)
class Search(Result):
    """What ``antiphase calibrate search`` finds."""

    tasks: list[Standing]
    heads_alone: dict[str, HeadAlone]
    """The heads that were tried, by ``layer.head``."""
    method: str
    seed: int
    evaluations: int
    exhaustive_evaluations: int
    """What trying every head would have cost."""
    samples: dict[str, int]
    """Number of all samples of each task."""
    search_samples: dict[str, list[int]]
    """Numbers of those that chose the heads."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of those that judged nothing, because they are copies of ones that chose the heads or of each other."""
    rounding: float
    """A sample's score that moves by no more has not moved."""
    search_before: float
    held_out_before: float
    held_out_after: float
    held_out_gain: float
    held_out_gain_interval: list[float]
    """95 %, over samples; see ``calibration.changes.gain_interval``."""
    slopes: dict[str, float] = field(default_factory=dict)
    """The slope of every head, by ``layer.head``; only for the screen."""
    heads: dict[str, list[int]]
    """Kept ones, by layer."""
    measures: dict[str, Measures] = field(default_factory=dict)
    """Of each classification without calibration, on the samples that chose no head."""
    measures_calibrated: dict[str, Measures] = field(default_factory=dict)
    """The same with the kept heads."""
    controls: list[ControlEffect] = field(default_factory=list)
    """The kept heads, and what they must be compared with."""


RESULT = Search
