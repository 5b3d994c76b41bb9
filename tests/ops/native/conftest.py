"""The kernels in every form that this processor can run; skipped, with the reason, where none are built."""

import pytest
import torch

from antiphase.ops.native import library


@pytest.fixture(params=range(len(library.KERNELS)), ids=library.KERNELS)
def kernels(request):
    """One after the other, then the best again."""
    found = library.library()
    if isinstance(found, str):
        pytest.skip(found)
    best = found.antiphase_kernels()
    if not found.antiphase_choose(request.param):
        pytest.skip(f"this processor has no {library.KERNELS[request.param]}")
    yield library.KERNELS[request.param]
    assert found.antiphase_choose(best)


@pytest.fixture
def built():
    """The best kernels."""
    if (reason := library.why_not_built()) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def threads():
    """Several, so that they meet; put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)
