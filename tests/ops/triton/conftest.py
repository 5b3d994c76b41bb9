"""The kernels run under Triton's interpreter, in a process of its own: ``make test-triton``."""

from __future__ import annotations

import os
from importlib import util

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items):
    reason = None
    if util.find_spec("triton") is None:
        reason = "Triton is not installed: pip install 'antiphase[triton]'"
    elif not INTERPRETED:
        reason = "TRITON_INTERPRET=1 is not set: make test-triton"
    for item in items:
        if reason is not None and "ops/triton" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=reason))
