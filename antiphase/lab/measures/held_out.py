"""Held-out text of a measurement: the text in the settings, or the held-out text of the model's own run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, renamed, worded
from antiphase.base.folders.contents import is_same_content
from antiphase.lab.measures.inputs import text_content
from antiphase.lab.measures.settings import HeldOutSettings, RetrievalTextSettings, TextSettings
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text.packing import pack
from antiphase.lab.text.prepare import PreparedData, check_task, is_cache, seen_text
from antiphase.lab.text.prepare import prepare as prepare_data
from antiphase.lab.text.tokenization import opening_of_text
from antiphase.lab.training.run_folder import runs_behind

FOREIGN_LENGTH = 512
"""Sequence length in tokens for a model that was not trained here, if ``--length`` is not given."""


def tokens_of(output: Path) -> Path:
    """Folder for the tokens during a measurement, next to its output folder."""
    return output.parent / f"{output.name}-tokens"


def contents(settings: HeldOutSettings) -> dict[str, Any]:
    """Digests of the text."""
    return dict(text_content(settings.name, settings.paths, settings.text_field))


def prepare(loaded: LoadedModel, settings: TextSettings, output: Path, say: Callable[[str], None]) -> PreparedData:
    """The text in sequences for the model.

    Raises:
        InputError: the text or the length cannot be used.
    """
    check_length(settings.length or 0, context_length(loaded.model), settings.name)
    return data_for(loaded, settings, output, say)


def check_length(length: int, longest: int | None, name: str) -> None:
    """
    Raises:
        InputError: sequences are longer than what a model reads.
    """
    if longest is not None and length > longest:
        raise InputError(f"--length {length} is longer than the {longest} positions of {name}; shorten it")


def check_words(loaded: LoadedModel) -> None:
    """That a model can read text.

    Raises:
        InputError: it was trained on the synthetic task, whose vocabulary has no words.
    """
    if loaded.settings is not None and loaded.settings.data.source == "synthetic":
        raise InputError(f"--data cannot be used: {loaded.name} has only the vocabulary of the synthetic task")


def data_for(loaded: LoadedModel, asked: HeldOutSettings, output: Path, say: Callable[[str], None]) -> PreparedData:
    """Held-out data: the given text, or the held-out text of the model's own run."""
    longest = context_length(loaded.model) or FOREIGN_LENGTH
    unknown = DataSettings(source="text", sequence_length=min(FOREIGN_LENGTH, longest))
    sizes: dict[str, Any] = dict(asked.data_sizes())
    trained = loaded.settings.data if loaded.settings else unknown
    trained = replace(trained, lengths=[])  # of training, which the sizes asked for need not fit
    settings = replace(trained, **sizes)
    if asked.paths:
        check_words(loaded)
    if not asked.paths and loaded.settings is None:
        raise InputError(f"--data is missing: {loaded.name} was not trained here, so it needs held-out text")
    if not asked.paths and settings.source == "synthetic":
        return prepare_data(settings, tokens_of(output), progress=say)
    if not asked.paths:
        kept = settings.cache is not None and is_cache(Path(settings.cache).expanduser())  # a run may have been moved
        own = replace(trained, tokenizer=loaded.name, cache=settings.cache if kept else None)
        data = prepare_data(own, tokens_of(output), progress=say)
        if data.content is not None and not is_same_content(Path(loaded.name), data.content):
            raise InputError(
                f"the text that {loaded.name} was trained on, or the wording of its tasks, has changed since, so its "
                "held-out part is unknown; give held-out text with --data"
            )
        cut = _cut(data, replace(own, **sizes), loaded.name)
        if isinstance(asked, RetrievalTextSettings):
            check_task(cut.task())
        return cut
    paths, text_field = list(asked.paths), asked.text_field
    settings = replace(settings, source="text", paths=[], validation=paths, text_field=text_field)
    tell_of_training_text(loaded.name, settings, say)
    opening = opening_of_text(loaded.tokenizer)
    if settings.sequence_length <= len(opening):
        raise InputError(f"--length {settings.sequence_length} has no room for text; raise it")
    say("packing the text into tokens")
    packed = pack(
        paths, loaded.tokenizer, sequence_length=settings.sequence_length - len(opening), text_field=text_field,
        cache=tokens_of(output),
    )  # fmt: skip
    return PreparedData(settings, loaded.tokenizer, None, packed, opening)


def tell_of_training_text(
    name: str, measured: DataSettings, say: Callable[[str], None], *, field: str = "model"
) -> None:  # fmt: skip
    """Say if a text is one that the model was trained on and that is still there: its loss is no held-out loss.

    Args:
        measured: its ``validation`` is read, or where it names none what it holds out of ``paths``.
    """
    paths = measured.validation or measured.paths
    trained_on = f"what {name} was trained on"
    for _, run in runs_behind(name, field=field):
        parts = [(one.paths, one.validation, one.validation_share, one.text_field) for one in (run.data, measured)]
        if parts[0] == parts[1]:  # two models of one study
            continue
        known = [path for path in run.data.paths if Path(path).expanduser().exists()]
        with renamed({"validation": "data", "data": trained_on}):
            found = seen_text(known, paths, field=trained_on)
        if found:
            say(worded(f"{found[0]}; this measures text that was trained on"))
            break


def _cut(data: PreparedData, settings: DataSettings, name: str) -> PreparedData:
    """What a run held out, in other sizes. A share of the text is split off in blocks of the run's own length: in
    others it would begin elsewhere, and hold text that was trained on.

    Raises:
        InputError: sequences longer than the text.
    """
    assert data.validation_text is not None
    text = replace(data.validation_text, sequence_length=settings.sequence_length)
    if not len(text):
        raise InputError(
            f"--length {settings.sequence_length} is longer than the {len(text.tokens)} tokens that {name} held out; "
            "shorten it, or give held-out text with --data"
        )
    return replace(data, settings=settings, validation_text=text)
