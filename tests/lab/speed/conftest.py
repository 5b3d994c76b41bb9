"""The scripts in ``benchmarks``, as modules."""

import importlib
import sys

import pytest

from support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


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
