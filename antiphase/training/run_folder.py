"""A run's folder: its settings, its log of metrics, and the rule that no run is ever overwritten."""

from __future__ import annotations

import json
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


def open_run(folder: Path, settings: RunSettings, *, resume: bool) -> None:
    """Make the folder, or check that it holds this very run and that ``--resume`` was given.

    Raises:
        InputError: the folder holds something else, another run, or this run without ``--resume``.
    """
    path = folder / SETTINGS
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"--output {folder} exists and holds no run of antiphase; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_yaml(settings).encode())
        return
    if not resume:
        raise InputError(
            f"--output {folder} holds a run already; add --resume to go on with it, or choose another folder"
        )
    before = load_preset(str(path)).run
    if to_yaml(before) != to_yaml(settings):
        names = ", ".join(differing(before, settings))
        raise InputError(f"--output {folder} holds a run with other settings ({names}); choose another folder")


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
    """Hold the folder for this process.

    Raises:
        InputError: another process works in it.
    """
    lock = FileLock(folder / ".lock")
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
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.endswith("}"):
            lines.append(json.loads(line))
    return lines
