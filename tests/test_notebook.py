"""The notebook runs from its first cell to its last, and what its cells show can be shown."""

import ast
import json
from pathlib import Path

import matplotlib
import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples/noise.ipynb"


def cells(kind):
    tree = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in tree["cells"] if cell["cell_type"] == kind]


def test_it_is_stored_without_outputs():
    tree = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert tree["nbformat"] == 4
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in tree["cells"])
    assert cells("markdown")[0].startswith("# ")


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    shown = []
    with matplotlib.rc_context({"backend": "agg"}):
        for number, text in enumerate(cells("code")):
            text = text.replace("STEPS = 300 ", "STEPS = 20 ")
            tree = ast.parse(text)
            is_shown = isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";")
            last = ast.Expression(tree.body.pop().value) if is_shown else None
            exec(compile(tree, f"cell {number}", "exec"), names)
            if last is not None:
                shown.append(eval(compile(last, f"cell {number}", "eval"), names))  # noqa: S307 – the same
    printed = capsys.readouterr().out
    assert names["STEPS"] == 20
    assert printed.count("of the attention goes to sinks") == len(names["statistics"].sink_share)
    assert "gain on samples that did not choose" in printed
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert any("differential" in page for page in pages)
    assert (names["signed"][0].sum(-1) < 0.99).all()  # the second map is subtracted
