"""Results written line by line as soon as they are known, so that long work goes on after a kill.

A measurement's folder holds, beside its record, what it was made from: no other work is taken for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from antiphase.config import load_preset
from antiphase.data.corpora import fingerprint
from antiphase.data.prepare import wording
from antiphase.errors import InputError
from antiphase.evals.task_files import read_task
from antiphase.flags import Settings
from antiphase.records import Record, finite, write_atomically
from antiphase.training.run_folder import SETTINGS, check_empty, only_one, undone_if_refused

JOURNAL = "journal.jsonl"
INPUTS = "inputs"
"""Key of the journal's line that says what the work is made from."""
MODEL_FILES = {".safetensors", ".bin", ".json", ".txt", ".model", ".jinja", ".yaml"}
"""Weights, configuration, tokenizer, and the settings of a run."""


def hash_of(tree: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Add a line that survives a kill."""
    with open(path, "ab") as file:
        file.write((json.dumps(values) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, *names: str) -> list[dict[str, Any]]:
    """Lines of JSON objects that have these names; a last one that a kill has torn is left out, and cut off.

    Raises:
        InputError: a whole line is something else.
    """
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_atomically(path, whole)
    return [_checked(path, place, line, names) for place, line in enumerate(whole.split(b"\n"), start=1) if line]


def _checked(path: Path, place: int, line: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not set(names) <= found.keys():
        raise InputError(
            f"{path}, line {place}: this is no result of antiphase; take the line away, or choose another folder"
        )
    return found


class Journal:
    """What a measurement is made from, and the parts of it that are known already, in the folder of its record."""

    def __init__(self, output: Path, inputs: Callable[[], Mapping[str, Any]]) -> None:
        """
        Args:
            inputs: all that the result depends on, by what the command line calls it.

        Raises:
            InputError: the folder's work has other inputs.
        """
        self.path, self.inputs = output / JOURNAL, inputs
        self.known: dict[str, Any] = {line["key"]: line["rows"] for line in read_lines(self.path, "key", "rows")}
        self.record: Record | None = None
        """The finished one."""
        if INPUTS in self.known:
            before, now = self.known[INPUTS], finite(inputs())
            if changed := [word for word in {**before, **now} if before.get(word) != now.get(word)]:
                raise InputError(
                    f"--output {output} holds work with other settings or content ({', '.join(changed)}); choose "
                    "another folder"
                )
            self.record = Record.load(output) if (output / "record.json").is_file() else None

    def begin(self) -> None:
        """Keep the inputs, unless they are kept; nothing is measured before."""
        if INPUTS not in self.known:
            self.add(INPUTS, self.inputs())

    def key(self, *part: Any) -> str:
        """Of a part of this very work, named in plain values."""
        return hash_of([self.known[INPUTS], *part])

    def add(self, key: str, rows: Any) -> None:
        """Keep what was found of a part."""
        self.known[key] = finite(rows)
        append_line(self.path, {"key": key, "rows": self.known[key]})


def inputs_of(settings: Settings, contents: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their flags, and digests of contents.

    What has been measured stays true on another device.
    """
    return {word: value for word, value in settings.by_flag().items() if word != "--device"} | dict(contents)


def model_content(name: str) -> str:
    """By what a model is known again without being loaded: a digest of its files, or the commit on the Hub.

    Raises:
        InputError: it is neither a folder nor a model that the Hub has.
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            return Path(cached_file(name, "config.json")).parent.name  # .../snapshots/COMMIT/config.json
        except OSError as error:
            raise InputError(
                f"MODEL {name}: there is no such folder, and no such model could be read from the Hub; check the name"
            ) from error
    files = [path for path in folder.iterdir() if path.suffix in MODEL_FILES and path.stem != "record"]
    return _digest(path for path in files if path.is_file())


def text_content(name: str, paths: Sequence[str], text_field: str | None) -> dict[str, str]:
    """Digests of the text that a model is measured on: what ``--data`` names, or what its own run read.

    Raises:
        InputError: text that is missing or cannot be read.
    """
    found = {"the wording of the tasks": wording()}
    if paths:
        return {"what --data names": fingerprint(paths, text_field), **found}
    settings = Path(name) / SETTINGS
    data = load_preset(str(settings)).run.data if settings.is_file() else None
    if data is not None and data.source == "text":
        found["the text that MODEL was trained on"] = fingerprint([*data.paths, *data.validation], data.text_field)
    return found


def task_content(paths: Sequence[str]) -> dict[str, str]:
    """Digest of task files and of the data that they name.

    Raises:
        InputError: a file that is missing or cannot be read.
    """
    found: list[Any] = []
    for path in paths:
        settings, folder = read_task(path)
        named: list[Any] = []
        for given in (settings.data, settings.demonstrations, settings.columns):
            named += given.values() if isinstance(given, Mapping) else [] if given is None else [given]
        local = [str(folder / str(one)) if (folder / str(one)).exists() else str(one) for one in named]
        found.append([asdict(settings), fingerprint(local, flag=f"--task {path}: data") if local else None])
    return {"what --task names": hash_of(finite(found))}


def _digest(paths: Iterable[Path]) -> str:
    """SHA-256 of files and their names."""
    found = []
    for path in sorted(paths):
        with path.open("rb") as file:
            found.append([path.name, hashlib.file_digest(file, "sha256").hexdigest()])
    return hash_of(found)


@contextmanager
def work_in(output: Path, name: str, *, resume: bool) -> Iterator[None]:
    """Hold the folder of work whose parts are kept in lines of the file ``name``, each by what it was made from.

    Raises:
        InputError: it holds something else, or is in use.
    """
    if not (output / name).is_file():
        check_empty(output)
    elif not resume:
        raise InputError(f"--output {output} holds this work already; add --resume to go on with it, or choose another")
    with only_one(output):
        yield


@contextmanager
def journal_in(output: Path, inputs: Callable[[], Mapping[str, Any]], *, resume: bool) -> Iterator[Journal]:
    """Hold the folder of a measurement: a new one, or with ``resume`` one that holds this very measurement.

    Raises:
        InputError: it holds something else, or is in use.
    """
    if not (output / JOURNAL).is_file():
        check_empty(output)
    elif not resume:
        raise InputError(
            f"--output {output} exists and is not empty; add --resume to go on with what it holds, or choose another "
            "folder"
        )
    with only_one(output), undone_if_refused(output):
        yield Journal(output, inputs)
