"""The scripts in ``benchmarks``, as modules."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """``script("real_model")`` imports a script, which another test imports anew."""
    names = []

    def load(name):
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        names.append(name)
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)
