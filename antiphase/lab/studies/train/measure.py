"""What ``antiphase train`` does: a run of ``training_run``, with settings from a preset and flags."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from antiphase.base.errors import InputError
from antiphase.lab.studies.plan import Plan, cautions
from antiphase.lab.studies.started import overrides_from, repeated_batches
from antiphase.lab.studies.train import TrainSettings
from antiphase.lab.studies.training_run import train_run


def plan(settings: TrainSettings, output: Path) -> Plan:
    """``train_run`` with these settings."""
    for override in settings.settings:
        if override.startswith("compare."):
            raise InputError(f"--set {override}: train trains one model; antiphase compare trains arms")
    start = settings.start_from
    first = [] if start is None else overrides_from(start, settings.settings, field="start_from")
    run = settings.chosen_preset(first).run
    announced = [*cautions(run.training), *repeated_batches(run)]
    return Plan(partial(train_run, run), announced=announced, steps=run.training.steps)
