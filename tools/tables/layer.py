"""Tables by layer: where both maps and their difference attend in the demo, and λ of every V1 model with a record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from antiphase.base.records import Record
from antiphase.lab.measures.retrieval_results import MapAllocation
from antiphase.lab.studies.compare.reading import comparison_of
from antiphase.layers.lambdas import lambda_init
from experiments import programme_runs

RECORDS = Path(__file__).resolve().parents[2] / "records"
SPANS = {"answer": "answer", "other_needles": "other facts", "filler": "filler"}
MAPS = (
    ("softmax", "softmax", "signed"), ("first", "V1, first map", "signed"), ("second", "V1, second map", "signed"),
    ("difference", "V1, difference, signed", "signed"), ("difference", "V1, difference, share of Σ|A|", "share"),
)  # fmt: skip
"""Map, its name in the table, and what is shown of it; the weights of a single map are not signed."""


def demo_layers() -> list[list[str]]:
    """Attention of the demo's trained models by layer: mean over seeds, and their range."""
    rows = [row for row in comparison_of(_record("demo")).allocation if row.trained and row.depth is None]
    found = [["layer", "attention", *SPANS.values()]]
    for layer in sorted({row.layer for row in rows if isinstance(row.layer, int)}):
        for name, words, measure in MAPS:
            members = [row for row in rows if (row.layer, row.map) == (layer, name)]
            signed = (name, measure) == ("difference", "signed")
            cells = [_mean_and_range([_value(row, span, measure) for row in members], signed=signed) for span in SPANS]
            found.append([str(layer + 1), words, *cells])
    return found


def _value(row: MapAllocation, span: str, measure: str) -> float:
    value: float = getattr(row.spans[span], measure)
    return value


def lambdas() -> list[list[str]]:
    """λ by layer at the end of training, over seeds, under the value at the start."""
    models = {
        "demo's task, 0.15M": _of_study("a", "V1"), "the same, V1+": _of_study("a", "V1+"),
        "reproduction, 0.28M": _of_record("reproduce/compare"),
        "text, 1.3M, 9.8M tokens": _of_study("b", "V1"), "the same text, V1+": _of_study("b", "V1+"),
        "text and tasks, 34M": _of_record("gpu-h200/pairs/compare"),
    }  # fmt: skip
    layers = max(len(seeds[0]) for seeds in models.values())
    start = [f"{lambda_init(layer):.2f}" for layer in range(layers)]
    found = [["λ of V1 by layer", "seeds", *(str(layer + 1) for layer in range(layers))], ["at the start", "", *start]]
    for name, seeds in models.items():
        cells = [_mean_and_range(values) for values in zip(*seeds, strict=True)]
        found.append([name, str(len(seeds)), *cells, *["–"] * (layers - len(cells))])
    return found


def _of_study(name: str, arm: str) -> list[Sequence[float | None]]:
    """λ of each run of an arm of the programme."""
    return [line["lambdas"] for line in programme_runs.lines(f"{name}/runs") if line["arm"] == arm]


def _of_record(name: str) -> list[Sequence[float | None]]:
    """λ of each run of a comparison that has a second map."""
    return [run.lambdas for run in comparison_of(_record(name)).runs if run.lambdas]


def _mean_and_range(values: Sequence[float | None], *, signed: bool = False) -> str:
    known = [value for value in values if value is not None]
    assert len(known) == len(values), "a run without this number"
    sign = "+" if signed else ""
    low, high = (f"{end:{sign}.2f}" for end in (min(known), max(known)))
    return f"{statistics.fmean(known):{sign}.2f} [{low} to {high}]"


def _record(name: str) -> Record:
    return Record.load(RECORDS / f"{name}.json")
