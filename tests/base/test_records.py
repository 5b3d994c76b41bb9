"""Records: what was measured comes back, nothing half-written is ever found, and strangers are refused."""

import hashlib
import json
import math
import os
from pathlib import Path

import numpy
import pytest

from antiphase.base import records
from antiphase.base.errors import InputError
from antiphase.base.records import FORMAT, Record, command_line, environment, finite, write_atomically
from support.records import write_sealed


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_record_comes_back_with_its_arrays(tmp_path):
    arrays = {
        "map": numpy.arange(24, dtype=numpy.float32).reshape(2, 3, 4),
        "half": numpy.array([[0.5]], dtype=numpy.float16), "empty": numpy.zeros((0, 3), dtype=numpy.int64),
    }  # fmt: skip
    record = Record(
        kind="train", values={"λ": [0.1, None]}, config={"a": {"b": 1}}, seeds=[3, -1], seconds=1.5, arrays=arrays
    )
    path = record.save(tmp_path / "new" / "folder", "result.v1")
    assert names(path.parent) == ["result.v1.json", "result.v1.safetensors"]
    loaded = Record.load(path)
    for name in ("kind", "values", "config", "seeds", "seconds", "command", "created", "environment", "format"):
        assert getattr(loaded, name) == getattr(record, name), name
    assert loaded.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded.arrays[name].dtype == array.dtype
        numpy.testing.assert_array_equal(loaded.arrays[name], array)


def test_array_that_is_a_view_is_stored_as_it_reads(tmp_path):
    array = numpy.arange(12.0).reshape(3, 4).T[::2]
    Record(kind="x", values={}, arrays={"view": array}).save(tmp_path)
    numpy.testing.assert_array_equal(Record.load(tmp_path).arrays["view"], array)


def test_a_changed_record_is_refused(tmp_path):
    path = Record(kind="x", values={"λ": [0.1, None], "n": 12}, seeds=[1]).save(tmp_path)
    whole = path.read_text(encoding="utf-8")
    for before, after in (("12", "13"), ("0.1", "0.2"), ("null", "0"), ('"x"', '"y"'), ('"λ"', '"μ"')):
        assert whole.count(before) >= 1
        path.write_text(whole.replace(before, after, 1), encoding="utf-8")
        with pytest.raises(InputError, match=r"record\.json was changed after it was written"):
            Record.load(tmp_path)
    tree = json.loads(whole)
    assert list(tree)[-1] == "sha256"
    write_sealed(path, tree)
    assert Record.load(tmp_path).values == {"λ": [0.1, None], "n": 12}
    del tree["sha256"]
    path.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(InputError, match=r"record\.json was changed after it was written"):
        Record.load(tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_no_record_holds_is_a_change(tmp_path, number):
    path = Record(kind="x", values={"n": 12}).save(tmp_path)
    path.write_text(path.read_text().replace("12", number, 1))
    with pytest.raises(InputError, match=r"record\.json was changed after it was written"):
        Record.load(tmp_path)


def test_arrays_of_another_record_are_refused(tmp_path):
    """As after a crash between the two files, or with changed bits."""
    for number in (1, 2):
        Record(kind="x", values={}, arrays={"a": numpy.full(3, number)}).save(tmp_path / str(number))
    arrays = tmp_path / "1" / "record.safetensors"
    whole = arrays.read_bytes()
    arrays.write_bytes((tmp_path / "2" / "record.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"record\.safetensors holds other arrays than record\.json"):
        Record.load(tmp_path / "1")
    arrays.write_bytes(whole)
    again = Record.load(tmp_path / "1")
    assert again.arrays["a"].tolist() == [1, 1, 1]
    assert Record.load(again.save(tmp_path / "3")).arrays["a"].tolist() == [1, 1, 1]
    tree = json.loads((tmp_path / "1" / "record.json").read_text())
    del tree["arrays_sha256"]
    write_sealed(tmp_path / "1" / "record.json", tree)
    with pytest.raises(InputError, match=r"record\.safetensors holds other arrays than record\.json"):
        Record.load(tmp_path / "1")


def test_a_folder_may_replace_its_record(tmp_path):
    Record(kind="x", values={"a": 1}).save(tmp_path)
    assert Record.load(tmp_path).values == {"a": 1}
    assert Record.load(str(tmp_path)).arrays == {}


def test_numbers_that_json_lacks_become_null(tmp_path):
    values = {
        "nan": math.nan, "list": [math.inf, (-math.inf, 1.0)], "array": numpy.array([numpy.nan, 2.0]),
        "scalar": numpy.float32("nan"), "count": numpy.int64(3), "path": Path("a/b"), 7: True,
    }  # fmt: skip
    text = Record(kind="x", values=values).save(tmp_path).read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert Record.load(tmp_path).values == {
        "nan": None, "list": [None, [None, 1.0]], "array": [None, 2.0], "scalar": None, "count": 3, "path": "a/b",
        "7": True,
    }  # fmt: skip


def test_finite_numbers_and_tensors_keep_their_value():
    torch = pytest.importorskip("torch")
    assert finite({"a": torch.tensor([0.1], dtype=torch.float64), "b": 0.1}) == {"a": [0.1], "b": 0.1}


def test_record_of_a_newer_format_is_refused(tmp_path):
    path = Record(kind="x", values={}).save(tmp_path)
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(InputError, match=rf"format {FORMAT + 1}; this version reads up to {FORMAT}"):
        Record.load(path)


def test_unknown_fields_of_a_record_are_left_out(tmp_path):
    path = Record(kind="x", values={}).save(tmp_path)
    write_sealed(path, json.loads(path.read_text()) | {"later": 1})
    assert Record.load(path).kind == "x"


@pytest.mark.parametrize("content", [
    b"{}", b'{"kind": "x", "values": {}}', b'{"kind": "x", "values": [], "format": 1}',
    b'{"kind": "x", "values": {}, "format": "1"}', b'{"kind": 5, "values": {}, "format": 1}',
    b'{"kind": "x", "values": {}, "format": 1, "config": 3}', b'{"kind": "x", "values": {}, "format": 1, "seeds": 3}',
])  # fmt: skip
def test_file_that_is_no_record_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.json is not a record"):
        Record.load(path)


def test_missing_record_is_refused_by_its_name(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.json"):
        with pytest.raises(InputError, match="there is no such file; give a record"):
            Record.load(path)


def test_broken_arrays_are_refused_by_their_name(tmp_path):
    Record(kind="x", values={}, arrays={"a": numpy.zeros(3)}).save(tmp_path)
    (tmp_path / "record.safetensors").write_bytes(b"short")
    tree = json.loads((tmp_path / "record.json").read_text())
    write_sealed(tmp_path / "record.json", tree | {"arrays_sha256": hashlib.sha256(b"short").hexdigest()})
    with pytest.raises(InputError, match=r"record\.safetensors: these are not the arrays"):
        Record.load(tmp_path)


def test_arrays_of_an_earlier_record_do_not_pass_to_the_next(tmp_path):
    Record(kind="x", values={}, arrays={"a": numpy.zeros(3)}).save(tmp_path)
    Record(kind="x", values={}).save(tmp_path)
    assert Record.load(tmp_path).arrays == {}


@pytest.mark.parametrize("moment", ["write", "rename"])
def test_crash_while_saving_leaves_the_old_record(tmp_path, monkeypatch, moment):
    Record(kind="x", values={"a": "old"}).save(tmp_path)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(*{"write": (os, "fsync", crash), "rename": (Path, "replace", crash)}[moment])
    with pytest.raises(KeyboardInterrupt):
        Record(kind="x", values={"a": "new" * 100_000}).save(tmp_path)
    monkeypatch.undo()
    assert Record.load(tmp_path).values == {"a": "old"}
    Record(kind="x", values={"a": "new"}).save(tmp_path)
    assert Record.load(tmp_path).values == {"a": "new"}


def test_nothing_but_the_file_remains_after_writing(tmp_path):
    write_atomically(tmp_path / "a", b"1")
    write_atomically(tmp_path / "a", b"22")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"22"


def test_record_says_what_made_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/a/b/antiphase", "train", "--set", "description=two words"])
    record = Record(kind="x", values={})
    assert record.command == "antiphase train --set 'description=two words'"
    assert record.created.endswith("+00:00")
    assert {"python", "antiphase", "torch", "cores", "processor", "revision"} <= record.environment.keys()


def test_module_run_with_python_is_the_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/a/antiphase/__main__.py", "env"])
    assert command_line() == "antiphase env"


def test_package_that_is_missing_has_no_version(monkeypatch):
    monkeypatch.setattr(records, "PACKAGES", ("antiphase", "not-a-package-of-anyone"))
    assert environment()["not-a-package-of-anyone"] is None
