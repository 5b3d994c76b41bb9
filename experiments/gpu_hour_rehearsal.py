"""Rehearse the stages of the GPU hour on a CPU at a hundredth of their size; each is killed once and resumed.

    python -m experiments.gpu_hour_rehearsal --output runs/gpu-rehearsal

Writes records/gpu-hour-rehearsal.json: what existed when a stage was killed, and the result of its second run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from antiphase.base.records import Record

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("kernels", "attention", "model", "profile")
POLL = 0.1


def main() -> int:
    """Run every stage twice: first until it has finished a piece, then to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for everything but the record")
    parser.add_argument("--records", type=Path, default=ROOT / "records", help="folder for the record")
    given = parser.parse_args()
    output: Path = given.output.resolve()
    output.mkdir(parents=True)
    started = time.monotonic()
    stages = [rehearsed(output, stage) for stage in STAGES]
    record = Record(kind="gpu-hour-rehearsal", values={"stages": stages}, seconds=time.monotonic() - started)
    sys.stdout.write(f"{record.save(given.records, 'gpu-hour-rehearsal')}\n")
    return int(any(stage["code"] or not stage["was_killed"] for stage in stages))


def rehearsed(output: Path, stage: str) -> dict[str, Any]:
    """Run one stage: kill it as soon as there is something that a kill could destroy, then run it to its end."""
    began = time.monotonic()
    first = _start(output, stage)
    while first.poll() is None and not _has_begun(output, stage):
        time.sleep(POLL)
    os.killpg(first.pid, signal.SIGKILL)
    code = first.wait()
    killed = time.monotonic() - began
    before = _pieces(output, stage)
    began = time.monotonic()
    second = _start(output, stage).wait()
    after = _pieces(output, stage)
    return {
        "stage": stage,
        "was_killed": code == -signal.SIGKILL,
        "seconds_until_killed": killed,
        "pieces_when_killed": len(before),
        "kept": all(after.get(name) == found for name, found in before.items()),
        "code": second,
        "seconds_to_the_end": time.monotonic() - began,
        "pieces": list(after) if stage != "kernels" else len(after) - 1,
        "bytes": (output / "records" / f"{stage}.json").stat().st_size,
        **_summary(output, stage),
    }


def _command(output: Path, stage: str) -> list[str]:
    folders = ["--records", str(output / "records"), "--work", str(output / "work")]
    return [sys.executable, str(ROOT / "experiments/gpu_hour.py"), stage, "--rehearsal", "--minutes", "30", *folders]


def _start(output: Path, stage: str) -> subprocess.Popen[bytes]:
    own = {"TRITON_INTERPRET": "1"} if stage == "attention" else {}
    command = _command(output, stage)
    environment = os.environ | own  # noqa: TID251 – a child's environment
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)


def _has_begun(output: Path, stage: str) -> bool:
    """Whether a kill would now be a test: there is a stored piece."""
    return len(_pieces(output, stage)) > int(stage == "kernels")


def _pieces(output: Path, stage: str) -> dict[str, Any]:
    path = output / "records" / f"{stage}.json"
    return Record.load(path).values["pieces"] if path.is_file() else {}


def _summary(output: Path, stage: str) -> dict[str, Any]:
    """A summary of the stage's record."""
    values = Record.load(output / "records" / f"{stage}.json").values
    if stage == "kernels":
        return {name: values[name] for name in ("collected", "passed", "failed", "skipped", "unfinished")}
    if stage == "attention":
        return {"blocks": values["blocks"]["chosen"], "comparisons": len(values["rows"]), "failed": values["failed"]}
    if stage == "model":
        return {"comparisons": len(values["rows"])}
    return {"kernels": {name: len(rows) for name, rows in values["models"].items()}}


if __name__ == "__main__":
    sys.exit(main())
