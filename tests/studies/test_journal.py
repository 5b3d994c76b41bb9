"""Lines that survive a kill: a torn last one is left out, anything else that is no line costs one sentence."""

from __future__ import annotations

import pytest

from antiphase.errors import InputError
from antiphase.studies.journal import append_line, hash_of, read_lines


@pytest.mark.parametrize("torn", [b'{"key": "b", "ro', b"{", b'{"key": "b", "rows": []}', b"\xc3"])
def test_a_torn_last_line_is_left_out_and_the_next_stands_alone(tmp_path, torn):
    path = tmp_path / "cells.jsonl"
    append_line(path, {"key": "a", "rows": [1]})
    with path.open("ab") as file:
        file.write(torn)
    assert read_lines(path, "key", "rows") == [{"key": "a", "rows": [1]}]
    append_line(path, {"key": "c", "rows": []})
    assert [line["key"] for line in read_lines(path, "key")] == ["a", "c"]


@pytest.mark.parametrize("wrong", [b"nonsense", b"[1]", b'{"key": "b"}', b"\xff\xfe"])
def test_a_whole_line_that_is_something_else_is_named(tmp_path, wrong):
    path = tmp_path / "cells.jsonl"
    append_line(path, {"key": "a", "rows": []})
    with path.open("ab") as file:
        file.write(wrong + b"\n")
    with pytest.raises(InputError, match=r"cells\.jsonl, line 2: this is no result of antiphase"):
        read_lines(path, "key", "rows")


def test_nothing_yet_and_keys(tmp_path):
    assert read_lines(tmp_path / "none.jsonl", "key") == []
    assert hash_of(["a", 1]) == hash_of(["a", 1]) != hash_of(["a", 2])
