"""What several tests of attacks share."""

import time

import pytest

from antiphase.base.memory import peak_memory, restart_peak


@pytest.fixture
def brief():
    """At the end, the test has taken neither time nor memory."""
    restart_peak()
    started, before = time.monotonic(), peak_memory()
    yield
    assert time.monotonic() - started < 10
    assert peak_memory() - before < 1 << 30
