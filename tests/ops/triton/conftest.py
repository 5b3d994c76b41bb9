"""The kernels run on a GPU, or under Triton's interpreter in a process of its own: ``make test-triton``."""

import os
from importlib import util

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def device():
    """Where tensors are made: the interpreter reads a processor's memory, kernels a GPU's."""
    with torch.device("cpu" if INTERPRETED else "cuda"):
        torch.manual_seed(0)
        yield


def pytest_collection_modifyitems(items):
    reason = None
    if util.find_spec("triton") is None:
        reason = "Triton is not installed: pip install 'antiphase[triton]'"
    elif not INTERPRETED and not torch.cuda.is_available():
        reason = "there is no GPU, and TRITON_INTERPRET=1 is not set: make test-triton"
    for item in items:
        if reason is not None and "ops/triton" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=reason))
