"""Breaks the core in one place at a time, in a copy, and demands that the tests notice: ``make mutations``.

``mutations.yaml`` says what is changed and which tests ought to fail. The selections are first run without any change.
Tests run in processes forked from one that has imported PyTorch and transformers already, or every change would wait
for that.
"""

from __future__ import annotations

import argparse
import compileall
import multiprocessing
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
LIST = Path(__file__).parent / "mutations.yaml"
COPIED = ("antiphase", "tests", "pyproject.toml")
IMPORTED = (
    "torch", "pytest", "hypothesis", "scipy.stats", "safetensors.torch", "torch.library", "transformers.generation",
    "transformers.models.llama.modeling_llama", "transformers.models.diffllama.modeling_diffllama",
)  # fmt: skip
"""Imported once, before any process is forked."""
LONGEST, EACH = 300, 30
"""Seconds that a process may take: at least, and for each selection."""
LOG = "log.txt"
"""What a process says, beside the copy."""


class CampaignError(Exception):
    """The list cannot be worked off; says why."""


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    name: str
    file: str
    old: str
    """Stands in the file exactly once."""
    new: str
    tests: str
    """Arguments of pytest that select the tests which ought to fail."""

    @property
    def is_compiled(self) -> bool:
        """Whether the native library is built anew."""
        return not self.file.endswith(".py")

    def applied_to(self, text: str) -> str:
        """
        Raises:
            CampaignError: the old text is not there exactly once, or the new one is no Python.
        """
        found = text.count(self.old)
        if found != 1:
            raise CampaignError(f"{self.name}: {self.file} holds the old text {found} times, not once: {self.old!r}")
        changed = text.replace(self.old, self.new)
        if not self.is_compiled:
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise CampaignError(f"{self.name}: the new text makes no Python of {self.file}: {error}") from None
        return changed


class Outcome:
    """A plugin of pytest: which test failed first, and how many passed."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid
        elif report.when == "call" and report.passed:
            self.passed += 1


def mutations_of(text: str) -> list[Mutation]:
    """
    Raises:
        CampaignError: a name or a change that comes twice, or files that the list does not know how to read.
    """
    try:
        found = [Mutation(**entry) for entry in yaml.safe_load(text)]
    except TypeError as error:
        raise CampaignError(f"{LIST.name}: entries have name, file, old, new and tests: {error}") from None
    for what in ("name", "old"):
        seen = [getattr(mutation, what) + (mutation.file + mutation.new) * (what == "old") for mutation in found]
        twice = sorted({value for value in seen if seen.count(value) > 1})
        if twice:
            raise CampaignError(f"{LIST.name}: {what} comes twice: {twice[0]!r}")
    return found


def in_copy(copy: str, selections: Sequence[str], is_compiled: bool, log: str, results: Any) -> None:
    """Run selections in this process; puts (exit status, first test that failed, number that passed) of each.

    A native library is built beside the copy, of the portable kernels and without optimisation, which takes seconds.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(copy)
    sys.path.insert(0, copy)
    sys.dont_write_bytecode = True
    import pytest

    import antiphase
    from antiphase.ops.native import build, library

    if not Path(antiphase.__file__).is_relative_to(copy):
        raise CampaignError(f"antiphase was imported from {antiphase.__file__}, not from the copy in {copy}")
    if is_compiled:
        all_kinds, flags = build.kernels_of_machine, build.FLAGS
        others = [kind for kind in all_kinds() if kind != "portable"]
        build.kernels_of_machine = lambda: {"portable": ()}
        build.FLAGS = tuple("-O0" if flag == "-O2" else flag for flag in build.FLAGS)
        portable = tuple(
            f"-Wl,--defsym=antiphase_{task}_{kind}=antiphase_{task}_portable"
            for kind in others for task in ("run", "norm", "loss", "meter")
        )  # fmt: skip
        built = build.build(Path(copy).parent / build.LIBRARY, extra=portable)
        bears = build.fingerprint(portable)
        library.fingerprint, library.library_path = (lambda: bears), (lambda: built)
        build.kernels_of_machine, build.FLAGS = all_kinds, flags  # for tests that ask a compiler themselves
    for tests in selections:
        outcome = Outcome()
        words = [
            *shlex.split(tests),
            "-x",
            "-q",
            "-rs",
            "--disable-warnings",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
        ]
        results.put((int(pytest.main(words, plugins=[outcome])), outcome.failed, outcome.passed))


def run(copy: Path, selections: Sequence[str], *, is_compiled: bool) -> list[tuple[int, str | None, int]]:
    """Selections in a process of their own: exit status of pytest, what failed, how many passed.

    Raises:
        CampaignError: the process ended without a result, or did not end.
    """
    context = multiprocessing.get_context("forkserver")
    results = context.SimpleQueue()
    arguments = (str(copy), selections, is_compiled, str(copy.parent / LOG), results)
    process = context.Process(target=in_copy, args=arguments)
    process.start()
    longest = max(LONGEST, EACH * len(selections))
    process.join(longest)
    if process.is_alive():
        process.kill()
        raise CampaignError(f"{selections} did not end within {longest} seconds:\n{last_words(copy)}")
    found = []
    while not results.empty():
        found.append(results.get())
    if len(found) < len(selections):
        raise CampaignError(f"{selections[len(found)]} ended without a result:\n{last_words(copy)}")
    return found


def last_words(copy: Path) -> str:
    """What the last process said."""
    return (copy.parent / LOG).read_text(errors="replace")[-3000:]


def check_unchanged(copy: Path, mutations: Sequence[Mutation]) -> None:
    """
    Raises:
        CampaignError: a selection fails, or runs no test, without any change.
    """
    started = time.perf_counter()
    for is_compiled in (False, True):
        selections = list(dict.fromkeys(m.tests for m in mutations if m.is_compiled == is_compiled))
        found = run(copy, selections, is_compiled=is_compiled) if selections else []
        for tests, (status, failed, passed) in zip(selections, found, strict=True):
            if status or not passed:
                words = f"fails in {failed}" if failed else "runs no test (without native kernels? `antiphase build`)"
                raise CampaignError(f"without any change, {tests} {words}:\n{last_words(copy)}")
    seconds = time.perf_counter() - started
    print(f"without any change, all selections pass: {seconds:.0f} s", flush=True)  # noqa: T201  # progress


def survives(copy: Path, mutation: Mutation) -> bool:
    """Change the copy, run the tests, print a line of the table, change the copy back.

    Raises:
        CampaignError: no test failed, and yet pytest did not end well.
    """
    path = copy / mutation.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied_to(text), encoding="utf-8")
    started = time.perf_counter()
    try:
        ((status, failed, _),) = run(copy, [mutation.tests], is_compiled=mutation.is_compiled)
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = time.perf_counter() - started
    if failed is None and status:
        told = last_words(copy)
        raise CampaignError(f"{mutation.name}: no test failed, but pytest ended with status {status}:\n{told}")
    what = "SURVIVED" if failed is None else "caught"
    told = f"{what:8}  {seconds:6.1f} s  {mutation.name:58}  {failed or mutation.tests}"
    print(told, flush=True)  # noqa: T201  # a script speaks
    return failed is None


def campaign(mutations: Sequence[Mutation]) -> list[str]:
    """Names of the mutations that no test noticed.

    Raises:
        CampaignError: the list cannot be worked off.
    """
    for mutation in mutations:
        mutation.applied_to((ROOT / mutation.file).read_text(encoding="utf-8"))
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(IMPORTED))
    with TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "copy"
        for name in COPIED:
            source, target = ROOT / name, copy / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, target)
        # compiled code knows its source by content: two changes may fall into one second and have equal sizes
        compileall.compile_dir(copy / "antiphase", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        check_unchanged(copy, mutations)
        return [mutation.name for mutation in mutations if survives(copy, mutation)]


def main() -> int:
    """Work the list off; 0: every change was noticed, 1: one was not, 2: the list cannot be worked off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="mutations whose name or file holds this word")
    only = parser.parse_args().only
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")  # the tests' own environment
    started = time.perf_counter()
    try:
        chosen = [m for m in mutations_of(LIST.read_text(encoding="utf-8")) if only in m.name or only in m.file]
        if not chosen:
            raise CampaignError(f"--only {only}: no mutation has this word in its name or file")
        survivors = campaign(chosen)
    except CampaignError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a script speaks
        return 2
    seconds = time.perf_counter() - started
    told = f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught in {seconds:.0f} s"
    print(told)  # noqa: T201  # a script speaks
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
