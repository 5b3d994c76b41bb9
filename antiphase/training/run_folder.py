"""A run's folder: its settings, its log of metrics, and the rule that no run is ever overwritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from antiphase.config import RunSettings, load_preset, to_yaml
from antiphase.errors import InputError
from antiphase.records import write_atomically

SETTINGS = "run.yaml"
METRICS = "metrics.jsonl"
CURVE = "curve.json"
"""Evaluations so far, for whoever watches the run; what a resumed run goes on from is in its checkpoint."""
LOCK = ".lock"
CONTENT = "text.sha256"
START = "start.sha256"
WITHOUT_EFFECT = ("training.threads", "training.start_from", "data.cache", "data.tokenizer", "description")
"""Settings that a resumed run may change: how many cores there are, where things lie, and words. Whether a run starts
from another's weights stays.

What text, tokenizer and first weights are is kept beside the settings, in ``text.sha256`` and ``start.sha256``.
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
    """Take away what appears in the folder, if what a person gave is refused: the corrected command starts afresh."""
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
