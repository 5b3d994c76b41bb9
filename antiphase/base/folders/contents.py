"""SHA-256 digests (1 to 2 GB/s) of a work's inputs and of its model, each in its own file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.base.files import read_text, reading
from antiphase.base.records import write_atomically

TEXT = "text.sha256"
START = "start.sha256"
MODEL = "model.sha256"
RESTORE = "restore it, or choose another folder"


def hash_of(tree: Any) -> str:
    """SHA-256 of plain JSON values."""
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def file_digest(path: Path, field: str = "") -> str:
    """SHA-256 of a file; ``field`` names it in messages.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(path, field), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(paths: Sequence[Path]) -> str:
    """SHA-256 of several files, in this order."""
    return hash_of([file_digest(path) for path in paths])


def check_content(folder: Path, content: str | None) -> None:
    """Store the digest of the tokens that a run or study reads, or check that it has not changed. None means no text.

    Raises:
        InputError: the text, the tokenizer or the tasks' wording has changed since the run began.
    """
    if content is not None and not _keep(folder / TEXT, content):
        raise InputError(
            f"{named('output', folder)} began with other text: what {named('data')} or {named('validation')} names, "
            "the tokenizer, or the words of the tasks in another version of antiphase",
            RESTORE,
        )


def check_start(folder: Path, digest: str) -> None:
    """Store the digest of the weights that a run or a study's arms start from, or check that it has not changed.

    Raises:
        InputError: the weights in the folder of ``training.start_from`` have changed since then.
    """
    if not _keep(folder / START, digest):
        raise InputError(
            f"{named('output', folder)} began from other weights than training.start_from holds now",
            "restore them, or choose another folder",
        )


def check_text(folder: Path, study: Path) -> None:
    """Check that a finished run of a study read the study's text, which may have changed before the run began.

    Raises:
        InputError: it read a different text.
    """
    if (study / TEXT).is_file() and not is_same_content(folder, read_text(study / TEXT, "", RESTORE).strip()):
        raise InputError(
            f"{named('', folder)} was trained on other text than its study began with",
            f"restore the text and remove that folder; {named('resume')} then trains the run again",
        )


def is_same_content(folder: Path, content: str) -> bool:
    """Whether a run or study read these tokens; True if it stored no digest."""
    return _is_kept(folder / TEXT, content)


def model_digest(folder: Path) -> str:
    """SHA-256 of a model's folder: the weights in safetensors, config.json and tokenizer.json."""
    return digest_of(_model_files(folder))


def _model_files(folder: Path) -> list[Path]:
    weights = sorted(path for path in folder.glob("*.safetensors") if path.stem != "record")
    return [*filter(Path.is_file, [*weights, folder / "config.json", folder / "tokenizer.json"])]


def keep_model(folder: Path) -> None:
    """Store the digest of the model that a run has written."""
    _write(folder / MODEL, model_digest(folder))


def check_model(
    folder: Path, *, field: str = "", remedy: str = f"or remove that folder, and {named('resume')} trains the run again"
) -> None:
    """Check that a folder still has the model that its run wrote; passes if the run stored no digest.

    Raises:
        InputError: its weights, configuration or tokenizer have changed.
    """
    if (folder / MODEL).is_file() and not _is_kept(folder / MODEL, model_digest(folder)):
        files = ", ".join(path.name for path in _model_files(folder)) or "its files"
        raise InputError(
            f"{named(field, folder)} holds another model than its run wrote: {files} do not fit {MODEL}",
            f"restore them, {remedy}",
        )


def check_loaded(name: str, field: str) -> None:
    """``check_model`` for a model that a command has read from a folder or from the Hub.

    Raises:
        InputError: it is not the one that its run wrote.
    """
    check_model(Path(name), field=field, remedy=f"or remove {MODEL} to use the model as it is")


def _keep(path: Path, digest: str) -> bool:
    """Store the digest, or return whether it equals the stored one."""
    if not path.is_file():
        _write(path, digest)
    return _is_kept(path, digest)


def _is_kept(path: Path, digest: str) -> bool:
    return not path.is_file() or read_text(path, "", RESTORE).strip() == digest


def _write(path: Path, digest: str) -> None:
    write_atomically(path, f"{digest}\n".encode())
