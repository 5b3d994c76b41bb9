"""Train for a long time in one process; the record shows memory, open files and step time, which must not grow.

``python tests/attack/soak.py --minutes 30 --output records``. Checkpoints, evaluations and log lines are frequent,
so that half an hour has as many of them as days of ordinary training.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from array import array
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from attack.targets import PRESET  # noqa: E402 – found by the line above

from antiphase.base.errors import Interrupted  # noqa: E402 – as above
from antiphase.base.records import Record  # noqa: E402 – as above
from antiphase.lab.settings.presets import load_preset  # noqa: E402 – after it, as isort has it
from antiphase.lab.studies.training_run import train_run  # noqa: E402 – as above

WARM = 0.2
"""Share of the time at the beginning that is not judged: caches fill."""
NAMES = ("seconds", "processor", "step", "memory", "files")
"""Values of a point."""
MEMORY, STEP = 1.05, 1.25
"""Largest growth of memory, and of the median processor time of a step, from the first third of what is judged to the
last. Processor time, because other work on the machine does not change it.
"""


def main() -> int:
    """Train until the time is over, and write the record; 1 if something grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--output", type=Path, help="folder of the record, soak.json")
    given = parser.parse_args()
    points = trained(given.minutes * 60)
    values = {"points": points[:: max(1, len(points) // 500)], **grown(points)}
    if given.output is not None:
        record = Record(kind="soak", values=values, seeds=[0], seconds=given.minutes * 60)
        print(record.save(given.output, "soak"))  # noqa: T201 – the path of the result
    print({name: value for name, value in values.items() if name != "points"})  # noqa: T201 – the result
    return int(values["grows"])


def trained(seconds: float) -> list[dict[str, Any]]:
    """Memory in MiB, open files and steps at each logged step."""
    # in 40 bytes a point, because what this script keeps must not look like growth of what it measures
    numbers = array("d")
    started = time.monotonic()
    threading.Timer(seconds, lambda: os.kill(os.getpid(), 15)).start()  # as a scheduler ends a run

    def report(step: int, values: Any) -> None:
        if "loss" in values:
            numbers.extend((time.monotonic() - started, time.process_time(), step, *_held()))

    with TemporaryDirectory() as folder:
        preset = Path(folder) / "long.yaml"
        preset.write_text(PRESET, encoding="utf-8")
        settings = load_preset(str(preset), ["training.steps=100000000", "training.decay_steps=100000000"]).run
        with suppress(Interrupted):  # the time is over
            train_run(settings, Path(folder) / "run", resume=False, report=report)
    rows = zip(*(numbers[place :: len(NAMES)] for place in range(len(NAMES))), strict=True)
    return [{**dict(zip(NAMES, row, strict=True)), "step": int(row[2]), "files": int(row[4])} for row in rows]


def grown(points: list[dict[str, Any]]) -> dict[str, Any]:
    """How memory, files and step time changed between the first and the last third after the warm-up."""
    judged = points[int(WARM * len(points)) :]
    third = len(judged) // 3
    first, last = judged[:third], judged[-third:]
    memory = statistics.median(p["memory"] for p in last) / statistics.median(p["memory"] for p in first)
    files = max(p["files"] for p in last) - max(p["files"] for p in first)
    step = statistics.median(_times(last)) / statistics.median(_times(first))
    grows = memory > MEMORY or files > 0 or step > STEP
    return {
        "steps": points[-1]["step"], "memory_ratio": memory, "files_more": files, "step_ratio": step, "grows": grows,
    }  # fmt: skip


def _times(points: list[dict[str, Any]]) -> list[float]:
    return [after["processor"] - before["processor"] for before, after in pairwise(points)]


def _held() -> tuple[float, float]:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    sys.exit(main())
