"""Do the lowest versions that ``pyproject.toml`` allows work, and the newest? Steps of ``make full``.

    python -m tools.floors [--newest]

An empty environment gets every dependency at its floor, or its newest version, but torch as it is tested; then fast
tests of all parts run there. The record, ``records/floors.json`` or ``newest.json``, has versions and numbers of tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console

from antiphase.base.records import Record
from tools.full_run import outcomes
from tools.release import pinned

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis", "packaging", "peft", "ruff")
"""Tools of the extra ``dev`` that these tests need, at their floors too."""
TESTS = (
    "tests/ops/test_api.py", "tests/ops/test_reference.py", "tests/ops/test_blockwise.py", "tests/layers",
    "tests/models/test_transformer.py", "tests/models/test_attention.py", "tests/models/test_configuration.py",
    "tests/models/test_conversion.py", "tests/models/test_checkpoints.py", "tests/models/test_other_tools.py",
    "tests/models/test_portable.py", "tests/calibration", "tests/lab/text", "tests/lab/pages", "tests/cli/test_cli.py",
    "tests/test_imports.py", "tests/attention/test_interface.py", "tests/attention/test_caches.py",
    "tests/base/test_records.py", "tests/lab/training/test_loop.py",
)  # fmt: skip
"""Files and folders; their slow tests are left out."""


def main() -> int:
    """Install, test, write the record; 1 if a test fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true", help="the newest versions instead of the lowest")
    kind = "newest" if parser.parse_args().newest else "floors"
    started = time.perf_counter()
    lowest = floors()
    wanted = [f"{name}=={version}" for name, version in lowest.items()]
    if kind == "newest":
        wanted = [pinned("torch"), *(name for name in lowest if name != "torch")]
    with tempfile.TemporaryDirectory(prefix="antiphase-floors-") as scratch:
        python = Path(scratch) / "environment/bin/python"
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *wanted], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
        listed = subprocess.run([*pip[:3], "list", "--format", "json"], check=True, capture_output=True, text=True)
        versions = {canonicalize_name(one["name"]): one["version"] for one in json.loads(listed.stdout)}
        counts = tested(python, Path(scratch))
    values = {"versions": {name: versions[canonicalize_name(name)] for name in lowest}, **counts}
    record = Record(kind=kind, values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(ROOT / "records", kind)))
    return int(bool(counts["failed"]) or not counts["tests"])


def floors() -> dict[str, str]:
    """The lowest version of every dependency, and of the tools that the tests need, by package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = [Requirement(line) for line in project["optional-dependencies"]["dev"]]
    needed = [Requirement(line) for line in project["dependencies"]]
    needed += [tool for tool in tools if tool.name in FOR_TESTS]
    found = {}
    for requirement in needed:
        (floor,) = requirement.specifier
        if floor.operator != ">=":
            raise RuntimeError(f"{requirement}: expected a floor, such as >=1.0")
        found[requirement.name] = floor.version
    return found


def tested(python: Path, scratch: Path) -> dict[str, Any]:
    """Numbers of tests run and skipped, and the names of failures."""
    results = scratch / "results.xml"
    command = [str(python), "-m", "pytest", "--quiet", "-m", "not slow", f"--junitxml={results}", *TESTS]
    extra = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=ROOT, env=os.environ | extra, check=False)  # noqa: TID251  # a child's environment
    return outcomes(results)


if __name__ == "__main__":
    sys.exit(main())
