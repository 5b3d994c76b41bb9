"""An hour on a GPU, in stages: test and time the kernels, train and measure pairs of models.

This is for a machine without network that is available for half an hour in calls of ten minutes, and is empty each
time: every stage has its own time limit, writes one small record, can be run alone, and continues after a kill. First,
on your own machine:

    python benchmarks/gpu_hour.py prepare --data ../shared/data/books/train --validation ../shared/data/books/validation
        --trec ../shared/data/classification/trec --clinc ../shared/data/icl/clinc150.json

Then, on the GPU machine, with the repository and ``runs/gpu-hour-data``; ``OUT`` is the folder that is copied back:

    python benchmarks/gpu_hour.py kernels --records OUT --minutes 2.3
    python benchmarks/gpu_hour.py attention --records OUT --minutes 4
    python benchmarks/gpu_hour.py pilot --records OUT --minutes 3
    python benchmarks/gpu_hour.py train --records OUT --minutes 9
    python benchmarks/gpu_hour.py model --records OUT --minutes 4
    python benchmarks/gpu_hour.py profile --records OUT --minutes 1
    python benchmarks/gpu_hour.py continue --records OUT --minutes 5

Records of earlier calls are copied into OUT before a stage begins: ``train`` and ``continue`` read the plan in
``pilot.json``, without which they take the preset's steps, and
``train`` continues after the pairs in ``train.json``. Exit code 1 means that something failed or was skipped; the
record names it. docs/performance.md has the complete commands and the duration of each stage.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gpu_hour_kernels import check_kernels, time_attention, time_models
from gpu_hour_prepare import prepare_data
from gpu_hour_profile import profile_steps
from gpu_hour_stage import NoTime, Stage
from gpu_hour_training import CALLS, continue_one, pilot, train

from antiphase.errors import InputError, Interrupted
from antiphase.training.device import choose_device

MINUTES = {"prepare": 60.0, "kernels": 2.3, "attention": 4.0, "model": 4.0, "profile": 1.0, "pilot": 3.0,
           "train": 9.0, "continue": 5.0}  # fmt: skip
"""Minutes of each stage, unless --minutes is given."""
STAGES = {"kernels": check_kernels, "model": time_models, "profile": profile_steps}


def main() -> int:
    """Run one stage."""
    given = parser().parse_args()
    try:
        return run(given)
    except InputError as error:
        sys.stderr.write(f"gpu_hour: {error}\n")
        return 2
    except NoTime:
        sys.stderr.write("gpu_hour: the time is over; the same command continues after what is done\n")
        return 1
    except Interrupted as error:
        sys.stderr.write(f"gpu_hour: stopped: {error}; the same command continues\n")
        return 130


def parser() -> argparse.ArgumentParser:
    """The argument parser."""
    made = argparse.ArgumentParser(
        prog="gpu_hour.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("stage", choices=list(MINUTES))
    made.add_argument("--records", type=Path, default=Path("runs/gpu-hour"), help="folder of the stages' records")
    made.add_argument("--work", type=Path, default=Path("runs/gpu-hour-work"), help="folder for models and logs")
    made.add_argument("--prepared", type=Path, default=Path("runs/gpu-hour-data"), help="folder that prepare writes")
    made.add_argument("--minutes", type=float, help="time limit in minutes; no further piece begins near its end")
    made.add_argument("--calls", type=int, default=CALLS, help="pilot: number of train calls to plan pairs for")
    made.add_argument("--revision", help="commit of the code, for a machine that has no history of it")
    made.add_argument("--rehearsal", action="store_true", help="a hundredth of the size, on a CPU")
    made.add_argument("--no-blocks", action="store_true", help="attention: do not time candidates for block sizes")
    made.add_argument(
        "--only", metavar="REGEX", help="attention, model: run only the pieces with these names, e.g. '.*decode.*'"
    )
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the models")
    made.add_argument("--data", action="append", default=[], help="prepare: text to train on; repeatable")
    made.add_argument("--validation", action="append", default=[], help="prepare: text that is held out; repeatable")
    made.add_argument("--trec", type=Path, help="prepare: folder with TREC's train.txt and test.txt")
    made.add_argument("--clinc", type=Path, help="prepare: CLINC-150's file of JSON")
    return made


def run(given: argparse.Namespace) -> int:
    """Run the requested stage; return the exit code.

    Raises:
        InputError: the arguments or inputs cannot be used.
    """
    minutes = MINUTES[given.stage] if given.minutes is None else given.minutes
    if minutes <= 0:
        raise InputError(f"--minutes must be above 0, got {minutes:g}")
    if given.only is not None:
        try:
            re.compile(given.only)
        except re.error as error:
            raise InputError(f"--only {given.only}: not a regular expression: {error}") from None
        if given.stage not in ("attention", "model"):
            raise InputError(f"--only is for the stages attention and model; leave it out of {given.stage}")
    if given.calls < 1:
        raise InputError(f"--calls must be at least 1, got {given.calls}")
    stage = Stage(
        name=given.stage, records=given.records, work=given.work, data=given.prepared, minutes=minutes,
        device="cpu" if given.rehearsal or given.stage == "prepare" else "cuda", is_rehearsal=given.rehearsal,
        revision=given.revision, only=given.only,
    )  # fmt: skip
    if stage.device == "cuda":
        choose_device("cuda")  # the error names what is missing
    if given.stage == "prepare":
        for flag, value in (("--trec", given.trec), ("--clinc", given.clinc)):
            if value is None:
                raise InputError(f"{flag} is missing: prepare copies the labelled tasks too")
        return prepare_data(
            stage, data=given.data, validation=given.validation, trec=given.trec, clinc=given.clinc,
            overrides=given.set,
        )  # fmt: skip
    if given.stage == "attention":
        return time_attention(stage, with_blocks=not given.no_blocks)
    if given.stage == "pilot":
        return pilot(stage, given.calls, given.set)
    if given.stage == "train":
        return train(stage, given.set)
    if given.stage == "continue":
        return continue_one(stage, given.set)
    return STAGES[given.stage](stage)


if __name__ == "__main__":
    sys.exit(main())
