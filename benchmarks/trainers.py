"""Do TRL's trainers and other people's quantizers take the models? A step of ``make full``.

    python benchmarks/trainers.py

An environment gets TRL, torchao and bitsandbytes, which the development environment lacks, and runs the tests that need
them. A skipped test counts as a failure. The record, ``docs/records/trainers.json``, has the versions and the numbers
of tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from antiphase.records import Record

sys.path.insert(0, str(Path(__file__).parent))  # for imports of the neighbouring scripts
from full_run import outcomes

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
TESTED = ("trl", "torchao", "bitsandbytes")
"""Packages that ``TESTS`` import; the record names their versions."""
FOR_TESTS = ("torch", "peft", "accelerate", "pytest", "pytest-xdist", "hypothesis")
TESTS = "tests/models/test_trainers.py"
VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def main() -> int:
    """Install, test, write the record; 1 if a test fails or is skipped."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="antiphase-trainers-") as scratch:
        python, results = Path(scratch) / "environment/bin/python", Path(scratch) / "results.xml"
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "torch"], check=True)  # first and by itself, as everywhere
        subprocess.run([*pip, *FOR_TESTS, *TESTED, "--editable", str(ROOT)], check=True)
        asked = [str(python), "-c", VERSIONS, *TESTED]
        found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        command = [str(python), "-m", "pytest", "--quiet", f"--junitxml={results}", TESTS]
        extra = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, cwd=ROOT, env=os.environ | extra, check=False)  # noqa: TID251  # a child's environment
        counts = outcomes(results)
    values = {"versions": dict(zip(TESTED, found, strict=True)), **counts}
    record = Record(kind="trainers", values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(ROOT / "docs/records", "trainers")))
    return int(bool(counts["failed"] or counts["skipped"]) or not counts["tests"])


if __name__ == "__main__":
    sys.exit(main())
