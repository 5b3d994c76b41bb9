"""A measurement of one model in a folder: from settings to record.

The measurement's ``measure`` module has ``contents`` (digests of what the result depends on beside model and settings),
``prepare`` (whatever it measures on) and ``measure`` itself; or, where it measures several models part by part, an
``evaluate`` of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphase.data.prepare import PreparedData
from antiphase.errors import naming
from antiphase.evals.loading import load_model, refused_by_model
from antiphase.evaluations.held_out import tokens_of
from antiphase.evaluations.inputs import inputs_of, model_content
from antiphase.evaluations.settings import ModelSettings
from antiphase.flags import Settings
from antiphase.folders.held import undone_if_refused
from antiphase.folders.journal import journal_in
from antiphase.records import Record, finite
from antiphase.registry import Measurement, measurements
from antiphase.training.loop import choose_device

FLAGS = {"data.sequence_length": "--length", "data.needles": "--needles", "data.queries": "--queries"}
"""Fields of a preset that ``antiphase evaluate`` has flags for."""


def settings_of(measurement: str, **values: Any) -> Any:
    """Settings of a measurement, by its name."""
    return measurements("evaluate")[measurement].settings(**values)


def evaluate(
    settings: Settings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Measure a model by what its settings belong to.

    Writes ``record.json`` in ``output``; with ``resume``, one that is there already is returned.

    Args:
        report: called with parts done and their number.

    Raises:
        InputError: a model, text or size that cannot be used, or an output folder with other contents.
    """
    settings.check()
    started = time.perf_counter()
    measurement = measurement_with(settings)
    module = measurement.measure
    if not isinstance(settings, ModelSettings):
        record: Record = module.evaluate(settings, output, resume=resume, say=say, report=report)
        return record

    def inputs() -> dict[str, Any]:
        contents = {"the measurement": measurement.name, "the files of MODEL": model_content(settings.name)}
        return inputs_of(settings, {**contents, **module.contents(settings)})

    with journal_in(output, inputs, resume=resume) as journal, undone_if_refused(tokens_of(output)), naming(FLAGS):
        if journal.record is not None:
            return journal.record
        loaded = load_model(settings.name, device=str(choose_device(settings.device)))
        data = module.prepare(loaded, settings, output, say)
        journal.begin()
        say(f"measuring {measurement.name}")
        with refused_by_model(settings.name):
            result = module.measure(loaded, data, settings, report)
        read = {"data": data.settings} if isinstance(data, PreparedData) else {}
        record = Record(
            kind=measurement.kind,
            values=finite({"model": settings.name, **finite(result)}),
            config=finite({**read, **vars(settings)}),
            seeds=[settings.seed],
            seconds=time.perf_counter() - started,
        )
        measurement.result.read(record)  # refuses a result that its own type could not read again
        record.save(output)
    return record


def measurement_with(settings: Settings) -> Measurement:
    """The measurement that has these settings."""
    return next(found for found in measurements("evaluate").values() if found.settings is type(settings))
