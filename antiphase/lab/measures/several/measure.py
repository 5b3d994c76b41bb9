"""Implements ``antiphase evaluate several``: commands that a person can repeat, and where their records lie."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from antiphase.base.errors import InputError, nearest
from antiphase.base.files import parse_yaml
from antiphase.base.folders.contents import digest_of
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import work_in
from antiphase.base.records import PAGE, Record
from antiphase.base.typed import build
from antiphase.lab.catalog import Measurement, measurements
from antiphase.lab.measures.inputs import model_content, task_content
from antiphase.lab.measures.several import FinishedMeasurement, Several, SeveralSettings
from antiphase.lab.settings.flags import flags_of, kept_settings, words_of
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Command
from antiphase.lab.training.execution.queue import run_tasks
from antiphase.models.sources.models import read_config

SHARED = ("name", "paths", "device")
"""Fields that all measurements get from flags of this command."""


def evaluate(
    settings: SeveralSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Run every measurement of every model in a process and a folder of its own, ``MEASUREMENT-MODEL``.

    Raises:
        InputError: a model, a measurement or a setting of it cannot be used, or the folder has other contents.
        Interrupted: Ctrl-C was pressed; finished measurements are kept.
        RuntimeError: a process broke; the message names its log.
    """
    settings.check()
    started = time.perf_counter()
    refusal = None
    with work_in(output, kept_settings(settings), resume=resume) as work:
        with undone_if_refused(output):
            tasks = planned(settings, output, report)
            for model in settings.models:
                read_config(model, field="model")
            read = {f"the files of {model}": model_content(model) for model in settings.models}
            read |= {f"the files in {path}": _content(path) for path in _paths(settings) if path not in settings.models}
            work.begin(read, {name: f"{name} have changed" for name in read})
            try:
                _run([task for task in tasks if not task.is_done()], settings, output, say)
            except InputError as error:
                if not any(task.is_done() for task in tasks):
                    raise
                refusal = error
        if refusal is not None:  # what is finished stays
            raise refusal
        return finished(tasks).save(output, settings, seconds=time.perf_counter() - started)


def _run(missing: Sequence[Evaluation], settings: SeveralSettings, output: Path, say: Callable[[str], None]) -> None:
    """Run tasks, one at a time here, or all that have room on a cluster, unless a number is given."""
    if not missing:
        return
    executor = executor_of(settings)
    try:
        executor.check(output, _paths(settings), say)
        most = settings.at_once or (1 if settings.executor == "local" else None)
        run_tasks(missing, executor.pool([settings.device] * len(missing), most, say))
    finally:
        executor.close()


def _paths(settings: SeveralSettings) -> list[str]:
    """Files and folders that the measurements read, those that ``--set`` names too."""
    values = [change.partition("=")[2] for change in settings.changes]
    given = [*settings.models, *settings.paths, *values, *(one for value in values for one in value.split(","))]
    return [path for path in dict.fromkeys(given) if os.path.exists(path)]


def _content(path: str) -> str:
    """Digest of a file, or of all files in a folder; of a task, with the data that it names."""
    if Path(path).suffix in (".yaml", ".yml"):
        return task_content([path])["what --task names"]
    files = sorted(one for one in Path(path).rglob("*") if one.is_file()) if os.path.isdir(path) else [Path(path)]
    return digest_of(files)


def finished(tasks: Sequence[Evaluation]) -> Several:
    """The result of tasks whose records are there."""
    return Several(rows=[
        FinishedMeasurement(
            model=task.model, measurement=task.measurement.name, folder=task.name,
            seconds=Record.load(task.folder).seconds or 0.0,
        )
        for task in tasks
    ])  # fmt: skip


def planned(
    settings: SeveralSettings, output: Path, report: Callable[[float, int], None] = lambda done, count: None
) -> list[Evaluation]:
    """A task for each measurement and model.

    Raises:
        InputError: a measurement is unknown, or its settings cannot be used.
    """
    known = _known()
    for name in settings.measurements:
        if name not in known:
            raise InputError(f"--measure {name}: unknown{nearest(name, known)}")
    changes = _changes(settings, known)
    names = folder_names(settings.models)
    count = len(settings.measurements) * len(settings.models)
    return [
        Evaluation(
            known[name], model, words_of(_own_settings(settings, known[name], model, changes[name])),
            output / f"{name}-{names[model]}", output, report, count,
        )
        for name in settings.measurements
        for model in settings.models
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A measurement of a model as a task."""

    measurement: Measurement
    model: str
    words: Sequence[str]
    folder: Path
    output: Path
    reported: Callable[[float, int], None]
    count: int
    accepted = (0,)

    @property
    def name(self) -> str:
        return self.folder.name

    def command(self, threads: int) -> Command:
        """The measurement's own command; its options come before MODEL."""
        logs = self.output / "logs"
        logs.mkdir(exist_ok=True)
        given = [*self.measurement.command.split(), f"--output={self.folder}", "--resume", *self.words]
        return Command(self.name, given, self.folder, logs / f"{self.name}.log")

    def is_done(self) -> bool:
        return all((self.folder / name).is_file() for name in ("record.json", PAGE))

    def check(self) -> None:
        Record.load(self.folder)

    def report(self, *, done: bool) -> None:
        """Pass on how many measurements are finished."""
        self.reported(len(list(self.output.glob("*/record.json"))), self.count)


def folder_names(models: Sequence[str]) -> dict[str, str]:
    """A short name for each model, good for a folder: the last part of its own, with a number where two are equal."""
    short = {model: re.sub(r"[^\w.-]+", "-", Path(model).name).strip("-.")[:60] or "model" for model in models}
    found: dict[str, str] = {}
    for model, name in short.items():
        taken, number = set(found.values()) | (set(short.values()) - {name}), 2
        chosen = name
        while chosen in taken:
            chosen, number = f"{name}-{number}", number + 1
        found[model] = chosen
    return found


def _known() -> dict[str, Measurement]:
    """Measurements of a single MODEL."""
    return {
        name: found
        for name, found in measurements("antiphase.lab.measures").items()
        if "name" in flags_of(found.settings)
    }


def _changes(settings: SeveralSettings, known: dict[str, Measurement]) -> dict[str, dict[str, Any]]:
    """Fields that ``--set`` changes, by measurement."""
    found: dict[str, dict[str, Any]] = {name: {} for name in settings.measurements}
    for change in settings.changes:
        key, equals, text = change.partition("=")
        name, dot, given = key.strip().partition(".")
        if not equals or not dot or not given:
            raise InputError(f"--set {change[:80]!r} must be MEASUREMENT.FLAG=VALUE, such as needles.samples=20")
        if name not in found:
            raise InputError(f"--set {change[:80]}: '{name}' is not in --measure ({', '.join(found)})")
        kind = known[name].settings
        by_flag = {own.name.removeprefix("--"): field for field, own in flags_of(kind).items() if field not in SHARED}
        if given not in by_flag:
            raise InputError(f"--set {name}.{given}: there is no such flag{nearest(given, by_flag)}")
        field, value = by_flag[given], _value(kind, by_flag[given], text, f"--set {change[:80]!r}")
        if field not in found[name]:
            found[name][field] = value
        elif isinstance(value, list) and not flags_of(kind)[field].separated:
            found[name][field] += value
        else:
            raise InputError(f"--set {name}.{given} is given twice; remove one")
    return found


def _value(kind: type[Any], field: str, text: str, place: str) -> Any:
    """As the command line reads it: text as it is, numbers and switches as YAML has them."""
    hint, own = get_type_hints(kind)[field], flags_of(kind)[field]
    is_list = get_origin(hint) is Sequence
    listed = text.split(",") if is_list and own.separated else [text]
    if str not in (hint, *get_args(hint)):
        listed = [parse_yaml(one, place, "write it as on the command line") for one in listed]
        if None in listed:
            raise InputError(f"{place} has no value; write it as on the command line")
    return listed if is_list else listed[0]


def _own_settings(settings: SeveralSettings, measurement: Measurement, model: str, changes: dict[str, Any]) -> Any:
    """Settings of one measurement of one model."""
    kind = measurement.settings
    own = {field.name for field in fields(kind)}
    paths = list(settings.paths)
    shared = {"name": model, "paths": paths, "data": paths, "device": settings.device, "dtype": settings.dtype}
    tree = {name: value for name, value in shared.items() if name in own} | changes
    found = build(kind, tree, measurement.name)
    found.check()
    return found
