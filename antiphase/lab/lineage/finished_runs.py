"""The runs of a study, one after the other or elsewhere; each has a folder that is created when it is finished."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.files import read_json
from antiphase.base.folders.contents import check_model, keep_model
from antiphase.base.folders.ownership import is_in_use, written_beside
from antiphase.base.folders.work import REQUEST, may_change
from antiphase.base.records import Record
from antiphase.base.typed import dotted
from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.settings.flags import words_of
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Command
from antiphase.lab.training.execution.queue import run_tasks
from antiphase.lab.training.execution.settings import ExecutorSettings


class HasFolder(Protocol):
    """The result of a run, which says in which folder it was made."""

    @property
    def folder(self) -> str: ...


Run = TypeVar("Run", bound=HasFolder)
JOBS = "jobs"
"""Folder of the commands that have not finished elsewhere."""


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs of a study that another process can make by the same command."""

    name: str
    request: ExecutorSettings
    """What that process is asked for."""
    runs: Sequence[str]
    """Names of its folders, which are those that the study would make."""
    content: str
    """Digest of what that process has to read, as it notes it in its own folder."""


def make_elsewhere(
    command: str,
    parts: Sequence[RunGroup],
    output: Path,
    request: ExecutorSettings,
    paths: Sequence[str],
    *,
    say: Callable[[str], None],
    report: Callable[[float, int], None],
) -> None:
    """Make the folders of missing runs by processes of a cluster, if the request asks for one.

    Args:
        command: the words of the command that makes a part.
        paths: what the parts read; files and folders of this machine must be seen by every node.

    Raises:
        InputError, Interrupted, RuntimeError: as for ``run_tasks``, or the cluster cannot be used.
    """
    tasks = [_Elsewhere(command, part, output, report, sum(len(one.runs) for one in parts)) for part in parts]
    for task in tasks:
        if not is_in_use(task.folder):
            task.check()  # moves what a former call has finished
    missing = [task for task in tasks if not task.is_done()]
    if missing and request.executor != "local":
        executor = executor_of(request)
        try:
            seen = [path.rpartition("@")[0] or path for path in paths]
            executor.check(output, [path for path in seen if Path(path).exists()], say)
            run_tasks(missing, executor.pool([""] * len(missing), None, say))
        finally:
            executor.close()
    if not any(is_in_use(task.folder) for task in tasks):
        shutil.rmtree(output / JOBS, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class _Elsewhere:
    """A part as a task, whose runs are moved here when all of them are finished."""

    words: str
    part: RunGroup
    output: Path
    reported: Callable[[float, int], None]
    count: int
    accepted = (0,)

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def folder(self) -> Path:
        return self.output / JOBS / self.name

    def command(self, threads: int) -> Command:
        """The study's own command, for this part alone."""
        logs = self.output / "logs"
        for folder in (logs, self.output / JOBS):
            folder.mkdir(exist_ok=True)
        words = [self.words, f"--output={self.folder}", "--resume", *words_of(self.part.request)]
        return Command(self.name, words, self.folder, logs / f"{self.name}.log")

    def is_done(self) -> bool:
        places = [(self.output / run, self.folder / run) for run in self.part.runs]
        return all(any((place / "record.json").is_file() for place in both) for both in places)

    def check(self) -> None:
        """Move the finished runs, which have read what the study has; this may be cut off and repeated."""
        for run in self.part.runs:
            if (self.folder / run / "record.json").is_file() and not (self.output / run).exists():
                self._check_texts()
                (self.folder / run).replace(self.output / run)

    def _check_texts(self) -> None:
        if read_json(self.folder / REQUEST, "output", "remove it").get("content") != self.part.content:
            raise InputError(
                f"--output {self.folder}: this part has read other texts than the study; see that all nodes have the "
                "same, remove it, and repeat the command with --resume"
            )

    def report(self, *, done: bool) -> None:
        """Pass on how many runs of the study are finished."""
        found = {path.parent.name for path in self.output.glob("*/record.json")}
        found |= {path.parent.name for path in self.output.glob(f"{JOBS}/*/*/record.json")}
        self.reported(len(found), self.count)


def load_or_run_each(
    runs: Mapping[str, Callable[[str, Callable[[int, int], None]], Run]],
    output: Path,
    *,
    configs: Mapping[str, Mapping[str, Any]],
    read: Callable[[Record], Run],
    say: Callable[[str], None],
    sentence: Callable[[Run], str],
    report: Callable[[float, int], None],
) -> list[Run]:
    """The result of each run; finished runs are read from their folders.

    Args:
        runs: by the name of its folder, what executes a run; called with that name and a function that reports its
            steps (finished, largest number).
        configs: by the same name, the configuration in a run's record: its settings, and the digest of what it read.
        read: finds the result of a run in the record of its folder.

    Raises:
        InputError: the model in a finished run's folder has changed, or the folder holds another run, or one of another
            study.
        Interrupted: Ctrl-C was pressed; finished runs are kept.
    """
    found: list[Run] = []
    try:
        for number, (folder, execute) in enumerate(runs.items()):
            if (output / folder / "record.json").is_file():
                check_model(output / folder)
                record = Record.load(output / folder)
                _check_config(output / folder, record.config, configs[folder])
                run = read(record)
                if run.folder != folder:
                    raise InputError(
                        f"{output / folder} holds another run, {run.folder}; remove it, and --resume trains it again"
                    )
            else:

                def steps(done: int, most: int, begun: int = number) -> None:
                    report(begun + done / most, len(runs))

                run = execute(folder, steps)
            found.append(run)
            report(len(found), len(runs))
            say(sentence(run))
    except KeyboardInterrupt:
        raise Interrupted("finished runs are kept") from None
    return found


def _check_config(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare a finished run's configuration with that of the run that its study would train.

    Raises:
        InputError: they differ.
    """
    earlier, wanted = dotted(before), dotted(now)
    changed = [name for name in wanted if not may_change(name) and earlier.get(name) != wanted[name]]
    if changed:
        raise InputError(
            f"{folder} holds a run with other settings or texts than its study's ({', '.join(changed)}); remove that "
            "folder, and --resume trains the run again"
        )


def save_run(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: Record, place: Path) -> None:
    """Write the run's folder with model, tokenizer and record atomically."""
    with written_beside(place) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        keep_model(folder)
        record.save(folder)


def check_lengths(texts: EncodedTexts, places: Sequence[str], model: PreTrainedModel, *, remedy: str) -> None:
    """Raise an InputError for a text with more tokens than the model has positions; the message names its place."""
    positions = context_length(model)
    for ids, place in zip(texts.ids, places, strict=True):
        if positions is not None and len(ids) > positions:
            longest = max(map(len, texts.ids))
            raise InputError(
                f"{place}: the text has {len(ids)} tokens, more than the {positions} positions of the model; "
                f"{remedy.format(longest=longest)}"
            )
