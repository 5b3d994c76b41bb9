"""A pytest plugin that writes every result at once, so that nothing is lost when time runs out or a process crashes.

PYTHONPATH=. pytest -p experiments.gpu_hour_results --result-lines FILE --part 1/16 tests/ops/triton
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LINES_KEPT = 6
"""Number of lines kept of a failure in pytest's output: those that begin with E, which describe the error."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that name the file and this process's part of the tests."""
    parser.addoption("--result-lines", type=Path, help="file to which results are added, a JSON object a line")
    parser.addoption("--part", default="1/1", help="K/N: the K-th of N parts of the tests, one process each")


def pytest_configure(config: pytest.Config) -> None:
    """Write results if a file is named."""
    path = config.getoption("--result-lines")
    if path is not None:
        part, parts = map(int, config.getoption("--part").split("/"))
        config.pluginmanager.register(_Lines(path, part - 1, parts))


class _Lines:
    def __init__(self, path: Path, part: int, parts: int) -> None:
        self.path, self.part, self.parts = path, part, parts

    def _write(self, line: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this part, which follow each other because neighbours share compiled kernels."""
        if self.part == 0:
            self._write({"collected": [item.nodeid for item in items]})
        share = -(-len(items) // self.parts)
        items[:] = items[self.part * share : (self.part + 1) * share]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write one line per test: the result of its call, or an error in setup or teardown."""
        if report.when != "call" and report.passed:
            return
        said: list[str] = []
        if report.failed:
            told = [line[1:].strip() for line in report.longreprtext.split("\n") if line.startswith("E ")]
            said = (told or report.longreprtext.split("\n"))[:LINES_KEPT]
        elif report.skipped and isinstance(report.longrepr, tuple):
            said = [report.longrepr[2]]
        self._write(
            {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3), "said": said}
        )
