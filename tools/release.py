"""Use the wheel, the source distribution and the README's line, each in an empty environment: ``make release``.

    python -m tools.release

The environments lie outside the repository and get the tested versions of ``constraints.txt``; the README's line runs
in a clone and takes what is newest. There, on one core, the
shortest form of the demo is trained, and one of its models is looked at (``antiphase look``) and measured (``antiphase
evaluate``). The record, ``records/release.json``, has sizes and seconds, by the clock and of the processor.
``antiphase.__version__`` is the one source of the version; before anything is built, changelog and citation must agree.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import antiphase
from antiphase.base.errors import InputError
from antiphase.base.records import Record

CONSOLE = Console(highlight=False)
ROOT = Path(__file__).resolve().parent.parent
SHORTEST = (
    "compare", "--preset", "demo", "--seeds", "0", "--set", "training.steps=20", "--set", "evaluation.samples=20",
    "--set", "evaluation.curve_samples=20", "--output", "demo",
)  # fmt: skip
MODEL = "demo/differential-seed0"
LOOK = ("look", MODEL, "--text", "w1 key1 w2 w3 key2 w4", "--output", "look")
EVALUATE = ("evaluate", "needles", MODEL, "--samples", "5", "--output", "needles")
LONGEST_TO_PICTURE = 180.0
"""Seconds of one core from ``pip install`` to the first page with attention maps."""
LONGEST_IMPORT = 0.1
"""Seconds of ``import antiphase``."""
IMPORTS = 9
"""How often the import is timed; the median counts."""
IMPORT = (
    "import sys, time; start = time.perf_counter(); import antiphase; seconds = time.perf_counter() - start; "
    "from importlib.metadata import version; print(seconds, antiphase.__version__, version('antiphase'), "
    "antiphase.__file__)"
)


def main() -> int:
    """Check, build, try both, write the record; 1 if a limit is exceeded."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    version, state = agreed_version()
    one_core()
    started = time.perf_counter()
    values: dict[str, Any] = {"version": version, "changelog": state, "load": os.getloadavg()[0], "installed": {}}
    with tempfile.TemporaryDirectory(prefix="antiphase-release-") as scratch:
        built = build(Path(scratch) / "dist")
        values["bytes"] = {path.name: path.stat().st_size for path in built}
        for path in built:
            name = "wheel" if path.suffix == ".whl" else "source distribution"
            line = ("install", "--constraint", str(ROOT / "constraints.txt"), str(path))
            values["installed"][name] = tried(line, Path(scratch) / name.replace(" ", "-"), version)
        clone = Path(scratch) / "clone"
        subprocess.run(("git", "clone", "--quiet", str(ROOT), str(clone)), check=True)
        values["installed"]["README"] = tried(readme_line(), Path(scratch) / "readme", version, place=clone)
    said = exceeded(values["installed"])
    values |= {"longest_to_picture": LONGEST_TO_PICTURE, "longest_import": LONGEST_IMPORT, "exceeded": said}
    record = Record(kind="release", values=values, seconds=time.perf_counter() - started)
    CONSOLE.print("\n".join(said) or "within all limits")
    CONSOLE.print(str(record.save(ROOT / "records", "release")))
    return int(bool(said))


def agreed_version() -> tuple[str, str]:
    """The version, and the date of its release in the changelog, or "Unreleased".

    Raises:
        InputError: changelog or citation has another version or date; the message names the file.
    """
    version = antiphase.__version__
    heading = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or heading[1] != version:
        found = "none" if heading is None else heading[1]
        raise InputError(f"CHANGELOG.md: its newest section must be [{version}], as antiphase.__version__; got {found}")
    if not re.fullmatch(r"Unreleased|\d{4}-\d\d-\d\d", heading[2]):
        raise InputError(f"CHANGELOG.md: the date of [{version}] must be YYYY-MM-DD or Unreleased, got {heading[2]!r}")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(version|date-released): [\"']?([^\"'\s]+)", citation, re.MULTILINE))
    expected = {"version": version} | ({} if heading[2] == "Unreleased" else {"date-released": heading[2]})
    if fields != expected:
        raise InputError(f"CITATION.cff: expected {expected}, as in antiphase.__version__ and changelog; got {fields}")
    return version, heading[2]


def one_core() -> None:
    """Run this process and its children on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def build(folder: Path) -> list[Path]:
    """The wheel and the source distribution."""
    for target in ("wheel", "sdist"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True)
    return [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]


def readme_line() -> tuple[str, ...]:
    """What pip is told by the first line of the README that installs."""
    rows = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return tuple(shlex.split(next(row for row in rows if row.startswith("pip install"))))[1:]


def tried(line: tuple[str, ...], folder: Path, version: str, *, place: Path | None = None) -> dict[str, Any]:
    """Install by a line for pip, given in a folder, and use it; wall-clock and processor seconds of every step."""
    folder.mkdir()
    python = folder / "environment/bin/python"
    pip = (str(python), "-m", "pip", "--quiet")
    program = str(python.parent / "antiphase")
    steps = {
        "environment": (sys.executable, "-m", "venv", str(folder / "environment")),
        "torch": (*pip, "install", pinned("torch")),  # first and at the tested version: else it may be a build for GPUs
        "package": (*pip, *line),
        "demo": (program, *SHORTEST),
        "look": (program, *LOOK),
        "evaluate": (program, *EVALUATE),
    }
    seconds: dict[str, dict[str, float]] = {}
    for name, command in steps.items():
        CONSOLE.print(f"\n== {folder.name}: {name}")
        seconds[name] = timed(command, place if place and name == "package" else folder)
    for path in ("demo/record.json", "demo/report.html", "look/report.html", "needles/record.json"):
        if not (folder / path).is_file():
            raise RuntimeError(f"{folder.name}: {path} was not written")
    found = {"seconds": seconds, "import_seconds": import_seconds(python, folder, version)}
    to_picture = [seconds[name] for name in ("torch", "package", "demo", "look")]
    found["to_picture"] = {kind: sum(step[kind] for step in to_picture) for kind in ("wall", "processor")}
    found["bytes"] = sum(path.stat().st_size for path in (folder / "environment").rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return found


def pinned(name: str) -> str:
    """The line of constraints.txt for a package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def timed(command: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Run a command in a folder; seconds by the clock, and of the processor, which other work does not lengthen."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, env=bare_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - started, "processor": used}


def bare_environment() -> dict[str, str]:
    """The environment without Python's own variables, which could lead to this checkout."""
    mine = os.environ.items()  # noqa: TID251  # a child's environment
    return {name: value for name, value in mine if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"}


def import_seconds(python: Path, folder: Path, version: str) -> float:
    """The median time of ``import antiphase``, which must come from the environment and have the version."""
    times = []
    for _ in range(IMPORTS):
        command = [str(python), "-I", "-c", IMPORT]
        done = subprocess.run(command, cwd=folder, env=bare_environment(), capture_output=True, text=True, check=True)
        seconds, public, installed, place = done.stdout.split(maxsplit=3)
        if (public, installed) != (version, version) or not place.startswith(str(folder)):
            raise RuntimeError(f"expected {version} in {folder}, got {public} (metadata: {installed}) from {place}")
        times.append(float(seconds))
    return sorted(times)[IMPORTS // 2]


def exceeded(installed: dict[str, dict[str, Any]]) -> list[str]:
    """What took longer than it may, a sentence each; the way to the picture is judged for the wheel."""
    said = []
    used = installed["wheel"]["to_picture"]["processor"]
    if used > LONGEST_TO_PICTURE:
        said.append(f"wheel: {used:.0f} s of one core to the first picture; {LONGEST_TO_PICTURE:.0f} s are allowed")
    for name, found in installed.items():
        if found["import_seconds"] > LONGEST_IMPORT:
            said.append(f"{name}: importing takes {found['import_seconds']:.3f} s; {LONGEST_IMPORT} s are allowed")
    return said


if __name__ == "__main__":
    sys.exit(main())
