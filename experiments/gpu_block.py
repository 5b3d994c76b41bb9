"""A block of study E on a GPU: the six arms of one seed are trained, extended to 4,096 tokens and measured in one call.

On your own machine, for all blocks, write the text and its tokenizer into a folder that can be carried along:

    python -m experiments.gpu_block prepare --data ../shared/data/books/train --data ../shared/data/books/more
        --validation ../shared/data/books/validation-authors

On the GPU machine, which needs the repository and that folder, first the rates, whose lines (OUT/e/rates.jsonl) belong
into records/programme/e before the next call, and then each block:

    python -m experiments.programme_runs --studies e/rates --processes 18 --records OUT --minutes 9 --revision COMMIT
        --data runs/gpu-block/train.parquet --set data.tokenizer=runs/gpu-block/tokenizer
    python -m experiments.gpu_block 0 --output OUT --minutes 9.3 --revision COMMIT

A block that is stopped continues on the same machine with the same command. Measurements for which no time is left are
missing from the record, the last of ``PARTS`` first, and it names them; without all models there is no record.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.records import Record, finite
from antiphase.lab.settings.presets import RunSettings, load_preset
from antiphase.lab.studies.extend.measure import extension
from antiphase.lab.studies.jobs import Job, run_jobs
from antiphase.lab.text.corpora import documents
from antiphase.lab.text.vocabulary import tokenizer_for
from antiphase.lab.text.workers import cores
from antiphase.lab.training.execution.local import LocalPool
from experiments import programme_runs
from experiments.programme_runs import WORK, Run, execute, runs_of, settings_of, studies

STUDY, PREPARED = "e/runs", Path("runs/gpu-block")
LONG, LONG_STEPS, READ = 4096, 275, 8192
"""Tokens of a sequence and steps of the extension, 4.5M tokens; and tokens of the longest text that is read then."""
LONG_SETTINGS = (
    f"model.max_position_embeddings={READ}", "data.lengths=[]", "data.needle_share=0.34", "data.repeat_share=0",
    "training.evaluate_every=275", "training.checkpoint_every=275",
)  # fmt: skip
AT_ONCE = 12
SPARE = 15.0
"""Seconds kept for writing the record."""
GATE = 0.9
"""Accuracy of S with 8 facts at 1,024 tokens, below which a block counts for loss alone."""


@dataclass(frozen=True)
class Part:
    """A measurement of all six models, before or after they are extended."""

    measurement: str
    of: Literal["trained", "extended"]
    flags: Mapping[str, Any]

    @property
    def name(self) -> str:
        """In records and folders."""
        return f"{self.measurement}-{self.of}"


DEPTHS = {"depths": "0,0.5,1"}
PARTS = (
    Part("needles", "trained", {"needles": "2,4,8,16,32", "queries": 1, "length": 1024, "samples": 50, **DEPTHS}),
    Part("long-context", "extended", {"length": READ, "samples": 60}),
    Part("needles", "extended", {"needles": 8, "queries": 1, "length": "1024,2048,4096,8192", "samples": 50, **DEPTHS}),
    Part("noise", "extended", {"needles": 8, "length": 1024, "samples": 16}),
    Part("outliers", "trained", {"samples": 60}),
    Part("quantization", "trained", {"bits": "8,6,5,4", "samples": 60}),
    Part("allocation", "trained", {"needles": 8, "length": 1024, "samples": 30, "depths": "0.5"}),
)  # in the order in which they are made


def main() -> int:
    """Prepare, or train and measure a block; 2 for input that cannot be used, 1 for a block that is not complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", metavar="SEED|prepare")
    parser.add_argument("--data", action="append", default=[], help="prepare: text to train on; repeatable")
    parser.add_argument("--validation", action="append", default=[], help="prepare: text held out; repeatable")
    parser.add_argument("--prepared", type=Path, default=PREPARED, help="folder that prepare writes")
    parser.add_argument("--output", type=Path, help="folder of the record")
    parser.add_argument("--minutes", type=float, default=9.3, help="end after so many")
    parser.add_argument("--revision", help="commit of the code, for a machine that has no history of it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, to rehearse")
    parser.add_argument("--samples", type=int, help="samples of every measurement, to rehearse")
    given = parser.parse_args()
    try:
        if given.what == "prepare":
            prepare(given.prepared, given.data, given.validation)
            return 0
        if not given.what.isdecimal():
            raise InputError(f"{given.what}: give a seed, or prepare")
        if given.output is None:
            raise InputError("--output is missing: a folder for the block's record")
        return Block(given).run()
    except InputError as error:
        sys.stderr.write(f"gpu_block: {error}\n")
        return 2
    except Interrupted as error:
        sys.stderr.write(f"gpu_block: {error}; the same command continues on this machine\n")
        return 1


def prepare(folder: Path, data: Sequence[str], validation: Sequence[str]) -> None:
    """Write the documents in files as small as compression makes them, and the tokenizer of the training text.

    Raises:
        InputError: a text is missing or cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part, flag, paths in (("train", "--data", data), ("validation", "--validation", validation)):
        if not paths:
            raise InputError(f"{flag} is missing: text for {part}")
        table = pyarrow.table({"text": list(documents(paths, field=flag))})
        temporary = folder / f".{part}.parquet.tmp"
        pyarrow.parquet.write_table(
            table, temporary, compression="zstd", compression_level=21, data_page_size=1 << 30, use_dictionary=False
        )
        temporary.replace(folder / f"{part}.parquet")
    run = load_preset(studies()[STUDY]["base"], [], data=[str(folder / "train.parquet")]).run
    tokenizer_for(run.data, folder / "cache", say).save_pretrained(folder / "tokenizer")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"{folder}: {size / 1e6:.1f} MB")


def say(message: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


class Block:
    """The work of one seed, with a clock for every piece."""

    def __init__(self, given: argparse.Namespace) -> None:
        """
        Raises:
            InputError: the prepared text is missing, or the rates have not been chosen.
        """
        self.given, self.seed = given, int(given.what)
        self.ends = time.monotonic() + 60 * given.minutes - SPARE
        self.seconds: dict[str, float] = {}
        self.text = [str(given.prepared / f"{part}.parquet") for part in ("train", "validation")]
        for path in self.text:
            if not Path(path).is_file():
                raise InputError(f"--prepared: {path} is missing; make it with prepare and bring it")
        known = studies()
        runs = [run for run in runs_of(STUDY, known) if run.seed == self.seed]
        if not runs:
            raise InputError(f"{STUDY} has no seed {self.seed}; its seeds are {known[STUDY]['seeds']}")
        own = [f"data.tokenizer={given.prepared / 'tokenizer'}", *given.set]
        self.runs: dict[Run, RunSettings] = {
            run: settings_of(run, known[STUDY], self.text[:1], self.text[1:], own) for run in runs
        }

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def run(self) -> int:
        """Train, extend, measure, and write the record."""
        began = time.monotonic()
        self.trained()
        self.extended()
        measured = {part.name: self.measured(part) for part in PARTS}
        lines = [execute(run, settings) for run, settings in self.runs.items()]
        missing = [part.name for part in PARTS if len(measured[part.name]) < len(self.sound(part.of))]
        softmax = next(line for line in lines if line["arm"] == "S")
        values = {
            "seed": self.seed, "runs": lines, "measured": measured, "missing": missing, "seconds": self.seconds,
            "diverged": [run.arm for run in self.runs if run not in self.sound("extended")],
            "for_loss_alone": softmax["accuracy"] is None or softmax["accuracy"] < GATE,
        }  # fmt: skip
        record = Record(kind="gpu-block", values=finite(values), seconds=time.monotonic() - began)
        record.environment["revision"] = self.given.revision or record.environment["revision"]
        self.given.output.mkdir(parents=True, exist_ok=True)
        record.save(self.given.output, f"block-{self.seed}")
        for line in lines:
            say(f"{line['arm']}: loss {line['loss']}, 8 facts at 1,024 tokens {line['accuracy']}")
        say(f"seconds: {self.seconds}; missing: {', '.join(missing) or 'nothing'}")
        return int(bool(missing))

    def folder(self, run: Run, of: str) -> Path:
        """Folder of a model."""
        return WORK / (STUDY if of == "trained" else "e/extended") / run.name

    def sound(self, of: str) -> list[Run]:
        """Those that did not diverge; in the extension, or before it."""
        before = list(self.runs) if of == "trained" else self.sound("trained")
        return [run for run in before if not Record.load(self.folder(run, of)).values.get("diverged")]

    def trained(self) -> None:
        """Train all arms at a time."""
        began = time.monotonic()
        programme_runs.execute_together(self.runs, len(self.runs), self.ends)
        self.seconds["training"] = time.monotonic() - began

    def extended(self) -> None:
        """Continue all models with longer sequences, a third of whose rows are retrieval."""
        began, jobs = time.monotonic(), []
        for run in self.sound("trained"):
            overrides = [f"training.steps={LONG_STEPS}", *LONG_SETTINGS, *self.given.set]
            settings = extension(str(self.folder(run, "trained")), length=LONG, overrides=overrides)
            jobs.append(Job(run.name, run.arm, run.seed, settings))

        def report(job: Job, step: int, values: Mapping[str, Any]) -> None:
            if self.left <= 0 and step < job.settings.training.steps:
                raise Interrupted("the minutes are over")

        place = WORK / "e/extended"
        place.mkdir(parents=True, exist_ok=True)
        run_jobs(jobs, place, pool=LocalPool(len(jobs), max(1, cores() // len(jobs))), report=report)
        self.seconds["extension"] = time.monotonic() - began

    def measured(self, part: Part) -> dict[str, Any]:
        """Values of a measurement by arm; those that did not end in time are missing."""
        began, output = time.monotonic(), WORK / "e/measured" / f"{part.name}-{self.seed}"
        output.parent.mkdir(parents=True, exist_ok=True)
        runs = self.sound(part.of)
        models = [str(self.folder(run, part.of)) for run in runs]
        words = [sys.executable, "-m", "antiphase", "evaluate", "several", *models, "--measure", part.measurement,
                 "--data", self.text[1], "--at-once", str(AT_ONCE), "--output", str(output), "--resume"]  # fmt: skip
        flags = part.flags if self.given.samples is None else {**part.flags, "samples": self.given.samples}
        for name, value in flags.items():
            words += ["--set", f"{part.measurement}.{name}={value}"]
        if self.left > 0:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            try:
                if process.wait(self.left) == 2:  # what is there is of other settings
                    raise InputError(f"{output} was refused; the command says why. Remove it, or choose another seed")
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
        self.seconds[part.name] = time.monotonic() - began
        found = {}
        for run in runs:
            place = output / f"{part.measurement}-{run.name}"
            if (place / "record.json").is_file():
                found[run.arm] = Record.load(place).values
        say(f"{part.name}: {len(found)} of {len(runs)} models, {self.seconds[part.name]:.0f} s")
        return found


if __name__ == "__main__":
    sys.exit(main())
