"""What work was made from, and the model that it left, each known by its SHA-256 (1 to 2 GB/s) in a file of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase.errors import InputError
from antiphase.reading.files import read_text, reading
from antiphase.records import write_atomically

TEXT = "text.sha256"
START = "start.sha256"
MODEL = "model.sha256"
RESTORE = "restore it, or choose another folder"


def hash_of(tree: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        InputError: it cannot be read.
    """
    with reading(path, ""), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(paths: Sequence[Path]) -> str:
    """SHA-256 of files, in this order."""
    return hash_of([file_digest(path) for path in paths])


def check_content(folder: Path, content: str | None) -> None:
    """Keep which tokens a run or study reads, or refuse to go on with others. None: no text.

    Raises:
        InputError: the text, the tokenizer or the tasks' wording changed since the run began.
    """
    if content is not None and not _keep(folder / TEXT, content):
        raise InputError(
            f"--output {folder} began with other text: what --data or --validation names, the tokenizer, or the words "
            "of the tasks in another version of antiphase; restore it, or choose another folder"
        )


def check_start(folder: Path, digest: str) -> None:
    """Keep which weights a run starts from, or refuse to go on with others.

    Raises:
        InputError: the folder of ``training.start_from`` holds other weights than when the run began.
    """
    if not _keep(folder / START, digest):
        raise InputError(
            f"--output {folder} began from other weights than training.start_from holds now; restore them, or choose "
            "another folder"
        )


def check_text(folder: Path, study: Path) -> None:
    """That a finished run of a study read the study's text, which may have changed before the run began.

    Raises:
        InputError: it read other text.
    """
    if (study / TEXT).is_file() and not is_same_content(folder, read_text(study / TEXT, "", RESTORE).strip()):
        raise InputError(
            f"{folder} was trained on other text than its study began with; bring the text back and remove that "
            "folder, and --resume trains the run again"
        )


def is_same_content(folder: Path, content: str) -> bool:
    """Whether a run or study read these tokens; true where it did not keep which."""
    return _is_kept(folder / TEXT, content)


def model_digest(folder: Path) -> str:
    """SHA-256 of a model's folder: weights, configuration and tokenizer."""
    weights = sorted(path for path in folder.glob("*.safetensors") if path.stem != "record")
    return digest_of([*filter(Path.is_file, [*weights, folder / "config.json", folder / "tokenizer.json"])])


def keep_model(folder: Path) -> None:
    """Keep which model a run has written."""
    _write(folder / MODEL, model_digest(folder))


def check_model(folder: Path) -> None:
    """That a finished run, which is not trained again, still holds its model; true where it did not keep which.

    Raises:
        InputError: its weights, configuration or tokenizer are others.
    """
    if (folder / MODEL).is_file() and not _is_kept(folder / MODEL, model_digest(folder)):
        raise InputError(
            f"{folder} holds another model than its run wrote: weights, config.json or tokenizer.json have changed; "
            "restore them, or remove that folder, and --resume trains the run again"
        )


def _keep(path: Path, digest: str) -> bool:
    """Keep it, or say whether it is the one that is kept."""
    if not path.is_file():
        _write(path, digest)
    return _is_kept(path, digest)


def _is_kept(path: Path, digest: str) -> bool:
    return not path.is_file() or read_text(path, "", RESTORE).strip() == digest


def _write(path: Path, digest: str) -> None:
    write_atomically(path, f"{digest}\n".encode())
