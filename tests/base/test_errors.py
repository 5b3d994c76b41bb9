"""Errors as data: their parts, the sentence that they are, and the names of fields where it is shown."""

import ast
import pickle
import re
from pathlib import Path

import pytest

import antiphase
from antiphase.base.errors import InputError, named, naming_fields, renamed, within, worded
from antiphase.base.files import read_json
from antiphase.calibration.plan import CalibrationPlan
from antiphase.cli.naming import flag_of

WINGS = ("ops", "layers", "models", "attention", "calibration", "base")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("nothing fits"), "nothing fits"),
        (InputError("too long", "shorten it", field="text_field"), "text_field: too long; shorten it"),
        (InputError("no file", path="a b.txt", field="data"), "data a b.txt: no file"),
        (InputError(", line 3: no", path=Path("d.csv"), field="data"), "data d.csv, line 3: no"),
        (InputError(" exists", "go", path="out", field="output"), "output out exists; go"),
        (InputError("there is none", path="", field="model"), "model : there is none"),
        (InputError("it is broken", path="r.json"), "r.json: it is broken"),
        (InputError(" must be 1", field="training.steps"), "training.steps must be 1"),
        (InputError("is no number", field=".needles"), "needles: is no number"),
        (InputError(f"{named('data', 'x')}, line 2: no"), "data x, line 2: no"),
        (InputError(f"{named('', 'x')} is no record"), "x is no record"),
    ],
)
def test_an_error_is_one_sentence(error, sentence):
    assert str(error) == sentence
    assert repr(error) == f"InputError({sentence!r})"


def test_the_parts_are_data_however_they_were_given():
    marked = InputError(f"{named('text_field', 'b.csv')}: see {named('data')}", f"add {named('resume')}")
    given = InputError(f"see {named('data')}", f"add {named('resume')}", field="text_field", path="b.csv")
    for error in (marked, given):
        assert (error.field, error.path) == ("text_field", "b.csv")
        assert (error.problem, error.remedy) == ("see data", "add resume")
    assert str(marked) == str(given) == "text_field b.csv: see data; add resume"


def test_every_field_of_a_sentence_follows_the_naming_and_nothing_else_does():
    text = f"data: not {named('training.start_from')}, but {named('source')} or {named('settings')} data.seed=1"
    error = InputError(text, f"add {named('resume')}", field="text_field", path="text_field")
    with naming_fields(flag_of):
        said = "--text-field text_field: data: not training.start_from, but SOURCE or --set data.seed=1; add --resume"
        assert str(error) == said
        assert error.remedy == "add --resume"
        assert worded(named("model", "m")) == "MODEL m"
    assert str(error).startswith("text_field text_field: data: not training.start_from, but source or settings data")


def test_the_naming_ends_with_an_error():
    with pytest.raises(InputError), naming_fields(flag_of):
        raise InputError("no", field="data")
    assert str(InputError("no", field="data")) == "data: no"


@pytest.mark.parametrize("name", ["a: b; c, d.txt", "{x}%s\\1", "中文 😀", "\udcff", "\ufdd0", "\ufdd0data\ufdd1"])
def test_strange_letters_are_no_field(name):
    error = InputError(f"it holds {name!r}", f"see {named('data')}", field="data", path=name)
    with naming_fields(flag_of):
        assert str(error) == f"--data {name}: it holds {name!r}; see --data"
        assert str(InputError(f"{named('data', name)}: no")) == f"--data {re.sub('[﷐﷑]', chr(0xFFFD), name)}: no"
    assert error.path == name


def test_an_error_crosses_processes_with_its_parts():
    error = InputError(f"see {named('data')}", f"add {named('resume')}", field="output", path="o")
    error.rename({"output": "target", "data": "model"})
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is InputError
    assert (back.field, back.path, str(back)) == ("target", "o", "target o: see model; add resume")
    with naming_fields(flag_of):
        assert str(back) == str(error) == "TARGET o: see MODEL; add --resume"


def test_fields_get_the_names_under_which_they_were_given():
    with pytest.raises(InputError) as caught, renamed({"source": "training.start_from"}):
        raise InputError(f"source differs from {named('source', 'b')}", field="source", path="source")
    assert str(caught.value) == "training.start_from source: source differs from training.start_from b"


def test_an_error_within_a_file_keeps_its_fields(tmp_path):
    with pytest.raises(InputError) as caught, within("task", "t.yaml"):
        read_json(tmp_path / "a.json", "data", f"add {named('resume')}")
    assert (caught.value.field, caught.value.path) == ("task", "t.yaml")
    with naming_fields(flag_of):
        said = f"--task t.yaml: --data {tmp_path / 'a.json'}: there is no such file; add --resume"
        assert str(caught.value) == said


def test_a_plan_that_is_missing_is_named_in_python():
    with pytest.raises(antiphase.InputError, match=r"^plan nowhere: there is no such file; give a plan ") as caught:
        CalibrationPlan.load("nowhere")
    assert caught.value.path == "nowhere"


def texts_with_flags(path):
    """Constants of a module that name a flag; arguments of git, whose flags they are, are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List) and node.elts]
    of_git = {id(item) for one in lists if getattr(one.elts[0], "value", "") == "git" for item in one.elts}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in of_git]
    return [f"{path}:{one.lineno}" for one in constants if re.search(r"(?<![\w-])--[a-z]", str(one.value))]


def test_the_library_names_no_flag(tmp_path):
    package = Path(antiphase.__file__).parent
    modules = [path for wing in WINGS for path in (package / wing).rglob("*.py")]
    assert len(modules) > 100
    assert [place for path in modules for place in texts_with_flags(path)] == []
    (tmp_path / "a.py").write_text('"""See ``--data``."""\nx = f"{y} --resume"\nrun(["git", "--dirty"])\n"a --- b"\n')
    assert [place.rpartition(":")[2] for place in texts_with_flags(tmp_path / "a.py")] == ["1", "2"]


def fields_in(path):
    """Fields that a module gives by their names, as ``field=`` or to ``named``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            given = [one.value for one in node.keywords if one.arg == "field"]
            given += node.args[:1] if getattr(node.func, "id", "") == "named" else []
            yield from (one.value for one in given if isinstance(one, ast.Constant))


def words_of(command):
    """The flags and arguments of a command and of those below it."""
    found = {word.removesuffix("...") for one in command.params for word in (*one.opts, one.metavar or "")}
    return found.union(*(words_of(command.get_command(None, name)) for name in getattr(command, "commands", ())))


def test_the_command_line_has_every_field_that_errors_name():
    from typer.main import get_command

    from antiphase.cli import app

    package = Path(antiphase.__file__).parent
    fields = {field for path in package.rglob("*.py") for field in fields_in(path) if field and "." not in field}
    assert {"output", "model", "start_from", "resume"} <= fields
    assert {flag_of(field) for field in fields} - words_of(get_command(app)) == set()
