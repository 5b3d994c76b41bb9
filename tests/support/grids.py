"""Which cases of a large grid run with the fast tests: few, in which every value of every parameter occurs."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

TIMES = 3
"""How often every value of a parameter occurs in a selection."""


def selection(cases: Sequence[Sequence[Hashable]], times: int = TIMES) -> list[int]:
    """Indices of cases in which each value of each parameter occurs at least ``times``, or as often as in all of them.

    A case is the values of its parameters. The next case is always one with most values that are still wanted; among
    these, one in which most pairs of values are new, so that parameters do not change together.
    """
    counts = Counter(value for case in cases for value in enumerate(case))
    wanted = {value: min(times, count) for value, count in counts.items()}
    left = list(range(len(cases)))
    chosen: list[int] = []
    seen: set[object] = set()

    def gain(index: int) -> tuple[int, int]:
        return sum(wanted[value] > 0 for value in enumerate(cases[index])), len(_pairs(cases[index]) - seen)

    while any(wanted.values()):
        best = max(left, key=gain)
        left.remove(best)
        chosen.append(best)
        seen |= _pairs(cases[best])
        for value in enumerate(cases[best]):
            wanted[value] = max(wanted[value] - 1, 0)
    return sorted(chosen)


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Of each test with the marker ``grid``, mark the cases beyond a selection as slow.

    ``grid("kernels")`` selects for each value of the parameter ``kernels`` by itself, as is needed where some of them
    are skipped on some machines. Parameters of one ``parametrize`` count as one. Cases that are slow anyway are never
    selected.
    """
    grids: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("grid")
        if marker is not None and item.get_closest_marker("slow") is None:
            apart = tuple(_key(item.callspec.params[name]) for name in marker.args)
            grids[item.nodeid.split("[")[0], apart].append(item)
    for cases in grids.values():
        chosen = selection([_values(item) for item in cases])
        for index in set(range(len(cases))) - set(chosen):
            cases[index].add_marker(pytest.mark.slow)


def _pairs(case: Sequence[Hashable]) -> set[object]:
    """Pairs of values, each with the numbers of its parameters."""
    return set(itertools.combinations(enumerate(case), 2))


def _values(item: pytest.Item) -> list[Hashable]:
    """Values of a case's parameters; those of one ``parametrize`` are one value."""
    params = dict(item.callspec.params)
    found: list[Hashable] = []
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0].replace(",", " ").split() if isinstance(marker.args[0], str) else marker.args[0]
        found.append(tuple(_key(params.pop(name)) for name in names))
    return found + [_key(value) for value in params.values()]


def _key(value: object) -> Hashable:
    """What tells values of a parameter apart: themselves, or the identity of a dictionary or list."""
    return (type(value), value) if isinstance(value, Hashable) else id(value)
