"""What several tests of attacks share."""

import resource
import time

import pytest


@pytest.fixture
def brief():
    """At the end, the test has taken neither time nor memory."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
