"""Runs a measurement in a folder, from settings to record.

The ``measure`` module of a measurement of one model has ``contents`` (digests of inputs besides model and settings),
``prepare`` (loads the data) and ``measure``; one of several models or with files of its own has its own ``evaluate``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named, renamed
from antiphase.base.folders.journal import Journal, journal_in
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.records import Record, finite
from antiphase.lab.catalog import Measurement, every
from antiphase.lab.measures.held_out import check_length, tell_of_training_text, tokens_of
from antiphase.lab.measures.inputs import inputs_of, model_content
from antiphase.lab.measures.parts import Parts
from antiphase.lab.measures.settings import CausalModelSettings, ComparedSettings
from antiphase.lab.scoring.lengths import positions_of
from antiphase.lab.scoring.loading import LoadedModel, load_model, openings_of, origins, refused_by_model
from antiphase.lab.settings.flags import Settings
from antiphase.lab.settings.naming import naming
from antiphase.lab.text.prepare import PreparedData
from antiphase.lab.text.tokenization import opening_of_text
from antiphase.lab.training.device import loading_options
from antiphase.models.sources.models import read_config
from antiphase.models.sources.tokenizers import load_tokenizer

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

    others = others_of(settings)
    with measured_in(output, settings, partial(module.contents, settings), resume=resume) as journal:
        if journal.record is not None:
            return journal.record
        causal = isinstance(settings, CausalModelSettings)
        loaded = load_model(settings.name, **loading_options(settings), with_head=causal)
        data = module.prepare(loaded, settings, output, say)
        if isinstance(data, PreparedData):
            for name in others:
                _check_other(loaded, name, data.settings.sequence_length)
                tell_of_training_text(name, data.settings, say, field="against")
        journal.begin()
        say(f"measuring {measurement.name}")
        parts, count = Parts(report, journal), 1 + len(others)
        with refused_by_model(settings.name):
            result = module.measure(loaded, data, settings, parts.within(0, count))
        read = {**origins([loaded, *others]), **openings_of(loaded)}
        against: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(others, start=1):
            own = replace(settings, name=name, against=())
            with renamed({"model": "against"}), refused_by_model(name):
                loaded = load_model(name, **loading_options(own))
                say(f"measuring {measurement.name} of {name}")
                again = data if isinstance(data, PreparedData) else module.prepare(loaded, own, output, say)
                found = module.measure(loaded, again, own, parts.within(index, count, name))
            against[name] = {key: value for key, value in finite(found).items() if key != "against"}
        if against:
            result = replace(result, against=against)
        if isinstance(data, PreparedData):
            read["data"] = data.settings
        written: Record = result.save(output, settings, seconds=time.perf_counter() - started, **read)
        return written


@contextmanager
def measured_in(
    output: Path, settings: Any, contents: Callable[[], Mapping[str, Any]], *, resume: bool
) -> Iterator[Journal]:
    """The journal of a measurement in its folder; it is that of these settings, models and further contents."""
    others = others_of(settings)

    def inputs() -> dict[str, Any]:
        found: dict[str, Any] = {"the measurement": measurement_with(settings).name}
        found["the files of MODEL"] = model_content(settings.name)
        if others:
            with renamed({"model": "against"}):
                found["the files of --against"] = [model_content(name) for name in others]
        found = inputs_of(settings, {**found, **contents()})
        return {word: value for word, value in found.items() if others or word != "--against"}

    with journal_in(output, inputs, resume=resume) as journal, undone_if_refused(tokens_of(output)), naming(FLAGS):
        yield journal


def others_of(settings: Any) -> Sequence[str]:
    """Names of the models that are compared with the first."""
    return settings.against if isinstance(settings, ComparedSettings) else ()


def _check_other(first: LoadedModel, name: str, length: int) -> None:
    """
    Raises:
        InputError: a model to compare reads shorter sequences, or has another tokenizer, or one that opens texts in
            another way, so its loss per token is of other tokens.
    """
    check_length(length, positions_of(read_config(name, field="against")), name)
    tokenizer = load_tokenizer(name, field="against")
    if tokenizer.get_vocab() != first.tokenizer.get_vocab():
        raise InputError(
            f"{named('against', name)} has other tokens than {first.name}, so their losses per token do not compare; "
            "measure each alone with evaluate long-context and compare bits per byte"
        )
    if opening_of_text(tokenizer) != opening_of_text(first.tokenizer):
        raise InputError(f"{named('against', name)} opens texts in another way than {first.name}; measure each alone")


def measurement_with(settings: Settings) -> Measurement:
    """The measurement to which the settings belong."""
    return next(found for found in every() if found.settings is type(settings))
