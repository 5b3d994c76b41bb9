"""What the list of the zoo forgives, and that it may only shrink."""

from pathlib import Path

import yaml

from zoo.architectures import FAMILIES
from zoo.run import apply

BAD = {"state": "crash", "why": "KeyError: 'antiphase'"}
GOOD = {"state": "equal", "difference": 0.0}


def zoo(first=BAD):
    return [{"family": "causal", "name": "falcon", "cells": {"attention": {"float32": dict(first), "float64": GOOD}}}]


def entry(**other):
    return {"why": "a table of its own names", "names": ["falcon"], "cells": ["attention"], **other}


def test_a_cell_that_is_neither_right_nor_listed_is_said():
    said = "causal falcon: crash (attention float32): KeyError: 'antiphase'"
    assert apply([], zoo()) == [said]
    for other in ({"cells": ["padding"]}, {"dtype": "float64"}):
        assert apply([entry(**other)], zoo())[0] == said
    assert apply([], zoo({"state": "wrong", "difference": 0.25})) == [
        "causal falcon: wrong (attention float32): difference 0.2"
    ]
    assert apply([], zoo(GOOD)) == []


def test_a_listed_cell_carries_its_reason():
    for one in (entry(), entry(cells="all"), entry(dtype="float32")):
        rows = zoo()
        assert apply([one], rows) == []
        assert rows[0]["cells"]["attention"]["float32"] == {"state": "listed", "why": one["why"]}


def test_an_entry_that_is_not_needed_is_said():
    assert apply([entry()], zoo(GOOD)) == ["falcon is listed (a table of its own names) and needs no entry; remove it"]
    assert apply([entry(names=["git"])], zoo(GOOD)) == []  # was not run


def test_the_list_names_architectures_and_reasons():
    known = yaml.safe_load((Path(__file__).parent / "known.yaml").read_text(encoding="utf-8"))
    every = {name for family in FAMILIES.values() for name in family.names}
    assert all(set(one["names"]) <= every and len(one["why"]) > 20 for one in known)
