"""The experiments of the calibration paper (2406.15765, section 5) on one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.errors import InputError, nearest
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.calibrate.settings import ChoiceSettings, Measures, Standing, score_flag

PARTS = ("heads", "screen", "temperature", "inverse", "redistribution", "alpha", "beta", "samples", "subsets",
         "controls", "shots")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CalibrationStudySettings(ChoiceSettings):
    """Repeat the calibration paper's experiments: each head alone, other rules, sweeps, and controls.

    Example: [bold]antiphase calibrate study MODEL --task trec.yaml --output runs/study[/]
    """

    counted = "settings"

    mode: str = flag("Which queries determine the sinks: paper or prompt.", default="prompt")
    parts: Sequence[str] = flag(
        "Experiments to run, e.g. alpha,beta,controls; default: all.",
        name="--only", default=PARTS, default_text="", separated=True, allows_duplicates=True,
    )  # fmt: skip
    score: str = score_flag("Score that selects heads: metric or probability.")

    def check(self) -> None:
        super().check()
        for part in self.parts:
            if part not in PARTS:
                raise InputError(f"--only must name some of {', '.join(PARTS)}{nearest(part, PARTS)}")
        if self.mode == "running":
            raise InputError("--mode must be paper or prompt: the paper's other rules have no running form")


SETTINGS = CalibrationStudySettings


@dataclass(frozen=True, kw_only=True)
class HeadEffect:
    """What calibrating one head alone does on all samples."""

    layer: int
    head: int
    change: float
    """Change of the score, mean over tasks."""
    log_probability_change: float
    """Change of the right answers' log probability, in nats."""
    improved: int
    """Samples whose score rose."""
    worsened: int
    """Samples whose score fell."""
    p_improves: float
    """One-sided: how often the same changes with other signs give as much or more."""
    p_worsens: float


@dataclass(frozen=True, kw_only=True)
class HeadsAlone:
    """Shares of the heads that improve, tie and worsen alone."""

    improved: float
    tied: float
    worsened: float
    null_improved: float
    """Share that improves by chance: with the signs of the samples' changes flipped."""
    null_tied: float
    null_worsened: float
    sure_improved: float | None = None
    """At a false discovery rate of 5 %."""
    sure_worsened: float | None = None
    rows: list[HeadEffect]


@dataclass(frozen=True)
class Foretold:
    """One head's slope and exact change, on the samples that chose."""

    layer: int
    head: int
    slope: float
    """Derivative of the log probability of right answers with respect to the head's gate."""
    change: float
    """Exact change of that log probability."""


@dataclass(frozen=True, kw_only=True)
class Screen:
    """How well slopes predict exact changes."""

    evaluations_share: float
    """Evaluations as a share of the exhaustive search's."""
    rank_correlation_log_probability: float | None
    """Spearman's; None where all slopes or all changes are equal."""
    rank_correlation_metric: float | None
    rows: list[Foretold]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a setting gains on the samples that chose no head."""

    setting: str
    heads: int | None = None
    """How many it concerns."""
    score: float | None = None
    gain: float | None = None
    """None where it was ``refused``."""
    gain_interval: list[float] = field(default_factory=list)
    """95 %, over samples; see ``calibration.changes.gain_interval``."""
    improved: int | None = None
    """Samples whose score rose."""
    worsened: int | None = None
    """Samples whose score fell."""
    p: float | None = None
    """That as many rise as fall: McNemar's exact test, or for scores that are no answers the sign test."""
    log_probability_gain: float | None = None
    """Nats."""
    mean_centred_gain: float | None = None
    """Of the accuracy after mean-centring, in the mean over classifications; None without any."""
    value: float | None = None
    """The value of the setting that a sweep varies."""
    shots: int | None = None
    """Examples before each prompt; such a row is of one ``task``, and its ``score`` is without calibration."""
    task: str | None = None
    metric: str | None = None
    samples: int | None = None
    chance: float | None = None
    above_chance: bool | None = None
    interval: list[float] | None = None
    refused: str | None = None
    """Why so many examples were not available."""


@dataclass(frozen=True, kw_only=True)
class CalibrationStudy(Result):
    """What ``antiphase calibrate study`` finds."""

    tasks: list[Standing]
    score: str
    """The score that chose heads and is reported: ``metric`` or ``probability``."""
    rounding: float
    """A sample's score that moves by no more has not moved."""
    held_out_before: float
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of samples of each task that judged nothing, because they are copies of ones that chose heads or judge."""
    heads: HeadsAlone | None = None
    kept: dict[str, list[int]]
    """Heads whose calibration alone raises the score on the samples that choose, by layer."""
    rows: dict[str, list[Effect]]
    """The effects by part."""
    screen: Screen | None = None
    measures: dict[str, Measures] = field(default_factory=dict)
    """Of each classification without calibration, on the samples that chose no head."""
    measures_calibrated: dict[str, Measures] = field(default_factory=dict)
    """The same with the kept heads."""


RESULT = CalibrationStudy
