"""Whether calibration lets a model read better: heads are chosen on one part of the samples, and judged on another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.calibrate.settings import ChoiceSettings, Measures, Standing
from antiphase.lab.studies.claims import Registration

PRIMARY = "mean-centred accuracy"
"""The one measure that the verdict is about, pooled over the samples of all tasks."""


@dataclass(frozen=True, kw_only=True)
class ConfirmSettings(ChoiceSettings):
    """Test whether calibration lets a model read better: a plan first, then heads by one part, judged on another.

    Writes claim.json before anything is measured. After a kill, --resume goes on.
    Example: [bold]antiphase calibrate confirm MODEL --task cr.yaml --task subj.yaml --output runs/confirm[/]
    """

    counted = "evaluations"

    mode: str = flag("Which queries determine the sinks: paper or prompt.", default="prompt")
    also: Sequence[str] = flag(
        "Task judged with the same heads, outside of the primary measure. Repeatable.", default=()
    )
    samples: int = flag("Number of samples from each task.", default=740, least=2)
    held_out: float = flag("Share of the samples that judge and choose no head.", default=0.85)
    least_sinks: float = flag(
        "Share of the prompts in which a head must have a sink that N / alpha queries see to be tried; 0 tries all.",
        default=0.3, least=0, most=1,
    )  # fmt: skip
    control_samples: int = flag("Samples of all tasks together on which controls are judged.", default=600, least=10)

    def check(self) -> None:
        super().check()
        if twice := set(self.also) & set(self.tasks):
            raise InputError(f"--also must not name a file of --task, got {sorted(twice)[0]}")
        if self.mode == "running":
            raise InputError("--mode must be paper or prompt: the controls have no running form")


SETTINGS = ConfirmSettings


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One measure without and with the chosen heads, on the samples that chose none."""

    measure: str
    task: str | None
    """None: all tasks but those of ``--also``."""
    samples: int
    plain: float
    calibrated: float
    gain: float
    gain_interval: list[float]
    """95 %."""
    better: int | None = None
    """Samples that are right with the chosen heads alone; None where a measure is not of single samples."""
    worse: int | None = None
    p: float | None = None
    """Two-sided, McNemar's exact test; of the primary measure alone."""


@dataclass(frozen=True, kw_only=True)
class ControlGain:
    """What a setting gains in the primary measure on the controls' samples."""

    setting: str
    heads: int
    gain: float


@dataclass(frozen=True, kw_only=True)
class TriedHead:
    """A head that was calibrated alone on the samples that choose."""

    layer: int
    head: int
    sinks: float
    """Share of the prompts in which it has a sink that enough queries see."""
    change: float
    """Of the log probability of right labels after mean-centring, nats, in the mean over tasks."""


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """What calibration does to the log probability of right labels after mean-centring, in the mean over tasks."""

    of: Literal["kept heads", "a head alone", "share that gains"]
    """The kept heads together, nats; the mean over heads calibrated alone, nats; the share of those that gain."""
    samples: int
    value: float
    interval: list[float] | None
    """95 %, by a bootstrap over samples: the heads are all that there are. None for a share, which the noise of samples
    pulls towards one half, so that no bootstrap of it covers.
    """


@dataclass(frozen=True, kw_only=True)
class Acting:
    """How many maps of the tried heads have sinks to reduce, in the prompts of a task that choose heads."""

    task: str
    prompts: int
    any_sink: float
    """Share of maps with a token beside the first that gets more than α / N of the attention of queries that see it."""
    seen_by_enough: float
    """The same of tokens that N / α queries see."""


@dataclass(frozen=True, kw_only=True)
class Confirm(Result):
    """What ``antiphase calibrate confirm`` finds."""

    claim: Registration
    """What was written down before."""
    dtype: str
    tasks: list[Standing]
    """Without calibration, on the samples that judge."""
    searched: dict[str, int]
    """Samples that chose heads, by task."""
    dropped: dict[str, int]
    """Samples left out of the judging part because their text chose heads."""
    heads: dict[str, list[int]]
    """Kept ones, by layer."""
    tried: list[TriedHead]
    all_heads: int
    """How many the searched layers have."""
    acting: list[Acting] = field(default_factory=list)
    """How often calibration has something to change, by task; empty: not counted."""
    primary: Outcome
    secondary: list[Outcome]
    measures: dict[str, Measures]
    """By task, without calibration."""
    measures_calibrated: dict[str, Measures]
    likelihood: list[Likelihood] = field(default_factory=list)
    """Empty in records that lack it."""
    controls: list[ControlGain] = field(default_factory=list)
    control_samples: int
    p_random_heads: float | None = None
    """How often random heads gain as much as the kept ones; the kept ones count as one draw more."""
    verdict: str


RESULT = Confirm
