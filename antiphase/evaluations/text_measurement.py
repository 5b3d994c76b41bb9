"""A measurement of one model on held-out text, in a folder: from settings to record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphase.config import DataSettings
from antiphase.data.packing import pack
from antiphase.data.prepare import PreparedData, prepare
from antiphase.errors import InputError, naming
from antiphase.evals.loading import LoadedModel, load_model, refused_by_model
from antiphase.evaluations.journal import inputs_of, journal_in, model_content, text_content
from antiphase.evaluations.settings import TextSettings
from antiphase.records import Record, finite
from antiphase.registry import Measurement, measurements
from antiphase.training.loop import choose_device
from antiphase.training.run_folder import is_same_content, undone_if_refused

FLAGS = {"data.sequence_length": "--length", "data.needles": "--needles", "data.queries": "--queries"}
"""Fields of a preset that ``antiphase evaluate`` has flags for."""
FOREIGN_LENGTH = 512
"""Tokens in a sequence for a model that was not trained here, unless ``--length`` says otherwise."""


def settings_of(measurement: str, **values: Any) -> TextSettings:
    """Settings of a measurement, by its name."""
    found: TextSettings = measurements("evaluate")[measurement].settings(**values)
    return found


def evaluate(
    settings: TextSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Measure one model by what its settings belong to.

    Writes ``record.json`` in ``output``; with ``resume``, one that is there already is returned.

    Raises:
        InputError: a model, text or size that cannot be used, or an output folder with other contents.
    """
    settings.check()
    started = time.perf_counter()
    measurement = measurement_with(settings)

    def inputs() -> dict[str, Any]:
        text = text_content(settings.name, settings.paths, settings.text_field)
        contents = {"the measurement": measurement.name, "the files of MODEL": model_content(settings.name), **text}
        return inputs_of(settings, contents)

    with journal_in(output, inputs, resume=resume) as journal, undone_if_refused(tokens_of(output)), naming(FLAGS):
        if journal.record is not None:
            return journal.record
        loaded = load_model(settings.name, device=str(choose_device(settings.device)))
        longest = getattr(loaded.model.config, "max_position_embeddings", None)
        if longest is not None and (settings.length or 0) > longest:
            raise InputError(
                f"--length {settings.length} is longer than the {longest} positions of {settings.name}; shorten it"
            )
        data = data_for(loaded, settings, output, say)
        journal.begin()
        say(f"measuring {measurement.name}")
        with refused_by_model(settings.name):
            result = measurement.measure.measure(loaded, data, settings)
        record = Record(
            kind=measurement.kind,
            values=finite({"model": settings.name, **finite(result)}),
            config=finite({"data": data.settings, **vars(settings)}),
            seeds=[settings.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def measurement_with(settings: TextSettings) -> Measurement:
    """The measurement that has these settings."""
    return next(found for found in measurements("evaluate").values() if found.settings is type(settings))


def tokens_of(output: Path) -> Path:
    """Where a measurement keeps its tokens while it is at work: next to its folder."""
    return output.parent / f"{output.name}-tokens"


def data_for(loaded: LoadedModel, asked: TextSettings, output: Path, say: Callable[[str], None]) -> PreparedData:
    """Held-out data: the given text, or what the model's own run held out."""
    longest = getattr(loaded.model.config, "max_position_embeddings", None) or FOREIGN_LENGTH
    unknown = DataSettings(source="text", sequence_length=min(FOREIGN_LENGTH, longest))
    settings = loaded.settings.data if loaded.settings else unknown
    sizes = asked.task_sizes()
    settings = replace(
        settings, sequence_length=asked.length or settings.sequence_length,
        needles=sizes.get("needles", settings.needles), queries=sizes.get("queries", settings.queries),
    )  # fmt: skip
    if asked.paths and loaded.settings is not None and settings.source == "synthetic":
        raise InputError(f"--data has no use here: {loaded.name} knows the words of the synthetic task only")
    if not asked.paths and loaded.settings is None:
        raise InputError(f"--data is missing: {loaded.name} was not trained here, so it needs held-out text")
    if not asked.paths:
        tokenizer = settings.tokenizer if settings.source == "synthetic" else loaded.name
        kept = settings.cache is not None and Path(settings.cache).is_dir()  # a run may have been moved
        cache = settings.cache if kept else None
        data = prepare(replace(settings, tokenizer=tokenizer, cache=cache), tokens_of(output), progress=say)
        if data.content is not None and not is_same_content(Path(loaded.name), data.content):
            raise InputError(
                f"the text that {loaded.name} was trained on, or the wording of its tasks, has changed since, so what "
                "it held out is not known any more; give held-out text with --data"
            )
        return data
    paths, text_field = list(asked.paths), asked.text_field
    settings = replace(settings, source="text", paths=[], validation=paths, text_field=text_field)
    say("packing the text into tokens")
    packed = pack(
        paths,
        loaded.tokenizer,
        sequence_length=settings.sequence_length,
        text_field=text_field,
        cache=tokens_of(output),
    )
    return PreparedData(settings, loaded.tokenizer, None, packed)
