"""Selections of large grids: `make test` may leave out cases, but no value of a parameter."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest

from support.grids import mark_slow, selection

GRIDS = {
    "three parameters": list(itertools.product("abcdefg", range(4), [None, "window"])),
    "an uneven grid": [*itertools.product("abc", range(3)), ("d", 0), ("e", 7)],
    "one parameter": [(value,) for value in range(5)],
    "no case": [],
}


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("name", GRIDS)
def test_every_value_occurs_as_often_as_asked(name, times):
    cases = GRIDS[name]
    chosen = [cases[index] for index in selection(cases, times)]
    for every, some in zip(zip(*cases, strict=True), zip(*chosen, strict=True), strict=True):
        kept = Counter(some)
        for value, count in Counter(every).items():
            assert kept[value] >= min(times, count), value


def test_a_large_grid_becomes_small():
    assert len(selection(list(itertools.product(range(37), range(11))), times=2)) == 2 * 37


def item(name, marker=None, **params):
    """A case of a test as pytest collects it."""
    markers = [] if marker is None else [marker]
    return SimpleNamespace(
        nodeid=f"test_file.py::{name}[{params}]", callspec=SimpleNamespace(params=params), added=[],
        get_closest_marker=lambda kind: next((mark for mark in markers if mark.name == kind), None),
    )  # fmt: skip


def test_cases_beyond_the_selection_are_slow():
    kinds = [{}, [], {}]  # which cannot be compared by value
    grid = [
        item("test_grid", pytest.mark.grid("machine").mark, machine=machine, size=size, kind=kind)
        for machine in ("old", "new") for size in range(10) for kind in kinds
    ]  # fmt: skip
    plain = [item("test_list", size=size) for size in range(50)]
    for case in [*grid, *plain]:
        case.add_marker = case.added.append
    mark_slow([*grid, *plain])
    assert not any(case.added for case in plain)
    fast = [case for case in grid if not case.added]
    assert all(mark == pytest.mark.slow for case in grid for mark in case.added)
    for machine in ("old", "new"):
        params = [case.callspec.params for case in fast if case.callspec.params["machine"] == machine]
        assert Counter(given["size"] for given in params) == dict.fromkeys(range(10), 3)
        assert {id(given["kind"]) for given in params} == set(map(id, kinds))
