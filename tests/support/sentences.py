"""Records the sentences of each test: what ``InputError`` says, and what a refused or stopped command prints.

A plugin of pytest: ``-p support.sentences --sentences FILE``, with ``tests`` on the path. ``tools/golden.py`` uses it.
"""

import re
import sys
import tempfile
from collections import defaultdict
from functools import wraps
from pathlib import Path

import pytest

from antiphase.base.errors import InputError

ROOT = Path(__file__).parents[2]
STOPPED = (2, 3, 130)
"""Exit codes of a command that was refused, whose training diverged, or that was stopped."""
PLACES = {
    sys.prefix: "<python>",
    str(Path(sys.prefix).resolve()): "<python>",
    str(ROOT.parent / "shared"): "<shared>",
    str(ROOT): "<root>",
}
"""Paths of this machine."""
VOLATILE = (
    (rf"{re.escape(tempfile.gettempdir())}/tmp\w{{8}}", "<tmp>"),
    (r"\b0x[0-9a-f]{6,}", "<address>"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:<port>"),
    (r"\bprocess \d+", "process <id>"),
    (r"\.\d+\.tmp\b", ".<id>.tmp"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?", "<time>"),
    (r"\S+ … \S+", "<cut> … <cut>"),  # where a long message is cut depends on the lengths of paths in it
)
"""What differs between two runs, and what stands for it."""
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What does not stay on one line."""


def pytest_addoption(parser):
    parser.addoption("--sentences", type=Path, help="write the sentences of each test, sorted, to this file")


def pytest_configure(config):
    if path := config.getoption("--sentences"):
        config.pluginmanager.register(Sentences(config, path), "sentences of each test")


class Sentences:
    """Collects in the process of a test; they travel with its report to the one that writes."""

    def __init__(self, config, path):
        self.is_worker = hasattr(config, "workerinput")
        self.path = path
        self.now = []
        self.tests = defaultdict(set)
        self.created = InputError.__init__
        InputError.__init__ = self._recording(InputError.__init__)

    def _recording(self, create):
        """A constructor that notes the sentence in place of that of the error which it is made from."""

        @wraps(create)
        def init(error, *arguments, **fields):
            create(error, *arguments, **fields)
            older = sys.exc_info()[1]
            if isinstance(older, InputError) and ("says", str(older)) in self.now:  # nobody sees it
                self.now.remove(("says", str(older)))
            self.now.append(("says", str(error)))

        return init

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        """The fixture ``antiphase`` runs a command; note what it prints where it ends early."""
        result = yield
        if fixturedef.argname != "antiphase":
            return result

        def run(*arguments):
            code, out, err = result(*arguments)
            if code in STOPPED:
                self.now.append((f"exit {code}", err))
            return code, out, err

        fixturedef.cached_result = (run, *fixturedef.cached_result[1:])
        return run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """Only of the test itself: a fixture that several share would give its sentence to whichever comes first."""
        self.now = []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        # Drawn inputs change when code moves: hypothesis draws from the constants in the sources too.
        if call.when == "call" and not getattr(item.obj, "is_hypothesis_test", False):
            scratch = str(item.config._tmp_path_factory.getbasetemp())
            report.test = steadied(item.name, scratch)
            report.sentences = [f"{how}: {steadied(text, scratch)}" for how, text in self.now]
        return report

    def pytest_runtest_logreport(self, report):
        if sentences := getattr(report, "sentences", ()):
            self.tests[report.test].update(sentences)

    def pytest_sessionfinish(self):
        if not self.is_worker:
            lines = [line for test in sorted(self.tests) for line in (f"== {test}", *sorted(self.tests[test]))]
            self.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="backslashreplace")

    def pytest_unconfigure(self):
        InputError.__init__ = self.created


def steadied(text, scratch):
    """One line without what differs between two runs; ``scratch`` holds the tests' own folders."""
    text = re.sub(rf"{re.escape(scratch)}(/[^/\s'\"]+)?", "<tmp>", text)
    for place, name in PLACES.items():
        text = text.replace(place, name)
    for pattern, name in VOLATILE:
        text = re.sub(pattern, name, text)
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
