"""Every Triton operator on tensors that nobody means."""

import pytest

from support import strange_calls

pytest.importorskip("triton")
from antiphase.ops.triton import few, launch  # noqa: F401  # registers operators

pytestmark = pytest.mark.slow  # the interpreter takes minutes
TRITON = [name for name in strange_calls.names() if name.startswith("triton")]
SMALL = strange_calls.PLAIN | {"batch": 1, "groups": 1}
ALONE = [sizes for sizes in strange_calls.SIZES if len(sizes.items() - strange_calls.PLAIN.items()) < 2]


@pytest.mark.parametrize("name", TRITON)
def test_sizes_of_zero_and_one(name):
    strange_calls.assert_sizes_are_served_or_refused(name, ALONE)


@pytest.mark.parametrize("name", TRITON)
def test_strange_memory_gives_what_plain_memory_gives(name):
    strange_calls.assert_memory_does_not_matter(name, SMALL, how_many=1)


@pytest.mark.parametrize("name", TRITON)
def test_wrong_arguments_are_errors_of_python(name):
    strange_calls.assert_wrong_arguments_are_errors(name, SMALL, how_many=1)
