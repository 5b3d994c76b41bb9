"""Runs a measurement in a folder, from settings to record.

The ``measure`` module of a measurement of one model has ``contents`` (digests of inputs besides model and settings),
``prepare`` (loads the data) and ``measure``; one of several models or with files of its own has its own ``evaluate``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphase.base.folders.journal import journal_in
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.records import Record
from antiphase.lab.catalog import Measurement, every
from antiphase.lab.measures.held_out import tokens_of
from antiphase.lab.measures.inputs import inputs_of, model_content
from antiphase.lab.measures.parts import Parts
from antiphase.lab.measures.settings import CausalModelSettings
from antiphase.lab.scoring.loading import load_model, openings_of, origins, refused_by_model
from antiphase.lab.settings.flags import Settings
from antiphase.lab.settings.naming import naming
from antiphase.lab.text.prepare import PreparedData
from antiphase.lab.training.device import loading_options

FLAGS = {
    "data.sequence_length": "--length", "data.needles": "--needles", "data.queries": "--queries",
    "--set data.text_field=NAME": "--text-field NAME",
}  # fmt: skip
"""Flags of ``antiphase evaluate`` for fields of a preset."""


def settings_of(measurement: str, **values: Any) -> Any:
    """Settings of a measurement, given its name."""
    return next(found for found in every() if found.name == measurement).settings(**values)


def evaluate(
    settings: Any,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Run the measurement to which the settings belong.

    Writes ``record.json`` in ``output``. With ``resume``, an existing one is returned, and long measurements continue
    after the last part that they stored.

    Args:
        report: called with the number of finished parts and the total.

    Raises:
        InputError: a model, text or size cannot be used, or the output folder has other contents.
    """
    settings.check()
    started = time.perf_counter()
    measurement = measurement_with(settings)
    module = measurement.measure
    if hasattr(module, "evaluate"):
        resumed = {"resume": resume} if settings.folder == "resumable" else {}
        found: Record = module.evaluate(settings, output, **resumed, say=say, report=report)
        return found

    def inputs() -> dict[str, Any]:
        contents = {"the measurement": measurement.name, "the files of MODEL": model_content(settings.name)}
        return inputs_of(settings, {**contents, **module.contents(settings)})

    with journal_in(output, inputs, resume=resume) as journal, undone_if_refused(tokens_of(output)), naming(FLAGS):
        if journal.record is not None:
            return journal.record
        causal = isinstance(settings, CausalModelSettings)
        loaded = load_model(settings.name, **loading_options(settings), with_head=causal)
        data = module.prepare(loaded, settings, output, say)
        journal.begin()
        say(f"measuring {measurement.name}")
        with refused_by_model(settings.name):
            result = module.measure(loaded, data, settings, Parts(report, journal))
        read = {**origins([loaded]), **openings_of(loaded)}
        if isinstance(data, PreparedData):
            read["data"] = data.settings
        written: Record = result.save(output, settings, seconds=time.perf_counter() - started, **read)
        return written


def measurement_with(settings: Settings) -> Measurement:
    """The measurement to which the settings belong."""
    return next(found for found in every() if found.settings is type(settings))
