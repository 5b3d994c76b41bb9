"""The demo's comparison on a Ray cluster of three nodes on this machine, against the same on the local executor.

    python -m experiments.ray_demo --work runs/ray-demo --output records --seeds 0,1 --set training.steps=200

Both comparisons are commands, which the record names. Compared are all JSON files and weights of the two folders, but
for times, folders, commands, and sums over files that hold them. It needs the extra ``cluster``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from rich.console import Console

from antiphase.base.folders.contents import file_digest
from antiphase.base.records import Record

NODES = 3
DATES = {"created", "written"}
TIMES = {"seconds", "tokens_per_second", "folder", "command", *DATES}
"""What two executors cannot agree in."""


def without_times(tree: Any) -> Any:
    """A tree of JSON without ``TIMES``, and without the SHA-256 of what has a date."""
    if isinstance(tree, dict):
        left_out = TIMES | {"sha256"} if DATES & tree.keys() else TIMES
        return {key: without_times(value) for key, value in tree.items() if key not in left_out}
    return [without_times(one) for one in tree] if isinstance(tree, list) else tree


def results(folder: Path) -> dict[str, Any]:
    """What a comparison has left, by file: trees of JSON files, digests of weights."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.json")):
        if "checkpoint" not in path.parts:
            text = path.read_text().replace(str(folder), "OUTPUT").replace(f"{folder.name}/", "OUTPUT/")
            found[str(path.relative_to(folder))] = without_times(json.loads(text))
    for path in sorted(folder.glob("*/model.safetensors")):
        found[str(path.relative_to(folder))] = file_digest(path)
    return found


def timed(words: list[str]) -> tuple[float, str]:
    """Seconds that a command takes, and what it prints.

    Raises:
        RuntimeError: it fails.
    """
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "antiphase", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"antiphase {' '.join(words)} ended with code {done.returncode}: {done.stderr[-500:]}")
    return time.perf_counter() - began, done.stdout + done.stderr


def main() -> None:
    """Run both and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="Folder for both comparisons.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for ray-demo.json.")
    parser.add_argument("--seeds", default="0,1,2", help="Seeds of the comparison.")
    parser.add_argument("--set", action="append", default=[], help="Settings that differ from the demo's. Repeatable.")
    chosen = parser.parse_args()
    common = ["compare", "--preset", "demo", "--seeds", chosen.seeds]
    common += [word for one in chosen.set for word in ("--set", one)]
    started = time.perf_counter()
    size = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster()
    try:
        for _ in range(NODES):
            cluster.add_node(wait=False, **size)
        on_ray = [
            *common,
            "--output",
            str(chosen.work / "cluster"),
            "--executor",
            "ray",
            "--ray-address",
            cluster.address,
        ]
        ray_seconds, printed = timed(on_ray)
    finally:
        ray.shutdown()
        cluster.shutdown()
    if f"Ray: {NODES} nodes" not in " ".join(printed.split()):
        raise RuntimeError(f"the comparison did not use {NODES} nodes: {printed[-500:]}")
    on_machine = [*common, "--output", str(chosen.work / "machine")]
    local_seconds, _ = timed(on_machine)
    found, expected = results(chosen.work / "cluster"), results(chosen.work / "machine")
    differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    values = {
        "files": len(expected),
        "runs": len([name for name in expected if name.endswith("model.safetensors")]),
        "differing": differing,
        "ray_seconds": ray_seconds,
        "local_seconds": local_seconds,
    }
    commands = [f"antiphase {' '.join(words)}" for words in (on_ray, on_machine)]
    config = {"nodes": NODES, "cpus_of_a_node": 1, "commands": commands}
    record = Record(kind="benchmark-ray-demo", values=values, config=config, seconds=time.perf_counter() - started)
    written = record.save(chosen.output, "ray-demo")
    Console(highlight=False).print(f"{len(differing)} of {len(expected)} files differ; written: {written}")


if __name__ == "__main__":
    main()
