"""Measurements of trained models for ``gpu_hour.py``: commands of ``antiphase evaluate``, several at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_hour_stage import Stage

from antiphase.records import Record

POLL = 0.3
NO_TIME = "no time was left for it"
TASKS = ("trec", "clinc-150")
THREADS = "1"
"""Threads per process: there are as many processes as cores."""


def measurements(stage: Stage, model: Path) -> dict[str, list[str]]:
    """Arguments of ``antiphase evaluate`` by name, slowest first. Contexts and rows are the same for every model."""
    sizes = stage.sizes

    def listed(values: Sequence[object]) -> str:
        return ",".join(map(str, values))

    cells = ["--depths", listed(sizes.depths), "--samples", str(sizes.contexts)]
    found = {
        f"many-shot {task}": [
            "many-shot", str(model), "--task", str(stage.data / "tasks" / f"{task}.yaml"), "--shots",
            listed(sizes.shots), "--orders", str(sizes.orders), "--samples", str(sizes.asked),
        ]
        for task in TASKS
    }  # fmt: skip
    for count in reversed(sizes.needles):
        asked = [queries for queries in sizes.queries if queries <= count]
        found[f"needles {count}"] = [
            "needles", str(model), "--needles", str(count), "--queries", listed(asked), *cells,
        ]  # fmt: skip
    sequences = ["--samples", str(sizes.sequences)]
    return {
        **found,
        "quantization": ["quantization", str(model), "--bits", listed(sizes.bits), *sequences],
        "allocation": ["allocation", str(model), "--needles", str(max(sizes.needles)), *cells],
        "outliers": ["outliers", str(model), *sequences],
        "long-context": ["long-context", str(model), "--samples", str(sizes.windows)],
    }


def measured(stage: Stage, models: Mapping[str, Path]) -> dict[str, Any]:
    """Every measurement of every model: its record's values and seconds, or ``why`` it is missing.

    Another call continues after an interruption; nothing starts after the time limit.
    """
    waiting = [
        (f"{name}: {what}", stage.work / "measured" / stage.name / name / what.replace(" ", "-"), words)
        for name, model in models.items()
        for what, words in measurements(stage, model).items()
    ]
    waiting.sort(key=lambda one: list(measurements(stage, Path())).index(one[0].partition(": ")[2]))
    running: dict[str, tuple[subprocess.Popen[bytes], Path, float]] = {}
    found: dict[str, Any] = {}
    try:
        while waiting or running:
            while waiting and stage.left > 0 and len(running) < stage.sizes.measured_at_once:
                name, output, words = waiting.pop(0)
                running[name] = _started(stage, output, words), output, time.monotonic()
            for name, (process, output, began) in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    found[name] = {**_result(process.returncode, output), "seconds": time.monotonic() - began}
            if stage.left <= 0:
                break
            time.sleep(POLL)
    finally:
        for process, _, _ in running.values():
            process.kill()
            process.wait()
    for name in [*running, *(name for name, _, _ in waiting)]:
        found[name] = {"why": NO_TIME, "values": None, "seconds": None}
    return found


def _started(stage: Stage, output: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "antiphase", "evaluate", *words, "--output", str(output), "--device", stage.device]
    own = {"OMP_NUM_THREADS": THREADS, "HF_HUB_OFFLINE": "1"}
    with open(output.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(
            [*command, "--resume"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=os.environ | own  # noqa: TID251 – a child's environment
        )  # fmt: skip


def _result(code: int, output: Path) -> dict[str, Any]:
    if code == 0:
        return {"why": None, "values": Record.load(output).values}
    lines = output.with_suffix(".log").read_text("utf-8", errors="replace").strip().split("\n")
    return {"why": f"code {code}: {lines[-1][:500]}", "values": None}
