"""What strangers' names and tokens, narrow terminals and old encodings do to what is printed."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from antiphase import cli
from antiphase.base.errors import CONTROLS, InputError, visible
from antiphase.base.records import PAGE, Record
from antiphase.cli.console import make_console
from antiphase.cli.terminal import print_json
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.pages.terminal import drawn_parts

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b]0;owned\x07b\x9b2Jc\u202ed"
SHOWN = r"a\x1b]0;owned\x07b\x9b2Jc\u202ed"
TABLE = Table(
    title="Tokens", columns=[Column("Token", "text"), Column("Share", "percent")], rows=[[HOSTILE, 0.5], ["the", 0.25]]
)


@pytest.fixture
def printed(monkeypatch):
    """``printed(encoding, width)``: standard output of that kind, and what was written to it."""

    def make(encoding="utf-8", width=80):
        written = io.BytesIO()
        stream = io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace", write_through=True)
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        return lambda: written.getvalue().decode(encoding)

    return make


def test_control_characters_are_shown_and_not_sent(printed):
    found = printed()
    console = make_console()
    console.print(f"written: {HOSTILE}", highlight=False)
    for part in drawn_parts(TABLE, console.width):
        console.print(part)
    assert not CONTROLS.search(found())
    lines = found().splitlines()
    assert lines[0] == "written: " + SHOWN.replace(r"\x07", "")  # rich drops the bell from text
    (row,) = (line for line in lines[1:] if SHOWN in line)
    (plain,) = (line for line in lines[1:] if "the " in line)
    assert len(row.rstrip()) == len(plain.rstrip())  # its width was measured as it is shown


def test_an_error_shows_them_too(monkeypatch, capsys):
    def fail(**options):
        raise InputError(f"--task {HOSTILE}: unknown")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == f"antiphase: --task {SHOWN}: unknown\n"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_json_means_the_same_in_every_encoding(printed, encoding):
    found = printed(encoding)
    values = {"token": HOSTILE, "λ": "é 中 😀 \t\n\x7f"}
    print_json(json.dumps(values, ensure_ascii=False, indent=1))
    assert json.loads(found()) == values
    assert not CONTROLS.search(found())


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_letters_that_an_encoding_lacks_are_written_as_escapes(monkeypatch, tmp_path, encoding):
    """The page is written after the table; an error there would lose it."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    Record(kind="x", values={"a": 1}).save(tmp_path)
    monkeypatch.setattr("sys.argv", ["antiphase", "report", str(tmp_path), "--output", str(tmp_path / "λ.html")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    assert (tmp_path / "λ.html").is_file()
    assert re.sub(r"\s", "", written.getvalue().decode(encoding)).endswith(r"\u03bb.html")


@pytest.mark.parametrize("width", [1, 2, 3, 10])
def test_a_terminal_of_a_few_columns(printed, width):
    found = printed(width=width)
    console = make_console()
    wide = Table(
        title="Wide",
        columns=[Column(f"Column {n}", "text") for n in range(9)],
        rows=[[f"cell {n}" for n in range(9)]] * 2,
    )
    for table in (TABLE, wide):
        for part in drawn_parts(table, console.width):
            console.print(part)
    console.rule("a heading")
    assert "Tokens" in found()


def test_letters_of_all_scripts_stay_as_they_are():
    assert visible("é中😀 नमस्ते ไทย \u200d\u00a0\u3000\t\n") == "é中😀 नमस्ते ไทย \u200d\u00a0\u3000\t\n"


@pytest.mark.slow
@pytest.mark.parametrize("variables", [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "1"},
    {"PYTHONIOENCODING": "ascii", "COLUMNS": "2"},
    {"PYTHONIOENCODING": "latin-1:strict", "COLUMNS": "3"},
], ids=["C", "ascii", "latin-1"])  # fmt: skip
def test_a_command_writes_record_and_page_under_any_locale(tmp_path, tiny_model, text_tokenizer, variables):
    tiny_model("softmax", vocab_size=len(text_tokenizer)).save_pretrained(tmp_path / "model")
    text_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("größe “naïve” 中文 → " * 40, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "antiphase", "probe", "model", "--data", "text.txt", "--length", "32", "--output", "o"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Record.load(tmp_path / "o").kind == "probe"
    assert "</html>" in (tmp_path / "o" / PAGE).read_text(encoding="utf-8")
