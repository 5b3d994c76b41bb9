"""A run's folder: its settings, its metrics log, and the rule that no run is ever overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from antiphase.base.errors import DivergedError, InputError, named
from antiphase.base.files import parse_json, read_text, reading
from antiphase.base.folders.contents import START, TEXT, hash_of
from antiphase.base.folders.holders import confirm_held
from antiphase.base.folders.ownership import make_folder
from antiphase.base.folders.work import BROUGHT_BACK, START_SETTING, Resumable, may_change
from antiphase.base.records import Record, finite, write_atomically, writing
from antiphase.base.typed import build, dotted
from antiphase.lab.settings.presets import RunSettings, kept_run, to_yaml
from antiphase.lab.training.checkpoint import AFRESH, Progress
from antiphase.lab.training.checkpoint import FOLDER as CHECKPOINTS
from antiphase.lab.training.divergence import Divergence
from antiphase.models.checkpoints import RUNS, run_behind

SETTINGS = RUNS[0]
METRICS = "metrics.jsonl"
CURVE = "curve.json"
"""Evaluations so far, for monitoring; a resumed run reads them from its checkpoint instead."""
RUN_KEY, RUN_DIGITS = "run", 16
"""Key of the run's digest in the record and in a line of the log, and how much of it is in a line."""
TAIL = 1 << 16
"""Bytes of a log that are read at a time from its end."""
RUN = Resumable.named("run", SETTINGS)


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
        before = kept_run(folder / SETTINGS, field="output")
        RUN.check_same(folder, dotted(asdict(before)), dotted(asdict(settings)))


def runs_behind(folder: str, *, field: str) -> Iterator[tuple[str, RunSettings]]:
    """The runs that trained a folder's weights, each with its folder, from the last on, as far as they are known.

    A conversion keeps its source's run; a run names the folder that it started from.

    Raises:
        InputError: the settings of one cannot be read; ``field`` gave the folder.
    """
    start: str | None = folder
    seen: set[Path] = set()
    while start is not None and (path := run_behind(Path(start))) is not None and path.resolve() not in seen:
        seen.add(path.resolve())  # a folder that was renamed may name itself
        run = kept_run(path, field=field)
        yield start, run
        start = run.training.start_from


def run_digest(folder: Path) -> str:
    """SHA-256 of what the results of a folder's run depend on: its settings, its text, the weights it starts from.

    Checkpoints and lines of the log carry it. Equal runs in other folders have the same; a setting that a later version
    adds changes it only if it is set.
    """
    given = _given(kept_run(folder / SETTINGS, field="output"))
    settings = {name: given[name] for name in sorted(given) if not name.endswith(START_SETTING)}
    kept = [path.read_text().strip() if path.is_file() else None for path in (folder / TEXT, folder / START)]
    return hash_of([finite(settings), *kept])


def _given(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings that differ from their defaults and may change results, by dotted names."""
    found: dict[str, Any] = {}
    for field in fields(settings):
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if is_dataclass(value):
            found |= _given(value, f"{name}.")
        elif value != default and not may_change(name):
            found[name] = value
    return found


def _of_results(settings: RunSettings) -> dict[str, Any]:
    return {name: value for name, value in sorted(dotted(asdict(settings)).items()) if not may_change(name)}


def run_record(folder: Path) -> Record:
    """The record of a finished run.

    Raises:
        InputError: it is another run's.
    """
    record = Record.load(folder)
    if record.kind != "train" or record.values.get(RUN_KEY) != run_digest(folder):
        raise InputError(
            f"{folder / 'record.json'} is the record of another run than {SETTINGS} beside it tells of; restore it, or "
            "remove it and repeat the command with --resume"
        )
    return record


def check_run_of(folder: Path, settings: RunSettings) -> None:
    """Check that a folder of a study holds the finished run of these settings.

    Raises:
        InputError: the run or its record is another one.
    """
    before, now = _of_results(kept_run(folder / SETTINGS, field="output")), _of_results(settings)
    changed = [name for name in now if before.get(name) != now[name] and not name.endswith(START_SETTING)]
    if changed:
        raise InputError(
            f"{folder} holds a run with other settings than its study's ({', '.join(changed)}); remove that folder and "
            "repeat the command to train the run again"
        )
    run_record(folder)


def check_progress(folder: Path, progress: Progress) -> None:
    """Check that a checkpoint in a run's folder is of that run.

    Raises:
        InputError: it is another run's.
    """
    if progress.run != run_digest(folder):
        raise InputError(
            f"{named('output', folder)}: its checkpoint is of another run than its {SETTINGS}, text and first "
            f"weights; restore its own, or remove {folder / CHECKPOINTS} {AFRESH}"
        )


def check_diverged(folder: Path) -> None:
    """
    Raises:
        DivergedError: the folder's run diverged; resumed from its last checkpoint, it would diverge again.
        InputError: the record is another run's, or was changed.
    """
    if not (folder / "record.json").is_file() or (told := run_record(folder).values.get("diverged")) is None:
        return
    try:
        found = build(Divergence, told, path="diverged")
    except InputError as error:
        raise InputError(f"{folder / 'record.json'}: {error}; {BROUGHT_BACK}") from None
    raise DivergedError(diverged_message(folder, found.step, found.reason))


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
    found = parse_json(read_text(path, "output", BROUGHT_BACK), named("output", path), BROUGHT_BACK)
    if not isinstance(found, list) or not all(isinstance(point, dict) for point in found):
        raise InputError(f"{named('output', path)}: these are not the evaluations of a run; {BROUGHT_BACK}")
    return found


class MetricsLog:
    """A log with one JSON object per line. A resumed run drops lines after its checkpoint and writes them again."""

    def __init__(self, folder: Path, *, step: int, run: str) -> None:
        """
        Args:
            run: ``run_digest`` of the run, the beginning of which is in each line.

        Raises:
            InputError: a line up to this step is of another run.
        """
        self.path, self.run = folder / METRICS, run[:RUN_DIGITS]
        write_atomically(
            self.path, (line for line, values in _lines(self.path) if values["step"] <= step and self._is_own(values))
        )

    def _is_own(self, values: dict[str, Any]) -> bool:
        _check_line(self.path, values, self.run)
        return True

    def write(self, values: dict[str, Any]) -> None:
        """
        Raises:
            Interrupted: another machine has taken the folder over.
        """
        confirm_held()
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**values, RUN_KEY: self.run}) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of a log; a line truncated by a kill is skipped."""
    return [values for _, values in _lines(folder / METRICS)]


def run_metrics(folder: Path) -> list[dict[str, Any]]:
    """The log of a finished run.

    Raises:
        InputError: a line, or the record, is of another run.
    """
    found, run = read_metrics(folder), run_record(folder).values[RUN_KEY]
    for values in found:
        _check_line(folder / METRICS, values, run[:RUN_DIGITS])
    return found


def _check_line(path: Path, values: dict[str, Any], run: str) -> None:
    if values.get(RUN_KEY) != run:
        raise InputError(
            f"{named('output', path)}: the line of step {values['step']} is of another run; restore the file, or "
            "remove it"
        )


def last_metrics(folder: Path) -> dict[str, Any] | None:
    """The last complete line of a run's log; only the file's end is read."""
    path = folder / METRICS
    if not path.is_file():
        return None
    with reading(path, "output"), open(path, "rb") as file:
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
    with reading(path, "output"), open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and (values := _values(line)) is not None:
                yield line, values


def _values(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None
