"""Tables as text of other programs: what is written can be read back, and nothing in a cell breaks the form."""

import csv
import io
import re
from dataclasses import dataclass

import pytest
import torch

from antiphase.base.tables import Column, Shown, Table

ROWS = [["a|b & <i>", 0.8125, None, [1, 2]], ['two\nlines, "λ"_1', -1234.5, 3, "50 % $x$"]]


@pytest.fixture
def table():
    columns = [Column("Name"), Column("Share", "percent"), Column("Number", "number"), Column("<b>", "text")]
    return Table(title="By name, 2", columns=columns, rows=ROWS, note="A & B.")


def test_csv_is_read_back_and_a_frame_has_the_raw_values(table):
    head, *rows = csv.reader(io.StringIO(table.to_csv()))
    assert head == ["Name", "Share", "Number", "<b>"]
    assert rows == [["a|b & <i>", "0.8125", "", "[1, 2]"], ['two\nlines, "λ"_1', "-1234.5", "3", "50 % $x$"]]
    assert table.frame()["Share"].tolist() == [0.8125, -1234.5]
    assert table.frame().to_dict("records")[1] == dict(zip(head, ROWS[1], strict=True))


def test_markdown_has_a_cell_for_each_value(table):
    lines = table.to_markdown().splitlines()
    assert [len(line) for line in lines] == [len(lines[0])] * 4
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert cells[0] == ["Name", "Share", "Number", "<b>"]
    assert [mark.strip("-") for mark in cells[1]] == ["", ":", ":", ""]
    assert cells[2:] == [["a|b & <i>", "81.2 %", "–", "[1, 2]"], ['two lines, "λ"_1', "-123450.0 %", "3", "50 % $x$"]]


def test_latex_escapes_what_it_would_obey(table):
    text = table.to_latex()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert text.startswith("% \\usepackage{booktabs}\n\\begin{tabular}{lrrl}\n\\toprule\n")
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [3] * 3
    assert r"a\textbar{}b \& \textless{}i\textgreater{}" in rows[1]
    assert r"$\lambda$" in text
    assert r"\_1" in text
    assert r"50 \% \$x\$" in text


def test_html_shows_text_of_others_as_text(table):
    page = table._repr_html_()
    assert "<i>" not in page
    assert "<th>&lt;b&gt;</th>" in page
    assert page.endswith("<p>A &amp; B.</p>")
    assert table.name == "by-name-2"
    assert str(table) == repr(table) == f"By name, 2\n\n{table.to_markdown()}\n\nA & B."


def test_a_result_prints_its_table_and_no_tensors():
    @dataclass(frozen=True)
    class Found(Shown):
        weights: torch.Tensor

        def tables(self):
            return [Table(title="Sum", columns=[Column("Sum", "number")], rows=[[float(self.weights.sum())]])] * 2

    found = Found(torch.ones(3))
    assert str(found) == repr(found) == "\n\n".join(["Sum\n\n| Sum |\n| --: |\n|   3 |"] * 2)
    assert found._repr_html_().count("<table>") == 2
