"""Kernels and models on a GPU, in stages: test and time them.

This is for a machine without network that is available for a quarter of an hour at a time, and is empty each time:
every stage has its own time limit, writes one small record, can be run alone, and continues after a kill. On the GPU
machine, with the repository; ``OUT`` is the folder that is copied back:

    python -m experiments.gpu_hour kernels --records OUT --minutes 2.3
    python -m experiments.gpu_hour attention --records OUT --minutes 4
    python -m experiments.gpu_hour model --records OUT --minutes 4
    python -m experiments.gpu_hour profile --records OUT --minutes 1

Records of earlier calls are copied into OUT before a stage begins. Exit code 1 means that something failed or was
skipped; the record names it. ``gpu_block.py`` trains models.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from antiphase.base.errors import InputError, Interrupted
from antiphase.lab.training.device import choose_device
from experiments.gpu_hour_kernels import check_kernels, time_attention, time_models
from experiments.gpu_hour_profile import profile_steps
from experiments.gpu_hour_stage import Stage

MINUTES = {"kernels": 2.3, "attention": 4.0, "model": 4.0, "profile": 1.0}
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
    made.add_argument("--work", type=Path, default=Path("runs/gpu-hour-work"), help="folder for logs")
    made.add_argument("--minutes", type=float, help="time limit in minutes; no further piece begins near its end")
    made.add_argument("--revision", help="commit of the code, for a machine that has no history of it")
    made.add_argument("--rehearsal", action="store_true", help="a hundredth of the size, on a CPU")
    made.add_argument("--no-blocks", action="store_true", help="attention: do not time candidates for block sizes")
    made.add_argument(
        "--only", metavar="REGEX", help="attention, model: run only the pieces with these names, e.g. '.*decode.*'"
    )
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
    stage = Stage(
        name=given.stage, records=given.records, work=given.work, minutes=minutes,
        device="cpu" if given.rehearsal else "cuda", is_rehearsal=given.rehearsal,
        revision=given.revision, only=given.only,
    )  # fmt: skip
    if stage.device == "cuda":
        choose_device("cuda")  # the error names what is missing
    if given.stage == "attention":
        return time_attention(stage, with_blocks=not given.no_blocks)
    return STAGES[given.stage](stage)


if __name__ == "__main__":
    sys.exit(main())
