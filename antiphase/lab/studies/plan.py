"""What a training command is about to do, for the command line to announce, start and show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphase.base.records import Record
from antiphase.lab.settings.presets import Preset
from antiphase.lab.settings.schema import TrainingSettings
from antiphase.lab.studies.jobs import Job


@dataclass(frozen=True)
class Plan:
    """The work of a command that trains, ready to begin."""

    run: Callable[..., Record]
    """Called with the output folder, ``resume``, ``report`` and ``say``."""
    announced: Sequence[str] = ()
    """Announced before it begins."""
    steps: int | None = None
    """Steps of a single run, which several processes may share; None for a study of several runs."""
    runs: int = 0
    """Number of all runs of a study, if it is known beforehand."""
    tokens: float = 0.0
    """That they train on together."""
    is_watched: bool = False
    """Whether ``run`` takes ``watch`` too, which is called with records of what there is so far."""

    @classmethod
    def of_runs(cls, run: Callable[..., Record], jobs: Sequence[Job], announced: Sequence[str], **more: bool) -> Plan:
        """A study of these runs and no others."""
        return cls(run, announced, runs=len(jobs), tokens=sum(job.tokens for job in jobs), **more)


def described(preset: Preset) -> str:
    """What is about to be trained, in words."""
    compare, run = preset.compare, preset.run
    words = (
        f"{' and '.join(compare.arms)}, seeds {', '.join(map(str, compare.seeds))}: "
        f"{run.training.steps:,} steps of {run.training.batch_size} × {run.data.sequence_length} tokens each"
    )
    return "; ".join([words, *cautions(run.training)])


def cautions(training: TrainingSettings) -> list[str]:
    """What in the settings of a run is allowed and hardly ever meant, in words."""
    if training.warmup_steps < training.steps:
        return []
    share = training.steps / training.warmup_steps
    return [
        f"the learning rate only rises, to {100 * share:.0f} % of its peak, because training.warmup_steps "
        f"({training.warmup_steps}) is not below training.steps ({training.steps}); lower it"
    ]
