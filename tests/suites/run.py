"""Run transformers' own test classes over this package's models and stock ones, and judge the results.

    python tests/suites/run.py --output records

``known.yaml`` lists the failures and skips, with reasons. It may only shrink: a failure or skip that is not listed
fails, and so does an entry that no longer fails or skips. The test classes are downloaded first (``source.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
sys.path.insert(0, str(FOLDER.parent))

from suites import source  # noqa: E402  # found by the line above
from suites.kinds import KINDS  # noqa: E402  # the same

from antiphase.base.records import Record  # noqa: E402  # the same

LONGEST_REASON = 200
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
"""One thread a process, no network, and no device whose presence would change which tests are skipped."""
Results = dict[tuple[str, str], dict[str, str]]
"""Outcome and reason by kind and test."""


def run(kinds: Iterable[str], processes: int) -> Results:
    """Run the tests of these kinds in processes of their own."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "outcomes.json"
        command = [
            sys.executable, "-m", "pytest", "--quiet", "--config-file", str(FOLDER / "pytest.ini"),
            "--numprocesses", str(processes), "--outcomes", str(path),
            *(f"{FOLDER / 'suite.py'}::Test_{kind}_" for kind in kinds),  # -k would take every name that contains one
        ]  # fmt: skip
        environment = os.environ | ENVIRONMENT  # a child's environment
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        found = json.loads(path.read_text(encoding="utf-8"))
    results = {}
    for name, result in found.items():
        _, kind, test = name.split("::")
        results[kind.removeprefix("Test_").removesuffix("_"), test] = result
    return results


def listed(known: dict[str, Any], outcome: str, kinds: Iterable[str]) -> set[tuple[str, str]]:
    """Kind and test of the entries for an outcome, "failed" or "skipped"; ``kinds`` may be "all"."""
    return {
        (kind, test)
        for entry in known.get(outcome) or []
        for kind in (KINDS if entry["kinds"] == "all" else entry["kinds"])
        for test in entry["tests"]
        if kind in kinds
    }


def surprises(results: Results, known: dict[str, Any], kinds: Iterable[str]) -> list[str]:
    """What differs from the list, a sentence each."""
    said = []
    for outcome in ("failed", "skipped"):
        expected = listed(known, outcome, kinds)
        actual = {place for place, result in results.items() if result["outcome"] == outcome}
        for kind, test in sorted(actual - expected):
            said.append(f"{kind}: {test} {outcome} and is not listed: {results[kind, test]['why'][:LONGEST_REASON]}")
        for kind, test in sorted(expected - actual):
            said.append(f"{kind}: {test} is listed as {outcome} and is not; remove it from known.yaml")
    return said


def record_of(results: Results, said: list[str], seconds: float) -> Record:
    """Counts for every kind, and each failure with its message."""
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in results):
        counts = Counter(result["outcome"] for (of, _), result in results.items() if of == kind)
        failures = {
            test: result["why"].splitlines()[0][:LONGEST_REASON]
            for (of, test), result in results.items()
            if of == kind and result["outcome"] == "failed"
        }
        rows.append(
            {"kind": kind, "failures": failures} | {name: counts[name] for name in ("passed", "failed", "skipped")}
        )
    values = {"rows": rows, "surprises": said, "missing_from_distribution": [*source.MISSING.values()]}
    config = {"transformers": version("transformers")}
    return Record(kind="transformers-suites", values=values, config=config, seconds=seconds)


def main() -> int:
    """Run, compare, and write the record; 1 if anything differs from the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, help="Folder for the record.")
    parser.add_argument("--name", default="transformers-suites", help="Name of the record.")
    chosen = parser.parse_args()
    if chosen.output is not None and set(chosen.kinds) != set(KINDS):
        parser.error("--output takes the results of all kinds, or the record would lose the others")
    source.fetch()
    started = time.perf_counter()
    results = run(chosen.kinds, chosen.processes)
    known = yaml.safe_load((FOLDER / "known.yaml").read_text(encoding="utf-8")) or {}
    said = surprises(results, known, chosen.kinds)
    record = record_of(results, said, time.perf_counter() - started)
    for row in record.values["rows"]:
        print(f"{row['kind']}: {row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped")  # noqa: T201  # its result
    print("\n".join(said))  # noqa: T201  # its result
    if chosen.output is not None:
        print(record.save(chosen.output, chosen.name))  # noqa: T201  # a script prints the path of its result
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
