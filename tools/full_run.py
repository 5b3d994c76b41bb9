"""Run everything that can be checked on one machine, and write a record: ``make full``.

    python -m tools.full_run                       # every step
    python -m tools.full_run --only mutations      # these steps again; the record keeps the others
    python -m tools.full_run --failed              # only the tests that failed, after they were mended
    python -m tools.full_run --only floors --from other-clone/records/full-run.json    # that ran there

``.ci/run`` runs a selection in minutes; this runs all tests, the kernels, the mutations of ``tests/mutations`` and the
examples. A failing step does not stop the others; it is recorded, and the exit code is 1. Each step of the record names
the revision that it ran on, and so does each repetition of tests that had failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from antiphase.base.records import Record, environment
from antiphase.ops.native import build

ROOT = Path(__file__).parent.parent
RECORDS = "records"
PYTEST = [sys.executable, "-m", "pytest", "--numprocesses", "auto", "--maxprocesses", "8", "--dist", "worksteal"]
ROOMS = (
    "attack", "attention", "base", "benchmarks", "calibration", "cli", "experiments", "lab/lineage", "lab/measures",
    "lab/pages", "lab/scoring", "lab/settings", "lab/speed", "lab/statistics", "lab/studies", "lab/text",
    "lab/training", "layers", "models", "ops", "zoo",
)  # fmt: skip
TESTS = {
    "tests: the project": ([str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_*.py")], {}),
    **{f"tests: {room}": ([f"tests/{room}", "--ignore", "tests/ops/triton"], {}) for room in ROOMS},
    "GPU kernels, interpreted": (["tests/ops/triton"], {"TRITON_INTERPRET": "1"}),
}
"""A step a folder of tests: what a change touches can be renewed alone."""
ATTACKS = ("kills", "torchrun", "faults", "inputs")
"""Parts of tests/attack/campaign.py; the first two take half an hour and more than one."""
OFFLINE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> int:
    """Run the steps, print their results, write records/full-run.json."""
    every = all_steps()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(every), metavar="STEP", help=f"among {', '.join(every)}")
    parser.add_argument("--failed", action="store_true", help="run again the tests that failed in the record's steps")
    parser.add_argument("--from", dest="source", type=Path, metavar="RECORD", help="take the steps from another record")
    given = parser.parse_args()
    chosen = given.only or list(every)
    kept = {}
    if (given.failed or len(chosen) < len(every)) and (ROOT / RECORDS / "full-run.json").is_file():
        kept = {step["step"]: step for step in Record.load(ROOT / RECORDS / "full-run.json").values["steps"]}
    if given.source is not None:
        there = {step["step"]: step for step in Record.load(given.source).values["steps"]}
        if absent := [name for name in chosen if name not in there]:
            parser.error(f"--from {given.source} has no step {absent[0]!r}")
        fresh = {name: there[name] for name in chosen}
    elif given.failed:
        failed = [name for name in TESTS if name in chosen and kept.get(name, {}).get("failed")]
        fresh = {name: attempted(name, partial(again, kept[name]), kept[name]) for name in failed}
    else:
        fresh = {name: every[name]() | {"revision": environment()["revision"]} for name in chosen}
    steps = [(kept | fresh)[name] for name in every if name in kept | fresh]
    record = Record(kind="full-run", values={"steps": steps}, seconds=sum(step["seconds"] for step in steps))
    print(record.save(ROOT / RECORDS, "full-run"))  # noqa: T201  # a script prints the path of its result
    return int(any(step["status"] for step in steps))


def all_steps() -> dict[str, partial[dict[str, Any]]]:
    """What runs each step, by name."""
    tests = {name: partial(counted, words=words, extra=extra) for name, (words, extra) in TESTS.items()}
    steps = {name: partial(attempted, name, step) for name, step in (tests | SANITIZERS).items()}
    steps["mutations"] = partial(run, "mutations", [sys.executable, str(ROOT / "tests/mutations/run.py")], {})
    scripts = {
        "transformers' own tests": ["tests/suites/run.py", "--output", RECORDS],
        "zoo": ["tests/zoo/run.py", "--output", RECORDS],
        **{name: ["tools/environments.py", name] for name in ("floors", "newest", "companions")},
        "vLLM": ["tools/served.py"],
    }
    for part in ATTACKS:
        scripts[f"attack: {part}"] = ["tests/attack/campaign.py", "--only", part, "--output", RECORDS]
    for example in sorted((ROOT / "examples").glob("*.py")):
        scripts[f"examples/{example.name}"] = [f"examples/{example.name}"]
    for name, (script, *words) in scripts.items():
        steps[name] = partial(run, name, [sys.executable, str(ROOT / script), *words], {})
    return steps


def run(name: str, command: list[str], extra: dict[str, str]) -> dict[str, Any]:
    """Run one step; its name, exit status and seconds. Its output goes to the terminal."""
    print(f"\n== {name}", flush=True)  # noqa: T201  # progress
    started = time.perf_counter()
    variables = os.environ | OFFLINE | extra  # noqa: TID251  # a child's environment
    status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
    return {"step": name, "status": status, "seconds": time.perf_counter() - started}


def counted(name: str, words: list[str], extra: dict[str, str]) -> dict[str, Any]:
    """Run a step of pytest; adds the numbers of tests run and skipped, the reasons of skips, the names of failures."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        return run(name, [*PYTEST, *words, f"--junitxml={path}"], extra) | outcomes(path)


def again(step: dict[str, Any], name: str) -> dict[str, Any]:
    """A step whose failed tests were run once more; what it was before stays in it."""
    repeated = counted(name, [node_of(failed) for failed in step["failed"]], TESTS[name][1])
    repeated |= {"revision": environment()["revision"], "repeated": step["failed"]}
    has_ended = repeated["status"] in (0, 1)  # else pytest did not run them all: one has another name, or no import
    return step | {
        "status": repeated["status"], "failed": repeated["failed"] if has_ended else step["failed"],
        "seconds": step["seconds"] + repeated["seconds"], "repetitions": [*step.get("repetitions", []), repeated],
    }  # fmt: skip


def node_of(test: str) -> str:
    """What pytest calls a test that its XML file calls ``folder.file.Class::name``."""
    place, name = test.split("::", 1)
    if not place:  # a file that could not be imported
        return f"{name.replace('.', '/')}.py"
    words = place.split(".")
    files = (end for end in range(len(words), 0, -1) if (ROOT / Path(*words[:end])).with_suffix(".py").is_file())
    file = next(files, len(words))  # one that was moved is not found by pytest either
    return "::".join([f"{'/'.join(words[:file])}.py", *words[file:], name])


def outcomes(path: Path) -> dict[str, Any]:
    """What pytest's XML file says: numbers of tests run and skipped, skips by their reason, names of failures."""
    suite = ElementTree.parse(path).getroot()[0]
    cases = suite.findall("testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return {
        "tests": int(suite.attrib["tests"]),
        "skipped": int(suite.attrib["skipped"]),
        "skips": dict(Counter(skip.attrib["message"] for case in cases for skip in case.findall("skipped"))),
        "failed": [f"{case.attrib['classname']}::{case.attrib['name']}" for case in failed],
    }


def attempted(name: str, step: Callable[[str], dict[str, Any]], before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a step that needs a compiler, or pytest to end with results; else it is as ``before``, or failed, and why."""
    try:
        return step(name)
    except (build.BuildError, subprocess.CalledProcessError, OSError, ElementTree.ParseError) as error:
        print(f"\n== {name}: {error}", flush=True)  # noqa: T201  # progress
        return before or {"step": name, "status": 1, "seconds": 0.0, "why": str(error)}


def sanitized(name: str) -> dict[str, Any]:
    """The tests of the native kernels with a library that stops at invalid addresses and undefined arithmetic.

    GCC is asked for the paths of the sanitizers' libraries.
    """
    libraries = [
        subprocess.run(["g++", f"-print-file-name={file}"], capture_output=True, text=True, check=True).stdout.strip()
        for file in ("libasan.so", "libubsan.so")
    ]
    with TemporaryDirectory() as folder:
        library = build.build(Path(folder) / build.LIBRARY, extra=build.SANITIZED)
        # Python itself leaks on purpose; the interpreter needs the sanitizers before its first allocation
        extra = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}
        files = [f"tests/ops/native/{file}.py" for file in ("test_kernels", "test_layer", "test_layer_calls")]
        words = [*files, "tests/ops/test_strange_calls.py", "-m", "not slow", f"--native-library={library}"]
        return counted(name, words, extra)


def threads_sanitized(name: str) -> dict[str, Any]:
    """The kernels' own threads, without Python, under the thread sanitizer."""
    flags = [*build.EMULATED, "-fsanitize=thread", "-O1", "-g"]
    with TemporaryDirectory() as folder:
        library, program = build.build(Path(folder) / build.LIBRARY, extra=tuple(flags)), Path(folder) / "threads"
        source = ROOT / "tests/ops/native/threads.cpp"
        command = ["g++", "-std=c++20", *flags, f"-I{build.SOURCE}", str(source), str(library), "-o", str(program)]
        subprocess.run([*command, f"-Wl,-rpath,{folder}"], check=True)
        return run(name, [str(program)], {"TSAN_OPTIONS": "halt_on_error=1"})


SANITIZERS = {
    "native kernels, address and undefined-behaviour sanitizers": sanitized,
    "native kernels, thread sanitizer": threads_sanitized,
}


if __name__ == "__main__":
    sys.exit(main())
