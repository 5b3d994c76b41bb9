"""A run's folder: its settings, its metrics log, and the rule that no run is ever overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphase.config import RunSettings, kept_run, to_yaml
from antiphase.errors import DivergedError, InputError
from antiphase.folders.ownership import make_folder
from antiphase.folders.work import BROUGHT_BACK, Resumable
from antiphase.reading.files import parse_json, read_text, reading
from antiphase.records import Record, write_atomically, writing
from antiphase.typed import dotted

SETTINGS = "run.yaml"
METRICS = "metrics.jsonl"
CURVE = "curve.json"
"""Evaluations so far, for monitoring; a resumed run reads them from its checkpoint instead."""
TAIL = 1 << 16
"""Bytes of a log that are read at a time from its end."""
RUN = Resumable.named("run", SETTINGS)
WITHOUT_EFFECT = (
    "training.threads", "training.mesh.replicate", "training.mesh.shard", "training.mesh.context",
    "training.mesh.tensor", "training.micro_batch_size", "training.gradient_checkpointing", "training.checkpoint_every",
    "training.hang_limit", "data.cache", "data.tokenizer", "data.workers", "description",
)  # fmt: skip
"""Settings that a resumed run may change: of the results, they change the rounding at most. Contents of data, tokenizer
and initial weights are checked by digests.
"""


def open_run(folder: Path, settings: RunSettings, *, resume: bool) -> None:
    """Create the folder, or check that it holds the same run and that ``--resume`` was given.

    Raises:
        InputError: the folder holds something else, another run, or this run without ``--resume``.
    """
    check_run(folder, settings, resume=resume)
    path = folder / SETTINGS
    if not path.is_file():
        make_folder(folder)
        write_atomically(path, to_yaml(settings).encode())


def check_run(folder: Path, settings: RunSettings, *, resume: bool) -> None:
    """Raise the errors of ``open_run`` without writing anything."""
    if RUN.begun(folder, resume=resume):
        before = kept_run(folder / SETTINGS, flag="--output")
        RUN.check_same(folder, dotted(asdict(before)), dotted(asdict(settings)), free=WITHOUT_EFFECT)


def check_diverged(folder: Path) -> None:
    """
    Raises:
        DivergedError: the folder's run diverged; resumed from its last checkpoint, it would diverge again.
    """
    if (folder / "record.json").is_file() and (found := Record.load(folder).values.get("diverged")):
        raise DivergedError(diverged_message(folder, found["step"], found["reason"]))


def diverged_message(folder: Path, step: int, reason: str) -> str:
    """A message about a run that diverged."""
    return (
        f"--output {folder}: training diverged at step {step}, {reason}; its last checkpoint stays as it was, and a "
        "lower training.learning_rate or more training.warmup_steps may help, in another folder"
    )


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """Evaluations of a run so far."""
    path = folder / CURVE
    if not path.is_file():
        return []
    found = parse_json(read_text(path, "--output", BROUGHT_BACK), f"--output {path}", BROUGHT_BACK)
    if not isinstance(found, list) or not all(isinstance(point, dict) for point in found):
        raise InputError(f"--output {path}: these are not the evaluations of a run; {BROUGHT_BACK}")
    return found


class MetricsLog:
    """A log with one JSON object per line. A resumed run drops lines after its checkpoint and writes them again."""

    def __init__(self, folder: Path, *, step: int) -> None:
        self.path = folder / METRICS
        write_atomically(self.path, (line for line, values in _lines(self.path) if values["step"] <= step))

    def write(self, values: dict[str, Any]) -> None:
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's log; a line truncated by a kill is skipped."""
    return [values for _, values in _lines(folder / METRICS)]


def last_metrics(folder: Path) -> dict[str, Any] | None:
    """The last complete line of a run's log; only the file's end is read."""
    path = folder / METRICS
    if not path.is_file():
        return None
    with reading(path, "--output"), open(path, "rb") as file:
        end, size = b"", file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - TAIL)
            file.seek(start)
            end, size = file.read(size - start) + end, start
            lines = end.split(b"\n")[min(size, 1) : -1]  # at both ends there may be parts of lines
            if (values := next(filter(None, map(_values, reversed(lines))), None)) is not None:
                return values
    return None


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The complete lines of a log, and what they hold, one after the other."""
    if not path.is_file():
        return
    with reading(path, "--output"), open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and (values := _values(line)) is not None:
                yield line, values


def _values(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None
