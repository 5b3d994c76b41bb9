"""A run's folder: its settings, its log of metrics, and the rule that no run is ever overwritten."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from antiphase.config import RunSettings, load_preset, to_yaml
from antiphase.errors import DivergedError, InputError
from antiphase.records import Record, write_atomically

SETTINGS = "run.yaml"
METRICS = "metrics.jsonl"
CURVE = "curve.json"
"""Evaluations so far, for whoever watches the run; what a resumed run goes on from is in its checkpoint."""
LOCK = ".lock"
CONTENT = "text.sha256"
START = "start.sha256"
MODEL = "model.sha256"
WITHOUT_EFFECT = ("training.threads", "training.start_from", "data.cache", "data.tokenizer", "description")
"""Settings that a resumed run may change: how many cores there are, where things lie, and words. Whether a run starts
from another's weights stays.

What text, tokenizer and first weights are is kept beside the settings, in ``text.sha256`` and ``start.sha256``, and the
model that a finished run wrote in ``model.sha256``.
"""


def open_run(folder: Path, settings: RunSettings, *, resume: bool) -> None:
    """Make the folder, or check that it holds this very run and that ``--resume`` was given.

    Raises:
        InputError: the folder holds something else, another run, or this run without ``--resume``.
    """
    check_run(folder, settings, resume=resume)
    path = folder / SETTINGS
    if not path.is_file():
        make_folder(folder)
        write_atomically(path, to_yaml(settings).encode())


def check_run(folder: Path, settings: RunSettings, *, resume: bool) -> None:
    """What ``open_run`` refuses; writes nothing."""
    path = folder / SETTINGS
    if not path.is_file():
        if not is_free(folder):
            raise InputError(f"--output {folder} exists and holds no run of antiphase; choose another folder")
        return
    if not resume:
        raise InputError(
            f"--output {folder} holds a run already; add --resume to go on with it, or choose another folder"
        )
    before = load_preset(str(path)).run
    names = [name for name in differing(before, settings) if name not in WITHOUT_EFFECT]
    if (before.training.start_from is None) != (settings.training.start_from is None):
        names.append("training.start_from")
    if names:
        raise InputError(
            f"--output {folder} holds a run with other settings ({', '.join(names)}); choose another folder"
        )


def check_diverged(folder: Path) -> None:
    """
    Raises:
        DivergedError: the folder's run diverged: from its last checkpoint it would come to the same step again.
    """
    if (folder / "record.json").is_file() and (found := Record.load(folder).values.get("diverged")):
        raise DivergedError(diverged_words(folder, found["step"], found["reason"]))


def diverged_words(folder: Path, step: int, reason: str) -> str:
    """One sentence on a run that diverged."""
    return (
        f"--output {folder}: training diverged at step {step}, {reason}; its last checkpoint stays as it was, and a "
        "lower training.learning_rate or more training.warmup_steps may help, in another folder"
    )


def check_content(folder: Path, content: str | None) -> None:
    """Keep which tokens a run or study reads, or refuse to go on with others. None: no text.

    Raises:
        InputError: the text, the tokenizer or the tasks' wording changed since the run began.
    """
    if content is None:
        return
    path = folder / CONTENT
    if not path.is_file():
        write_atomically(path, f"{content}\n".encode())
    elif not is_same_content(folder, content):
        raise InputError(
            f"--output {folder} began with other text: what --data or --validation names, the tokenizer, or the words "
            "of the tasks in another version of antiphase; bring it back, or choose another folder"
        )


def check_start(folder: Path, digest: str) -> None:
    """Keep which weights a run starts from, or refuse to go on with others.

    Raises:
        InputError: the folder of ``training.start_from`` holds other weights than when the run began.
    """
    path = folder / START
    if not path.is_file():
        write_atomically(path, f"{digest}\n".encode())
    elif path.read_text("utf-8").strip() != digest:
        raise InputError(
            f"--output {folder} began from other weights than training.start_from holds now; bring them back, or "
            "choose another folder"
        )


def model_digest(folder: Path) -> str:
    """SHA-256 of a model's folder: weights, configuration and tokenizer, at 1 to 2 GB/s."""
    weights = sorted(path for path in folder.glob("*.safetensors") if path.stem != "record")
    found = []
    for path in filter(Path.is_file, [*weights, folder / "config.json", folder / "tokenizer.json"]):
        with open(path, "rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def keep_model(folder: Path) -> None:
    """Keep which model a run has written."""
    write_atomically(folder / MODEL, f"{model_digest(folder)}\n".encode())


def check_model(folder: Path) -> None:
    """That a finished run, which is not trained again, still holds its model; true where it did not keep which.

    Raises:
        InputError: its weights, configuration or tokenizer are others.
    """
    path = folder / MODEL
    if path.is_file() and path.read_text("utf-8").strip() != model_digest(folder):
        raise InputError(
            f"{folder} holds another model than its run wrote: weights, config.json or tokenizer.json have changed; "
            "bring them back, or remove that folder, and --resume trains the run again"
        )


def check_text(folder: Path, study: Path) -> None:
    """That a finished run of a study read the study's text, which may have changed before the run began.

    Raises:
        InputError: it read other text.
    """
    content = study / CONTENT
    if content.is_file() and not is_same_content(folder, content.read_text("utf-8").strip()):
        raise InputError(
            f"{folder} was trained on other text than its study began with; bring the text back and remove that "
            "folder, and --resume trains the run again"
        )


def is_same_content(folder: Path, content: str) -> bool:
    """Whether a run or study read these tokens; true where it did not keep which."""
    path = folder / CONTENT
    return not path.is_file() or path.read_text("utf-8").strip() == content


def is_free(folder: Path) -> bool:
    """Whether a run or study may begin here: there is nothing, or what one left behind that was killed at once."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        path.name == LOCK or (path.name.startswith(".") and path.suffix == ".tmp") for path in folder.iterdir()
    )


def check_empty(folder: Path) -> None:
    """A measurement goes into a folder of its own.

    Raises:
        InputError: the folder holds something, or is a file.
    """
    if not is_free(folder):
        raise InputError(f"--output {folder} exists and is not empty; choose another folder")


def make_folder(folder: Path) -> bool:
    """Make the folder of ``--output``; False where it is there already.

    Raises:
        InputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        if folder.is_dir():
            return False
        raise InputError(f"--output {folder} cannot be made ({error.strerror}); choose another folder") from None
    return True


@contextmanager
def undone_if_refused(folder: Path) -> Iterator[None]:
    """Take away what appears in the folder, if what a person gave is refused: the corrected command starts afresh.

    Only within ``only_one``, of this folder or of the one that it belongs to: what appears is else another process's.
    """
    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except InputError:
        if before is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir():
            for path in set(folder.iterdir()) - before:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
        raise


def differing(first: Any, second: Any, path: str = "") -> list[str]:
    """Dotted names of the settings in which two runs differ."""
    if not hasattr(first, "__dataclass_fields__"):
        return [] if first == second else [path]
    names = []
    for name in first.__dataclass_fields__:
        full = f"{path}.{name}" if path else name
        names += differing(getattr(first, name), getattr(second, name), full)
    return names


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; make it if it is missing, and take it away if nothing was put into it.

    Raises:
        InputError: another process works in it, or it cannot be made.
    """
    made = make_folder(folder)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"--output {folder} is in use by another process; wait for it or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()
        if made and not any(path.name != LOCK for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_folder(folder: Path, *beside: Path) -> Iterator[None]:
    """Hold a new folder for one piece of work; if that is refused, nothing of it stays, nor in folders beside.

    Raises:
        InputError: the folder holds something, another process works in it, or it cannot be made.
    """
    check_empty(folder)
    with only_one(folder), ExitStack() as stack:
        check_empty(folder)  # once more: another process may have finished meanwhile
        for path in (folder, *beside):
            stack.enter_context(undone_if_refused(path))
        yield


def is_in_use(folder: Path) -> bool:
    """Whether a process works in the folder."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """Evaluations of a run so far."""
    path = folder / CURVE
    return json.loads(path.read_text("utf-8")) if path.is_file() else []


class MetricsLog:
    """One JSON object a line; after a resume, lines beyond the checkpoint are dropped, because they come again."""

    def __init__(self, folder: Path, *, step: int) -> None:
        self.path = folder / METRICS
        kept = [line for line in read_metrics(folder) if line["step"] <= step]
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def write(self, values: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's log; a line cut short by a kill is left out."""
    path = folder / METRICS
    if not path.is_file():
        return []
    lines = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            lines.append(found)
    return lines
