"""A pytest plugin that writes every result at once, so that nothing is lost when time runs out.

PYTHONPATH=benchmarks pytest -p gpu_hour_results --result-lines FILE tests/ops/triton
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LINES_KEPT = 6
"""Number of lines kept of a failure in pytest's output: those that begin with E, which describe the error."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption("--result-lines", type=Path, help="file to which results are added, a JSON object a line")


def pytest_configure(config: pytest.Config) -> None:
    """Write in the process that gets all results, which is not a worker of xdist."""
    path = config.getoption("--result-lines")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Lines(path))


class _Lines:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.collected = False

    def _write(self, line: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Take the list of tests from the first worker."""
        if not self.collected:
            self.collected = True
            self._write({"collected": ids})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the list of tests from this process, without xdist."""
        if session.items and not self.collected:
            self.collected = True
            self._write({"collected": [item.nodeid for item in session.items]})

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
