"""Inputs of a measurement: its settings by their names on the command line, and digests of contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from antiphase.base.errors import within
from antiphase.base.files import reading
from antiphase.base.folders.contents import file_digest, hash_of
from antiphase.base.folders.work import may_change
from antiphase.base.records import finite
from antiphase.lab.settings.flags import Settings, flags_of
from antiphase.lab.settings.presets import kept_run
from antiphase.lab.text.corpora import fingerprint
from antiphase.lab.text.prepare import wording
from antiphase.lab.text.tasks.task_files import place_of, read_task
from antiphase.lab.training.run_folder import SETTINGS
from antiphase.models.sources.failures import asking_hub
from antiphase.models.sources.gguf import is_gguf

MODEL_FILES = {".safetensors", ".bin", ".json", ".txt", ".model", ".jinja", ".yaml"}
"""Suffixes of weights, configuration, tokenizer, and settings of a run."""


def inputs_of(settings: Settings, contents: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their flags, without those that resumed work may change, and digests of contents."""
    kept = {own.name: getattr(settings, name) for name, own in flags_of(settings).items() if not may_change(name)}
    return kept | dict(contents)


def model_content(name: str) -> str:
    """Identifies a model without loading it: a digest of its files, or its commit on the Hub.

    Raises:
        InputError: it is neither a folder nor a model on the Hub.
    """
    folder = Path(name)
    if is_gguf(name):
        with reading(name, "model"):
            return hash_of(file_digest(folder))
    if not folder.is_dir():
        with asking_hub(name, "model"):
            return Path(cached_file(name, "config.json")).parent.name  # .../snapshots/COMMIT/config.json
    files = sorted(path for path in folder.iterdir() if path.suffix in MODEL_FILES and path.stem != "record")
    return hash_of([[path.name, file_digest(path)] for path in files if path.is_file()])


def text_content(name: str, paths: Sequence[str], text_field: str | None) -> dict[str, str]:
    """Digests of the text of a measurement: that of ``--data``, or that of the model's own run.

    Raises:
        InputError: the text is missing or cannot be read.
    """
    found = {"the wording of the tasks": wording()}
    if paths:
        return {"what --data names": fingerprint(paths, text_field), **found}
    settings = Path(name) / SETTINGS
    data = kept_run(settings, field="model").data if settings.is_file() else None
    if data is not None and data.source == "text":
        found["the text that MODEL was trained on"] = fingerprint([*data.paths, *data.validation], data.text_field)
    return found


def task_content(paths: Sequence[str], columns: tuple[str | None, str | None] = (None, None)) -> dict[str, str]:
    """Digests of task files and of the data that they name.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    found: list[Any] = []
    for path in paths:
        settings, folder = read_task(path, columns)
        named: list[Any] = []
        for given in (settings.data, settings.demonstrations, settings.columns):
            named += given.values() if isinstance(given, Mapping) else [] if given is None else [given]
        local = [place_of(folder, one) for one in named]
        with within("task", path):
            found.append([asdict(settings), fingerprint(local, field=".data") if local else None])
    return {"what --task names": hash_of(finite(found))}
