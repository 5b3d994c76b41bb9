"""Writes what became of each test to a file, for ``run.py``: passed, failed or skipped, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RANK = ("passed", "skipped", "failed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The name of that file."""
    parser.addoption("--outcomes", type=Path, help="JSON file for the outcome of each test")


class Outcomes:
    """The worst outcome of each test; a subtest counts only if it fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called for setup, call and teardown of each test, and for its subtests."""
        is_subtest = isinstance(report, pytest.SubtestReport)
        if (report.passed and report.when != "call") or (is_subtest and not report.failed):
            return
        known = self.found.get(report.nodeid, {"outcome": "passed"})
        if RANK.index(report.outcome) >= RANK.index(known["outcome"]):
            self.found[report.nodeid] = {"outcome": report.outcome, "why": _why(report)}

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps(self.found), encoding="utf-8")


def _why(report: Any) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr) if crash is None else str(crash.message)


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that hands out the work writes."""
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path))
