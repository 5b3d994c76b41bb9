"""What users see is what ``tests/golden`` holds: the help of every command, keys of records and names of files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.golden import RUNS, compare, helps

ROOT = Path(__file__).parents[1]
MEANT = "if this is meant: python -m tools.golden write tests/golden --only help records"
SHORT = ("convert", "perplexity", "tokenize", "estimate", "taken", "misspelt")
"""Runs that take seconds together and need no others."""


def test_help_is_the_golden_one(tmp_path):
    (tmp_path / "help.txt").write_text(helps(), encoding="utf-8")
    assert list(compare(ROOT / "tests/golden/help.txt", tmp_path / "help.txt")) == [], MEANT


@pytest.mark.slow
@pytest.mark.parametrize("names", [SHORT, None], ids=["short", "all"])
def test_records_and_files_have_the_golden_form(tmp_path, names):
    names = names or tuple(RUNS)
    command = [sys.executable, "-m", "tools.golden", "write", tmp_path, "--only", "records", "--names", *names]
    subprocess.run(command, cwd=ROOT, check=True)
    whole = re.split(r"^(?=== )", (ROOT / "tests/golden/records.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    golden = tmp_path / "golden.txt"
    golden.write_text("".join(part for part in whole if part[3:].startswith(tuple(f"{name}:" for name in names))))
    assert list(compare(golden, tmp_path / "records.txt")) == [], MEANT


def test_a_comparison_names_what_is_other_new_and_gone(tmp_path):
    for folder, help_text, record in (("before", "== a\n--x\n== b\n", "== train\nvalues.loss: #\n"),
                                      ("after", "== a\n--y\n== c\n", "== train\nvalues.losses: #\n")):  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "help.txt").write_text(help_text)
        (tmp_path / folder / "records.txt").write_text(record)
    (tmp_path / "before/sentences.txt").write_text("== test\nsays: no\n")
    found = list(compare(tmp_path / "before", tmp_path / "after"))
    assert [line.replace(str(tmp_path), "") for line in found] == [
        "help.txt, differs: a", "  ---x", "  +--y", "help.txt, gone: b", "help.txt, new: c",
        "records.txt, differs: train", "  -values.loss: #", "  +values.losses: #",
        "/after/sentences.txt is missing",
    ]  # fmt: skip
    assert list(compare(tmp_path / "before", tmp_path / "before")) == []
