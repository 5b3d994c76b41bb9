"""The kernels compile for a GPU that is not there, and fit its multiprocessors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a block of threads may have (CUDA C++ Programming Guide, compute capabilities)."""
SPILLED = 256
"""Bytes of a thread that may go to memory and back."""
CODE = """
import json, sys
sys.path.insert(0, "benchmarks")
from compiled_kernels import compiled
print(json.dumps(list(compiled(64, {keys}, "bf16", {architecture}))))
"""


@pytest.mark.parametrize(("keys", "architecture"), [(2, 90), (1, 80)])
def test_kernels_compile_and_fit(keys, architecture):
    """In a process of its own, for here Triton only interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = CODE.format(keys=keys, architecture=architecture)
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    rows = {row["kernel"]: row for row in json.loads(said.stdout.splitlines()[-1])}
    assert set(rows) == {"forward_kernel", "keys_kernel", "queries_kernel", "span_kernel", "join_kernel"}
    for row in rows.values():
        assert row["spilled"] <= SPILLED
        assert row["shared"] <= SHARED[architecture]
