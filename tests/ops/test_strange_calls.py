"""Every operator for processors on tensors that nobody means; `make full` runs this under the address sanitizer too."""

import pytest

from antiphase.ops import api, blockwise  # noqa: F401  # registers operators
from antiphase.ops.native import layer, library, loss, operators  # noqa: F401  # registers operators
from support import strange_calls


@pytest.fixture(params=[name for name in strange_calls.names() if not name.startswith("triton")])
def name(request):
    """Each operator that runs here."""
    if request.param.startswith("native") and library.why_not_built() is not None:
        pytest.skip(library.why_not_built())
    return request.param


def test_sizes_of_zero_and_one(name):
    strange_calls.assert_sizes_are_served_or_refused(name)


def test_strange_memory_gives_what_plain_memory_gives(name):
    strange_calls.assert_memory_does_not_matter(name)


def test_wrong_arguments_are_errors_of_python(name):
    strange_calls.assert_wrong_arguments_are_errors(name)
