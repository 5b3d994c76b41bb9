"""``antiphase.read`` and ``report --format``: tables and figures of a run, in Python and as files."""

import csv

import pandas
import pytest
from pandas.testing import assert_frame_equal

from antiphase import read
from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.long_context import LongContext, Point
from support.paths import ROOT

NEEDLES = ROOT / "records/real-model/needles.json"


@pytest.fixture
def curve(tmp_path):
    found = LongContext(windows=2, length=32, curve=[Point(16, 3.25, [3.0, 3.5]), Point(32, 3.0, [2.5, 3.5])])
    found.record().save(tmp_path / "run")
    return tmp_path / "run"


def test_a_table_is_a_data_frame_by_its_own_name_or_that_of_its_figure():
    run = read(NEEDLES)
    frame = run.table("needle-accuracy-by-depth")
    assert isinstance(frame, pandas.DataFrame)
    assert_frame_equal(run.table("needles"), frame)
    rows = Record.load(NEEDLES).values["summary"]
    assert frame["Accuracy"].tolist() == [row["accuracy"] for row in rows]
    assert {"settings", "environment", "how-this-record-was-made"} <= run.every_table().keys()
    assert str(run) == "\n\n".join(map(str, run.tables()))
    with pytest.raises(InputError, match="this run has no table 'needle'; did you mean 'needles'"):
        run.table("needle")


@pytest.mark.parametrize(("format", "ending"), [("csv", "csv"), ("latex", "tex"), ("markdown", "md")])
def test_report_writes_every_table(antiphase, curve, tmp_path, format, ending):
    assert antiphase(f"report {curve} --format {format} --output out")[0] == 0
    run = read(curve)
    assert {path.stem for path in (tmp_path / "out").iterdir()} == set(run.every_table())
    text = (tmp_path / f"out/loss-by-length-of-context.{ending}").read_text()
    if format == "csv":
        head, *rows = csv.reader(text.splitlines())
        frame = run.table("loss-by-length-of-context")
        assert head == list(frame.columns)
        assert [[float(cell) for cell in row[:2]] for row in rows] == frame.iloc[:, :2].to_numpy().tolist()
    else:
        assert "3.250" in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize(("format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_report_writes_every_figure_with_equal_bytes_each_time(antiphase, curve, tmp_path, format, start):
    for folder in ("one", "two"):
        assert antiphase(f"report {curve} {NEEDLES} --format {format} --output {folder}")[0] == 0
    made = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob(f"*.{format}"))
    assert [str(path) for path in made] == [f"needles/needles.{format}", f"run/loss-by-length.{format}"]
    for path in made:
        content = (tmp_path / "one" / path).read_bytes()
        assert content.startswith(start)
        assert content == (tmp_path / "two" / path).read_bytes()


def test_what_cannot_be_written_is_refused(refused, tmp_path):
    Record(kind="odd", values={"a": 1}).save(tmp_path / "odd")
    refused("--format svg: there are no figures; choose a format of tables", "report odd --format svg --output out")
    (tmp_path / "file").touch()
    refused(r"--output file cannot be made \(File exists\)", "report odd --format csv --output file")
    with pytest.raises(InputError, match="format must be one of csv, latex, markdown, svg, pdf, png, got 'html'"):
        read(tmp_path / "odd").save(tmp_path / "out", "html")
