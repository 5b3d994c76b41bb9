"""Measurements that have a folder: found by it, complete, and what they share (flags, commands, typed results)."""

import inspect
import math
import subprocess
import sys
import typing
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from antiphase import cli
from antiphase.base.errors import InputError
from antiphase.base.records import Record, finite
from antiphase.cli.commands import command_of
from antiphase.lab.catalog import every, measurement_of, measurements
from antiphase.lab.measures.inputs import inputs_of
from antiphase.lab.measures.long_context import LongContext, LossAt
from antiphase.lab.measures.perplexity.measure import held_out_perplexity
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.running import evaluate
from antiphase.lab.pages import figures, html, summary
from antiphase.lab.settings.flags import Settings, argument, flag, flags_of
from antiphase.lab.studies.plan import Plan
from antiphase.lab.text.streams import Batch
from support.paths import ROOT

RECORDS = ROOT / "records"
FOLDERS = every()
each = pytest.mark.parametrize("measurement", FOLDERS, ids=lambda one: one.kind)


@each
def test_a_folder_is_whole(measurement):
    own = measurement.settings
    assert issubclass(own, Settings)
    assert own.__doc__.startswith(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    assert f"antiphase {measurement.command} " in own.__doc__, "the help has an example"
    for field in fields(own):
        assert field.metadata["flag"].help.endswith("."), field.name
    words = {name for name, value in vars(own).items() if name[0] != "_" and isinstance(value, (str, dict))}
    assert words <= {*vars(Settings), *flags_of(own)}, "nobody reads it"
    shown = measurement.presentation
    assert callable(shown.introduction) or shown.introduction.endswith(".")
    for drawing in shown.figures.values():
        assert drawing.title
        for words in (drawing.caption, drawing.alternative):
            assert callable(words) or words.endswith(".")
    if measurement.parent == "antiphase.lab.studies" and measurement.name != "estimate":  # which trains nothing
        assert typing.get_type_hints(measurement.measure.plan)["return"] is Plan
        return
    if measurement.parent != "antiphase.lab.measures":
        assert typing.get_type_hints(measurement.run)["return"] is Record
        return
    if measurement.name == "look":  # its result are maps, which are arrays of the record
        assert typing.get_type_hints(measurement.measure.evaluate)["return"] is Record
        return
    assert issubclass(measurement.result, Result)
    assert measurement.result.measurement() == measurement == measurement_of(measurement.kind)
    module = measurement.measure
    own = [one for one in vars(module).values() if inspect.isfunction(one) and one.__module__ == module.__name__]
    scripts = [one for one in own if one.__name__[0] != "_" and one.__name__ != "measure"]
    assert measurement.result in [typing.get_type_hints(one)["return"] for one in scripts], "none for scripts"
    if not hasattr(module, "evaluate"):
        assert typing.get_type_hints(module.measure)["return"] is measurement.result
        assert module.contents
        assert module.prepare
    else:
        assert typing.get_type_hints(module.evaluate)["return"] is Record


@pytest.mark.parametrize("measurement", measurements("antiphase.lab.measures").values(), ids=lambda one: one.kind)
def test_other_records_have_nothing_of_it(measurement):
    record = Record(kind="train", values={"rows": []})
    assert [table for table in measurement.presentation.tables(record) if table is not None] == []
    assert [name for name, one in measurement.presentation.figures.items() if one.draw(record) is not None] == []


def test_records_without_a_folder_are_found_to_have_none():
    assert measurement_of("benchmark-model") is None


@pytest.mark.essential
@pytest.mark.slow
def test_the_committed_records_are_what_their_types_say():
    """Read and written again they have the values that they had."""
    seen = set()
    for path, record, measurement in measured_records():
        seen.add(measurement.name)
        again = finite(measurement.result.read(record))
        assert_holds(again, record.values, str(path))
        assert summary.main_tables(record)
    assert seen >= {"long-context", "outliers", "quantization", "cancellation", "many-shot", "needles", "allocation",
                    "search", "study", "tune", "scaling", "reproduce", "dependency", "gradients",
                    "throughput", "classify", "translate"}  # fmt: skip


@pytest.mark.slow
def test_all_figures_of_the_committed_records_are_drawn():
    for path, record, measurement in measured_records():
        without_arrays = {"translation-alignment"} if not record.arrays else set()
        drawn = figures.figures_of(record).keys()
        assert drawn >= measurement.presentation.figures.keys() - without_arrays, path


def measured_records():
    """Each committed record that a command with a folder of its own has written: its path, the record, the folder."""
    for path in sorted(RECORDS.rglob("*.json")):
        if path.is_relative_to(RECORDS / "evidence") or path.is_relative_to(RECORDS / "real-model/unfinished"):
            continue  # small records of training runs, in a form of their own, and journals
        if path.stem.endswith("-claims") or path.name == "claim.json":
            continue
        record = Record.load(path)
        measurement = measurement_of(record.kind)
        if measurement is not None and record.kind.startswith(
            ("evaluate-", "calibrate-", "study-", "tune", "scaling", "reproduce", "classify", "translate")
        ):
            yield path, record, measurement


def assert_holds(found, values, where):
    """Everything that is in ``found`` is in ``values``, but for what is None or empty."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name in values:
                assert_holds(value, values[name], f"{where} {name}")
            else:
                assert value in (None, [], {}), f"{where} {name}"
    elif isinstance(found, list):
        assert len(found) == len(values), where
        for index, (one, other) in enumerate(zip(found, values, strict=True)):
            assert_holds(one, other, f"{where} {index}")
    else:
        assert found == values, where


def test_a_record_of_other_values_is_refused_by_name():
    with pytest.raises(InputError, match=r"missing key 'curve\[0\].loss'"):
        LongContext.read(Record(kind="evaluate-long-context",
                                values={"windows": 1, "length": 9, "curve": [{"position": 3}]}))  # fmt: skip


def test_a_result_shows_itself_in_a_notebook(tiny_model):
    import torch

    ids = torch.randint(1, 61, (2, 20))
    found = held_out_perplexity(tiny_model("softmax"), Batch(ids, ids))
    assert f"{found.rows[0].loss:.3f} |" in repr(found)
    page = found._repr_html_()
    assert f"{found.rows[0].loss:.3f}" in page
    assert "<img" not in page
    curve = LongContext(windows=2, length=32, curve=[LossAt(16, 3.25, [3.0, 3.5]), LossAt(32, 3.0, [2.5, 3.5])])
    page = curve._repr_html_()
    assert page.count('<img src="data:image/png;base64,') == 1
    assert "3.250" in page
    assert asdict(curve) == asdict(LongContext.read(curve.record()))
    assert html.fragment(Record(kind="odd", values={"a": "<b>"})).count("&lt;b&gt;") == 1


def test_the_command_line_knows_them_without_the_heavy_libraries():
    code = (
        "import sys, antiphase.cli\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'scipy'} & sys.modules.keys(), "
        "{'torch', 'transformers', 'matplotlib', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@each
def test_help_names_every_flag(measurement):
    found = CliRunner().invoke(cli.app, [*measurement.command.split(), "--help"], terminal_width=200)
    assert found.exit_code == 0
    for own in flags_of(measurement.settings).values():
        assert own.name in found.output


# ------------------------------------------------------------------------------------------ flags and commands


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    """Something is measured."""

    name: str = argument("MODEL", "What is measured.")
    files: Sequence[str] = flag("Some files.", name="--data", default=())
    sizes: Sequence[int] = flag("Sizes.", default=(4, 2), least=1, separated=True)
    shares: Sequence[float] = flag("Shares.", default=(), least=0, most=1, separated=True)
    layers: Sequence[int] | None = flag("Layers.", default=None, separated=True, ranges=True)
    way: str = flag("How.", default="slow", choices=("slow", "fast"))
    most_words: int | None = flag("Words.", default=None, least=2)
    loud: bool = flag("Say it.", default=False)
    seed: int = flag("Seed.", default=0, least=0, most=9)


def called(*words):
    seen = []
    app = typer.Typer()
    app.command()(command_of(Example, lambda settings, **given: seen.append((settings, given))))
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, found.output
    return seen[0]


def test_a_command_gives_the_defaults_of_the_fields():
    settings, given = called("M", "--output", "out")
    assert settings == Example(name="M", sizes=[4, 2])
    assert given == {"output": Path("out"), "resume": False, "as_json": False}


def test_a_command_reads_every_kind_of_flag():
    settings, given = called(
        "M", "--output", "out", "--data", "a", "--data", "b", "--sizes", "7,8", "--shares", "0.5,1", "--way", "fast",
        "--layers", "2-4,7", "--most-words", "3", "--loud", "--seed", "9", "--resume",
    )  # fmt: skip
    assert settings == Example(
        name="M", files=["a", "b"], sizes=[7, 8], shares=[0.5, 1.0], layers=[2, 3, 4, 7], way="fast", most_words=3,
        loud=True, seed=9,
    )  # fmt: skip
    assert given["resume"]
    settings.check()
    assert inputs_of(settings, {"text": "abc"}) == {
        "MODEL": "M", "--data": ["a", "b"], "--sizes": [7, 8], "--shares": [0.5, 1.0],
        "--layers": [2, 3, 4, 7], "--way": "fast", "--most-words": 3, "--loud": True, "--seed": 9, "text": "abc",
    }  # fmt: skip


@pytest.mark.parametrize(("values", "message"), [
    ({"sizes": (3, 0)}, "--sizes must be at least 1, got 3, 0"),
    ({"sizes": (3, 3)}, "--sizes must not repeat a value, got 3, 3"),
    ({"shares": (0.5, 1.5)}, "--shares must lie between 0 and 1, got 0.5, 1.5"),
    ({"way": "quick"}, "--way must be one of slow, fast, got 'quick'"),
    ({"most_words": 1}, "--most-words must be at least 2, got 1"),
    ({"sizes": (math.nan,)}, "--sizes must be at least 1, got nan"),
    ({"seed": 10}, "--seed must lie between 0 and 9, got 10"),
])  # fmt: skip
def test_a_value_out_of_range_is_refused_by_its_flag(values, message):
    with pytest.raises(InputError, match=message):
        Example(name="M", **values).check()


def outside(own):
    """Values that the flag refuses, of those that its bounds, choices and commas speak of."""
    if own.least is not None:
        yield own.least - 1
    if own.most is not None and own.most < 2**53:
        yield own.most + 1
    if own.choices:
        yield "nonsense"


@each
def test_every_bound_of_every_flag_is_kept_before_anything_is_done(measurement, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = measurement.settings
    run = evaluate if measurement.parent == "antiphase.lab.measures" else measurement.plan or measurement.run
    hints = typing.get_type_hints(kind)
    lists = {name: typing.get_args(hint)[0] for name, hint in hints.items() if typing.get_origin(hint) is Sequence}
    texts = [
        one.name for one in fields(kind) if one.default is MISSING or (lists.get(one.name), one.default) == (str, ())
    ]
    given = {name: ["1"] if name in lists else "1" for name in texts}
    for name, own in flags_of(kind).items():
        wrong = [[value] if name in lists else value for value in outside(own)]
        if own.separated and not own.allows_duplicates and own.choices:
            wrong.append([own.choices[0]] * 2)
        for value in wrong:
            with pytest.raises(InputError, match=rf"^{own.name} must "):
                run(kind(**{**given, name: value}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_words_for_numbers_are_refused_by_the_flag():
    app = typer.Typer()
    app.command()(command_of(Example, lambda settings, **given: None))
    for words in ("many", ""):
        found = CliRunner().invoke(app, ["M", "--output", "out", "--sizes", words])
        assert isinstance(found.exception, InputError)
        assert str(found.exception) == f"--sizes must be comma-separated numbers, got '{words}'"
