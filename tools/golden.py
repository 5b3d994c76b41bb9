"""What users see, written down, so that a change of the code can be shown to leave all of it equal.

    python -m tools.golden write FOLDER [--only PART ...] [-- TESTS AND OPTIONS OF PYTEST]
    python -m tools.golden compare BEFORE AFTER

Parts: ``help`` of every command; ``sentences``, the errors of tests, of all fast ones unless others are named;
``runs``, what small runs print and write, with all digits, so only for one machine; ``records``, the form of that
without numbers. Without ``--only`` all but records.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from tools.golden_form import form_of, sections, state_of
from tools.golden_runs import RUNS, folder_of, run_all

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)
FORMS = {"runs": state_of, "records": form_of}
PARTS = ("help", "sentences", *FORMS)
FAST = ("-m", "not slow")
"""The tests whose sentences are written, unless others are named."""
ALONE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
PLAIN = {"COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
MOST = 40
"""Lines that ``compare`` shows of a section."""


def main() -> int:
    """Write or compare; 1 if something differs."""
    words = sys.argv[1:]
    own, tests = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--only", nargs="+", choices=PARTS, default=["help", "sentences", "runs"])
    writing.add_argument("--names", nargs="+", choices=RUNS, default=list(RUNS), help="which of the runs")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args(own)
    if asked.command == "write":
        write(asked.folder.resolve(), asked.only, asked.names, tests)
        return 0
    found = list(compare(asked.before, asked.after))
    CONSOLE.print("\n".join(found) or "all equal")
    return int(bool(found))


def write(folder: Path, parts: list[str], names: list[str], tests: list[str]) -> None:
    """Write the parts as files of a folder, in place of older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="golden-") as name:  # names of one length: long messages are cut
        scratch = Path(name)
        if "sentences" in parts:
            options = ["-q", "-p", "no:cacheprovider", "-p", "support.sentences", "--basetemp", str(scratch / "tests")]
            command = [sys.executable, "-m", "pytest", *options, "--sentences", str(folder / "sentences.txt")]
            surroundings = {**os.environ, **ALONE}  # noqa: TID251 – of a process
            subprocess.run([*command, *(tests or FAST)], cwd=ROOT, env=surroundings, check=False)
        os.environ.update({**ALONE, **PLAIN})  # noqa: TID251 – of libraries and processes
        if "help" in parts:
            (folder / "help.txt").write_text(helps(), encoding="utf-8")
        texts = dict.fromkeys((part for part in FORMS if part in parts), "")
        for name, printed in run_all(scratch, names) if texts else ():
            for part in texts:
                form = FORMS[part](printed, folder_of(scratch, name))
                texts[part] += f"== {name}: antiphase {RUNS[name]}\n{form}"
        for part, text in texts.items():
            (folder / f"{part}.txt").write_text(text, encoding="utf-8")


def helps() -> str:
    """The help of every command, also of groups."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from antiphase.cli import app

    whole: Any = get_command(app)
    text = ""
    paths = [[], *([name] for name in whole.commands)]
    for path in paths:  # grows by the commands of groups
        command: Any = whole.get_command(None, path[0]) if path else None
        if len(path) == 1 and hasattr(command, "commands"):
            paths += [[*path, name] for name in command.commands]
        printed = CliRunner().invoke(app, [*path, "--help"], prog_name="antiphase", env=PLAIN).output
        text += "\n".join([f"== antiphase {' '.join(path)}", *(line.rstrip() for line in printed.splitlines())]) + "\n"
    return text


def compare(before: Path, after: Path) -> Iterator[str]:
    """What differs between the files of two folders, or between two files, line by line."""
    if before.is_dir():
        for name in sorted({path.name for folder in (before, after) for path in folder.glob("*.txt")}):
            yield from compare(before / name, after / name)
        return
    if missing := [path for path in (before, after) if not path.is_file()]:
        yield f"{missing[0]} is missing"
        return
    old, new = (sections(path.read_text(encoding="utf-8")) for path in (before, after))
    for title in [*old, *(title for title in new if title not in old)]:
        if title not in new or title not in old:
            yield f"{after.name}, {'gone' if title in old else 'new'}: {title}"
        elif changes := list(difflib.unified_diff(old[title], new[title], n=0, lineterm=""))[2:]:
            yield f"{after.name}, differs: {title}"
            yield from (f"  {line}" for line in changes[:MOST] if not line.startswith("@@"))


if __name__ == "__main__":
    sys.exit(main())
