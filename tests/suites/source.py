"""The test classes of the installed transformers, from its own source distribution, kept under ``build/suites``.

The distribution has the common classes but not ``tests/generation``, ``tests/exporters`` and ``causal_lm_tester.py``;
``MISSING`` names what the common classes import from there, and stands in for it with classes without tests.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / "build" / "suites"
PACKAGE = "transformers_tests"
MISSING = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}
"""Module and class that the common test classes import, and that the source distribution leaves out."""


def folder() -> Path:
    """Where the tests of the installed version lie, or will lie."""
    return CACHE / f"transformers-{version('transformers')}" / "tests"


def fetch() -> Path:
    """Download and unpack the source distribution unless it is there; returns the folder of its tests."""
    tests = folder()
    if tests.is_dir():
        return tests
    CACHE.mkdir(parents=True, exist_ok=True)
    name = f"transformers-{version('transformers')}"
    with TemporaryDirectory(dir=CACHE) as scratch:
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", scratch]
        requirement = f"transformers=={version('transformers')}"
        subprocess.run([sys.executable, "-m", "pip", "download", *options, requirement], check=True)
        with tarfile.open(Path(scratch) / f"{name}.tar.gz") as archive:
            wanted = [member for member in archive if member.name.startswith((f"{name}/tests/", f"{name}/LICENSE"))]
            archive.extractall(scratch, members=wanted, filter="data")
        (Path(scratch) / name).rename(CACHE / name)
    return tests


def load(name: str) -> ModuleType:
    """A module of these tests, such as ``test_modeling_common``."""
    if PACKAGE not in sys.modules:
        package = sys.modules[PACKAGE] = ModuleType(PACKAGE)
        package.__path__ = [str(folder())]
        for missing, mixin in MISSING.items():
            if not (folder() / Path(*missing.split("."))).with_suffix(".py").is_file():
                sys.modules[f"{PACKAGE}.{missing}"] = module = ModuleType(missing)
                setattr(module, mixin, type(mixin, (), {"__doc__": "Not in the source distribution."}))
    return importlib.import_module(f"{PACKAGE}.{name}")


if __name__ == "__main__":
    print(fetch())  # noqa: T201  # a script prints the path of its result
