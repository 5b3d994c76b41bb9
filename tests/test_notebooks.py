"""The notebooks run from their first cell to their last, and are stored with what their cells show, small."""

import ast
import json
import re
from pathlib import Path

import matplotlib
import pytest

FILES = {path.stem: path for path in (Path(__file__).parent.parent / "examples").glob("*.ipynb")}


def code_of(name):
    cells = json.loads(FILES[name].read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", ["see", "train", "calibrate"])
def test_it_is_stored_as_it_ran_and_small(name):
    code = code_of(name)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert FILES[name].stat().st_size < 150_000


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a notebook with few steps: its names, the results that its cells show, and what it prints."""

    def run(name):
        names, shown = {"__name__": "__main__"}, []
        for number, cell in enumerate(code_of(name)):
            text = re.sub(r"^STEPS = \d+ ", "STEPS = 20 ", "".join(cell["source"]), flags=re.MULTILINE)
            tree = ast.parse(text)
            is_shown = isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";")
            last = ast.Expression(tree.body.pop().value) if is_shown else None
            exec(compile(tree, f"cell {number}", "exec"), names)
            if last is not None:
                shown.append(eval(compile(last, f"cell {number}", "eval"), names))  # noqa: S307 – the same
        assert names["STEPS"] == 20
        return names, [one for one in shown if one is not None], capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context({"backend": "agg"}):
        yield run


@pytest.mark.slow
def test_seeing(run):
    names, (page, grid, statistics), printed = run("see")
    assert "differential" in page._repr_html_()
    assert grid._repr_png_().startswith(b"\x89PNG")
    assert "On the first token" in statistics._repr_html_()
    assert len(names["row"][0]) == 3  # a differential head's two maps and their difference
    assert (names["maps"][0].sum(-1) < 0.99).any()  # the second map is subtracted
    assert printed.count("of its attention to n40") == 4
    assert names["page"].is_file()


@pytest.mark.slow
def test_training(run):
    names, (result, frame, figure), printed = run("train")
    assert "differential" in result._repr_html_()
    assert set(frame["Arm"]) == {"softmax", "differential"}
    assert figure._repr_png_().startswith(b"\x89PNG")  # in a notebook, where nothing else draws it
    assert all(path.is_file() for path in names["files"])
    assert re.search(r"^softmax: .*\ndifferential: ", printed, re.MULTILINE)


@pytest.mark.slow
def test_calibrating(run):
    names, (statistics,), printed = run("calibrate")
    assert "On sinks" in statistics._repr_html_()
    assert not names["after"].equal(names["before"])
    assert "the model is as before: True" in printed
    assert "gain on samples that did not choose" in printed
