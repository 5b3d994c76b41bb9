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


def test_parameters_do_not_change_together():
    cases = list(itertools.product("abc", "xyz", [1, 2, 3]))
    chosen = [cases[index] for index in selection(cases, times=3)]
    assert len(chosen) < 12
    for one, other in itertools.permutations(range(3), 2):
        met = Counter(first for first, _ in {(case[one], case[other]) for case in chosen})
        assert min(met.values()) >= 2


def item(name, *markers, **params):
    """A case of a test as pytest collects it."""
    of = {kind: [mark.mark for mark in markers if mark.mark.name == kind] for kind in ("grid", "slow", "parametrize")}
    case = SimpleNamespace(
        nodeid=f"test_file.py::{name}[{params}]", callspec=SimpleNamespace(params=params), added=[],
        get_closest_marker=lambda kind: next(iter(of[kind]), None), iter_markers=of.__getitem__,
    )  # fmt: skip
    case.add_marker = case.added.append
    return case


def test_cases_beyond_the_selection_are_slow():
    kinds = [{}, [], {}]  # which cannot be compared by value
    grid = [
        item("test_grid", pytest.mark.grid("machine"), machine=machine, size=size, kind=kind)
        for machine in ("old", "new") for size in range(10) for kind in kinds
    ]  # fmt: skip
    plain = [item("test_list", size=size) for size in range(50)]
    mark_slow([*grid, *plain])
    assert not any(case.added for case in plain)
    fast = [case for case in grid if not case.added]
    assert all(mark == pytest.mark.slow for case in grid for mark in case.added)
    for machine in ("old", "new"):
        params = [case.callspec.params for case in fast if case.callspec.params["machine"] == machine]
        assert Counter(given["size"] for given in params) == dict.fromkeys(range(10), 3)
        assert {id(given["kind"]) for given in params} == set(map(id, kinds))


def test_cases_that_are_slow_anyway_leave_their_values_to_others():
    slow = {(size, kind) for size in range(1, 20) for kind in (0, 1, 2, 4)}
    grid = [
        item("test_grid", pytest.mark.grid, *[pytest.mark.slow] * ((size, kind) in slow), size=size, kind=kind)
        for size in range(20) for kind in range(5)
    ]  # fmt: skip
    mark_slow(grid)
    fast = [case for case in grid if not case.added and case.get_closest_marker("slow") is None]
    params = [case.callspec.params for case in fast]
    assert {given["size"] for given in params} == set(range(20))
    assert {given["kind"] for given in params} == set(range(5))
    assert not any(case.added for case in grid if case.get_closest_marker("slow"))


def test_parameters_of_one_parametrize_are_one():
    joint = [(rows, is_causal) for rows in (1, 3, 5, 7) for is_causal in (False, True)]
    grid = [
        item("test_grid", pytest.mark.grid, pytest.mark.parametrize(("rows", "is_causal"), joint),
             pytest.mark.parametrize("width", range(8)), rows=rows, is_causal=is_causal, width=width)
        for rows, is_causal in joint for width in range(8)
    ]  # fmt: skip
    mark_slow(grid)
    kept = Counter((case.callspec.params["rows"], case.callspec.params["is_causal"]) for case in grid if not case.added)
    assert set(kept) == set(joint)
    assert min(kept.values()) >= 3
    assert sum(kept.values()) < len(grid) / 2
