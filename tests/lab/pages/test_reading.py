"""``antiphase.read`` and ``report --format``: tables and figures of a run, in Python and as files."""

import pytest
from pandas.testing import assert_frame_equal

from antiphase import read
from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.base.tables import Table
from support.paths import ROOT

NEEDLES = ROOT / "records/real-model/needles.json"


def test_a_table_is_a_data_frame_by_its_own_name_or_that_of_its_figure():
    run = read(NEEDLES)
    frame = run.table("needle-accuracy-by-depth")
    assert_frame_equal(run.table("needles"), frame)
    assert frame["Accuracy"].tolist() == [row["accuracy"] for row in run.record.values["summary"]]
    assert {"settings", "environment", "how-this-record-was-made"} <= run.every_table().keys()
    assert str(run) == "\n\n".join(map(str, run.tables()))
    with pytest.raises(InputError, match="this run has no table 'needle'; did you mean 'needles'"):
        run.table("needle")


@pytest.mark.parametrize(("format", "ending"), [("csv", "csv"), ("latex", "tex"), ("markdown", "md")])
def test_report_writes_every_table(antiphase, tmp_path, format, ending):
    assert antiphase(f"report {NEEDLES} --format {format} --output out")[0] == 0
    text = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    made = getattr(Table, f"to_{format}")
    assert text == {f"{name}.{ending}": f"{made(one).rstrip()}\n" for name, one in read(NEEDLES).every_table().items()}


@pytest.mark.parametrize(("format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_report_writes_every_figure_with_equal_bytes_each_time(antiphase, tmp_path, format, start):
    assert antiphase(f"report {NEEDLES} {NEEDLES} --format {format} --output out")[0] == 0
    one, two = (tmp_path / f"out/{number}-needles/needles.{format}" for number in (1, 2))
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(start)


def test_what_cannot_be_written_is_refused(refused, tmp_path):
    Record(kind="odd", values={"a": 1}).save(tmp_path / "odd")
    refused("--format svg: there are no figures; choose a format of tables", "report odd --format svg --output out")
    refused("--format csv writes files into a folder; name that", "report odd --format csv --output page.html")
    (tmp_path / "file").touch()
    refused(r"--output file cannot be made \(File exists\)", "report odd --format csv --output file")
    with pytest.raises(InputError, match="format must be one of csv, latex, markdown, svg, pdf, png, got 'html'"):
        read(tmp_path / "odd").save(tmp_path / "out", "html")
