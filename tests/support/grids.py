"""Which cases of a large grid run with the fast tests: few, in which every value of every parameter occurs."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

TIMES = 3
"""How often every value of a parameter occurs in a selection."""


def selection(cases: Sequence[Sequence[Hashable]], times: int = TIMES) -> list[int]:
    """Indices of cases in which each value of each parameter occurs at least ``times``, or as often as in all of them.

    A case is the values of its parameters. The next case is always one with most values that are still wanted.
    """
    counts = Counter(value for case in cases for value in enumerate(case))
    wanted = {value: min(times, count) for value, count in counts.items()}
    left = list(range(len(cases)))
    chosen = []
    while any(wanted.values()):
        best = max(left, key=lambda index: sum(wanted[value] > 0 for value in enumerate(cases[index])))
        left.remove(best)
        chosen.append(best)
        for value in enumerate(cases[best]):
            wanted[value] = max(wanted[value] - 1, 0)
    return sorted(chosen)


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Of each test with the marker ``grid``, mark the cases beyond a selection as slow.

    ``grid("kernels")`` selects for each value of the parameter ``kernels`` by itself, as is needed where some of them
    are skipped on some machines.
    """
    grids: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("grid")
        if marker is not None:
            apart = tuple(_key(item.callspec.params[name]) for name in marker.args)
            grids[item.nodeid.split("[")[0], apart].append(item)
    for cases in grids.values():
        chosen = selection([[_key(value) for value in item.callspec.params.values()] for item in cases])
        for index in set(range(len(cases))) - set(chosen):
            cases[index].add_marker(pytest.mark.slow)


def _key(value: object) -> Hashable:
    """What tells values of a parameter apart: themselves, or, of a dictionary or list, the object."""
    return (type(value), value) if isinstance(value, Hashable) else id(value)
