"""The training runs of a study: every arm with every seed, in each variant, on the same data in one order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from antiphase.base.errors import InputError, named, renamed
from antiphase.base.files import read_yaml
from antiphase.base.folders.contents import check_content, check_start, hash_of
from antiphase.base.folders.ownership import only_one, undone_if_refused
from antiphase.base.folders.work import BROUGHT_BACK, Resumable
from antiphase.base.records import DEQUANTIZED, Record, finite, write_atomically
from antiphase.base.typed import build, dotted
from antiphase.lab.scoring.needles import tasks_of
from antiphase.lab.settings.naming import naming
from antiphase.lab.settings.presets import CompareSettings, Preset, RunSettings, arm_run, for_sizes
from antiphase.lab.studies.jobs import Job, Report, run_jobs
from antiphase.lab.studies.runs import RunResult, run_of
from antiphase.lab.studies.started import check_unseen
from antiphase.lab.text.prepare import PreparedData, check_task, is_cache, prepare
from antiphase.lab.text.retrieval import RetrievalTask
from antiphase.lab.training.checkpoint import checkpoints
from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.run_folder import check_run_of, run_record
from antiphase.lab.training.run_model import check_settings
from antiphase.models.checkpoints import Checkpoint

SETTINGS = "compare.yaml"
STUDY = Resumable.named("study", SETTINGS)

Change = Callable[[RunSettings], RunSettings]


@dataclass(frozen=True)
class Variant:
    """What the runs of every arm and seed have in common, and other variants have otherwise."""

    name: str = ""
    """The variant in the names of runs, such as ``rate0.001``; empty if there is only one."""
    before: Change = lambda run: run
    """Applied to the preset's run before an arm's own settings."""
    after: Change = lambda run: run
    """Applied after an arm's own settings."""


@dataclass(frozen=True)
class Grid:
    """The runs of a study, each an ``antiphase train`` in a folder of its own within the study's."""

    preset: Preset
    output: Path
    variants: Sequence[Variant] = (Variant(),)
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What the study was asked for besides the preset, for its settings and its record."""
    executor: Executor = LOCAL
    """Where the runs are made; neither settings nor records depend on it."""

    @cached_property
    def jobs(self) -> list[Job]:
        """Runs in the order in which they start: of a variant all arms of a seed, then the next seed."""
        compare, run = self.preset.compare, self.preset.run
        if run.data.source == "text":
            run = replace(run, data=replace(run.data, cache=str(self.tokens)))
        found: dict[str, Job] = {}  # variants may share runs
        for variant in self.variants:
            varied = variant.before(run)
            sized = for_sizes(compare, run.model, varied.model)
            for seed in compare.seeds:
                for arm in compare.arms:
                    name = self.name(variant, arm, seed)
                    found[name] = Job(name, arm, seed, variant.after(arm_run(varied, sized, arm, seed=seed)))
        return list(found.values())

    @property
    def tokens(self) -> Path:
        """Folder of the tokens: that of the settings if it is one, as it may not be on another machine, or its own."""
        given = self.preset.run.data.cache
        shared = None if given is None else Path(given).expanduser()
        return shared if shared is not None and is_cache(shared) else self.output / "tokens"

    @staticmethod
    def name(variant: Variant, arm: str, seed: int) -> str:
        """The folder of a run."""
        return "-".join(part for part in (arm, variant.name, f"seed{seed}") if part)

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies the study when it is resumed."""
        return {"run": asdict(self.preset.run), "compare": asdict(self.preset.compare), **self.asked}

    @contextmanager
    def held(
        self, *, resume: bool, say: Callable[[str], None], begin: Callable[[], None] = lambda: None
    ) -> Iterator[PreparedData]:
        """Hold the study's folder, new or with ``resume`` this very study's, and prepare what all runs read.

        Args:
            begin: called before anything is read.

        Raises:
            InputError: the folder holds something else, or settings or text cannot be used; then nothing stays behind.
        """
        first = self.jobs[0]  # sizes that no run can have are refused before anything is written
        self.check(resume=resume)
        with only_one(self.output):
            self.check(resume=resume)  # once more: another process may have worked here meanwhile
            with undone_if_refused(self.output):
                self.executor.check(self.output, self._paths(), say)
                path = self.output / SETTINGS
                if not path.is_file():
                    write_atomically(path, self._text().encode())
                begin()
                given = self.preset.run.data.cache
                if given is not None and self.tokens.parent == self.output:
                    say(
                        f"data.cache {given} is no folder of tokens, so {self.tokens} is used; mkdir makes a shared one"
                    )
                data = prepare(first.settings.data, self.tokens, progress=say)
                self._check_sizes(data)
                check_content(self.output, data.content)
                self._check_starts()
            try:
                yield data
            finally:
                self.executor.close()

    def check(self, *, resume: bool) -> None:
        """Whether the folder can hold this study: it is free, or holds this very study and ``--resume`` was given.

        Raises:
            InputError: it holds something else, other settings, or this study without ``--resume``.
        """
        if STUDY.begun(self.output, resume=resume):
            before, now = dotted(self._kept()), dotted(yaml.safe_load(self._text()))
            STUDY.check_same(self.output, before, now)

    def _paths(self) -> list[str]:
        """Files and folders on this machine that the runs will read."""
        data, begun = self.preset.run.data, self.output / "start"
        named = [*data.paths, *data.validation, data.tokenizer, data.cache]
        named += [job.settings.training.start_from for job in self.jobs]
        given = dict.fromkeys(path for path in named if path is not None and Path(path).exists())
        return [path for path in given if not Path(path).is_relative_to(begun)]

    def _text(self) -> str:
        return yaml.safe_dump(self.settings, sort_keys=False)

    def _kept(self) -> dict[str, Any]:
        """What the study was begun with; settings that did not exist then have their defaults.

        Raises:
            InputError: the file was changed into something that cannot be read.
        """
        tree = read_yaml(self.output / SETTINGS, "output", BROUGHT_BACK)
        try:
            run, compare = build(RunSettings, tree["run"]), build(CompareSettings, tree["compare"], path="compare")
        except (InputError, KeyError, TypeError) as error:
            place = named("output", self.output / SETTINGS)
            raise InputError(f"{place}: these are not the settings of a study ({error}); {BROUGHT_BACK}") from None
        return {**tree, "run": asdict(run), "compare": asdict(compare)}

    def _check_starts(self) -> None:
        """Store the digest of the weights that the arms start from, or check it.

        Raises:
            InputError: ``training.start_from`` of an arm cannot be read, holds other weights than at the beginning, or
                was trained on text that is held out here.
        """
        for run in {job.settings.training.start_from: job.settings for job in self.jobs}.values():
            check_unseen(run)
        starts = {job.arm: folder for job in self.jobs if (folder := job.settings.training.start_from) is not None}
        if not starts:
            return
        with renamed({"source": "training.start_from"}):
            digests = {folder: Checkpoint(folder).digest() for folder in dict.fromkeys(starts.values())}
        check_start(self.output, hash_of({arm: digests[folder] for arm, folder in starts.items()}))

    def _check_sizes(self, data: PreparedData) -> None:
        """Refuse now what the first run would refuse or the end would; the message names the field."""
        guess, threshold = data.task().guess_rate, self.preset.compare.threshold
        if threshold <= guess < 1:  # with one needle, any number is right
            raise InputError(
                f"compare.threshold ({threshold:g}) is what guessing reaches ({guess:g}), so passing it shows nothing; "
                f"raise it, for example to {(1 + guess) / 2:g}"
            )
        for job in (job for job in self.jobs if job.seed == self.preset.compare.seeds[0]):
            check_settings(job.settings, data.tokenizer, begins=not checkpoints(self.output / job.name))
        grid = {"needles": "data.needles", "queries": "data.queries", "lengths": "data.sequence_length"}
        evaluation = self.preset.run.evaluation
        with naming({field: f"evaluation.{name}" for name, field in grid.items() if getattr(evaluation, name)}):
            for task in needle_tasks(self.preset.run, data):
                check_task(task)

    def train(self, report: Report, say: Callable[[str], None] = lambda message: None) -> None:
        """Train all runs that are not finished, as many at a time as there are cores or GPUs, here or on the cluster.

        Raises:
            InputError, Interrupted: as ``run_jobs``; or a folder holds another run than the study would train there.
        """
        for job in self.jobs:
            if (self.output / job.name / "record.json").is_file():
                check_run_of(self.output / job.name, job.settings)
        devices = [job.settings.training.device for job in self.jobs]
        pool = self.executor.pool(devices, self.preset.compare.processes, say)
        run_jobs(self.jobs, self.output, pool=pool, report=report)

    def result(self, job: Job) -> RunResult:
        """The result of a finished run.

        Raises:
            InputError: the folder holds another run, or its record is another run's.
        """
        check_run_of(self.output / job.name, job.settings)
        return run_of(run_record(self.output / job.name))

    def save(
        self, kind: str, values: Any, *, started: float, arrays: dict[str, Any] | None = None, **more: Any
    ) -> Record:
        """The study's record, saved in its folder.

        Args:
            values: a mapping or a typed result.
            started: ``time.perf_counter`` at the beginning.
            more: further fields of the configuration.
        """
        runs = [Record.load(self.output / job.name) for job in self.jobs]
        if origins := {origin for run in runs for origin in run.config.get(DEQUANTIZED, {}).values()}:
            more[DEQUANTIZED] = {"What the runs start from": ", ".join(sorted(origins))}
        record = Record(
            kind=kind, values=finite(values), arrays=arrays or {}, seeds=list(self.preset.compare.seeds),
            config=finite({"preset": self.preset.name, **self.settings, **more}),
            seconds=time.perf_counter() - started,
        )  # fmt: skip
        record.save(self.output)
        return record


def needle_tasks(run: RunSettings, data: PreparedData) -> list[RetrievalTask]:
    """The tasks of the needle grid."""
    evaluation = run.evaluation
    return tasks_of(data.task, needles=evaluation.needles, queries=evaluation.queries, lengths=evaluation.lengths)
