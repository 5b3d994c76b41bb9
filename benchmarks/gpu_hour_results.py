"""A pytest plugin that writes every result at once, so that nothing is lost when the time is over.

PYTHONPATH=benchmarks pytest -p gpu_hour_results --result-lines FILE tests/ops/triton
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LINES_KEPT = 6
"""Of what pytest shows of a failure: those that begin with E, which say what was wrong."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption("--result-lines", type=Path, help="file to which results are added, a JSON object a line")


def pytest_configure(config: pytest.Config) -> None:
    """Write in the process that hears of all results: not in a worker of xdist."""
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
        """The first worker knows all tests."""
        if not self.collected:
            self.collected = True
            self._write({"collected": ids})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without xdist this process collects."""
        if session.items and not self.collected:
            self.collected = True
            self._write({"collected": [item.nodeid for item in session.items]})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line a test: of its call, or of what went wrong around it."""
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
