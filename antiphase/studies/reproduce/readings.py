"""What the records of a reproduction say of each claim: values by arm and seed, and the floors to be exceeded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy

from antiphase.evaluations.many_shot.measure import flips_against_chance
from antiphase.records import Record
from antiphase.studies.verdicts import CEILING, FLOOR_MARGIN
from antiphase.uncertainty.intervals import wilson_interval

BASELINE, ARM = "softmax", "differential"
Found = Mapping[str, Sequence[Record]]
"""Records by part of the reproduction."""
Series = dict[str, list[float | None]]
"""Arm to one value for each seed."""


class Floor(NamedTuple):
    """What a share of right answers has to exceed."""

    guess: float
    """What a system without the ability scores."""
    answers: int
    """So many stand behind the share of one model."""

    def exceeded_by(self, share: float) -> bool:
        """By more than a hair, and by more than chance would explain (95 %, Wilson)."""
        shown = wilson_interval(round(share * self.answers), self.answers)[0] > self.guess
        return shown and share > self.guess + FLOOR_MARGIN


def by_seed(records: Sequence[Record], value: Callable[[Record], float | None]) -> Series:
    """Of records of single models, which say their arm and seed."""
    seeds = sorted({record.values["seed"] for record in records})
    known = {(record.values["arm"], record.values["seed"]): value(record) for record in records}
    return {arm: [known.get((arm, seed)) for seed in seeds] for arm in (BASELINE, ARM)}


def compared(name: str) -> Callable[[Sequence[Record]], Series]:
    """A metric of ``antiphase compare``; no values where it was not measured."""

    def read(records: Sequence[Record]) -> Series:
        entries = [entry for entry in records[0].values["comparison"] if entry["metric"] == name]
        return {arm: entries[0]["arms"][arm]["values"] if entries else [] for arm in (BASELINE, ARM)}

    return read


def by_arm(records: Sequence[Record], value: Callable[[list[Mapping[str, Any]]], float | None], rows: str) -> Series:
    """Of records of one seed each with both arms in them: ``value`` of an arm's rows with the needle anywhere."""

    def of(record: Record, arm: str) -> float | None:
        return value([
            row for row in record.values[rows]
            if row["trained"] and row["depth"] is None and row["arm"].startswith(f"{arm}-seed")
        ])  # fmt: skip

    return {arm: [of(record, arm) for record in records] for arm in (BASELINE, ARM)}


def allocated(spans: Sequence[str]) -> Callable[[Sequence[Record]], Series]:
    """Share of Σ|A| on some spans, mean over layers, seen from the end of the question."""

    def share(rows: list[Mapping[str, Any]]) -> float | None:
        whole = [row for row in rows if row["layer"] == "all" and row["map"] in ("softmax", "difference")]
        return sum(whole[0]["spans"][span]["share"] for span in spans) if whole else None

    return lambda records: by_arm(records, share, "rows")


def cells_of_allocation(found: Found) -> dict[Cell, Floor]:
    """Cells of the needle grid with as many needles as where allocation was measured."""
    asked = {row["needles"] for record in found["allocation"] for row in record.values["rows"]}
    return {cell: floor for cell, floor in needle_cells(found["needles"]).items() if cell[0] in asked}


def found_there(found: Found) -> Series:
    """How often the answer is found among as many needles."""
    return right_in(found["needles"], cells_of_allocation(found))


Cell = tuple[int, int, int]
"""Needles, questions and tokens of a prompt."""


def needle_cells(records: Sequence[Record]) -> dict[Cell, Floor]:
    """Cells of the needle grid with the needle anywhere; a record is one seed, both arms in it."""
    return {
        cell_of(row): Floor(row["guess_rate"], row["samples"])
        for row in records[0].values["summary"]
        if row["trained"] and row["depth"] is None
    }


def cell_of(row: Mapping[str, Any]) -> Cell:
    """Where in the needle grid a row stands."""
    return row["needles"], row["queries"], row["length"]


def right_in(records: Sequence[Record], cells: Iterable[Cell]) -> Series:
    """Share of right outputs, mean over some cells."""
    chosen = set(cells)

    def right(rows: list[Mapping[str, Any]]) -> float | None:
        found = [row["accuracy"] for row in rows if cell_of(row) in chosen]
        return statistics.fmean(found) if found else None

    return by_arm(records, right, "summary")


def telling_cells(records: Sequence[Record]) -> dict[Cell, Floor]:
    """Cells where the softmax models are neither on the floor nor on the ceiling, over all seeds."""
    found = {}
    for cell, floor in needle_cells(records).items():
        known = [share for share in right_in(records, [cell])[BASELINE] if share is not None]
        mean = statistics.fmean(known)
        if Floor(floor.guess, floor.answers * len(known)).exceeded_by(mean) and mean < CEILING:
            found[cell] = floor
    return found


def pooled(floors: Iterable[Floor]) -> Floor | None:
    """Of the mean over cells."""
    listed = list(floors)
    if not listed:
        return None
    return Floor(statistics.fmean(floor.guess for floor in listed), sum(floor.answers for floor in listed))


def counted(records: Sequence[Record]) -> str:
    """N of the cells that count, and of those that do not."""
    telling = telling_cells(records)
    named = [
        ", ".join(str(cell[0]) for cell in needle_cells(records) if (cell in telling) == counts)
        for counts in (True, False)
    ]
    return f"N = {named[0] or 'none'}" + (f", not {named[1]}" if named[1] else "")


def largest(what: str) -> Callable[[Record], float]:
    """The largest value over all layers."""
    return lambda record: next(
        row["top"]["1"] for row in record.values["rows"] if (row["what"], row["layer"]) == (what, "all")
    )


def lost_at(bits: int) -> Callable[[Record], float | None]:
    """What few bits cost in loss."""

    def read(record: Record) -> float | None:
        losses = {row["bits"]: row["loss"] for row in record.values["rows"]}
        whole, few = losses.get(None), losses.get(bits)
        return None if whole is None or few is None else few - whole

    return read


def most_shots(record: Record) -> float:
    """Accuracy at the largest number of examples, mean over tasks."""
    return statistics.fmean(task["rows"][-1]["accuracy"] for task in record.values["tasks"].values())


def mean_of_orders(record: Record) -> float | None:
    """Accuracy, mean over orders and tasks."""
    return of_orders(record, "mean_accuracy")


def of_orders(record: Record, name: str) -> float | None:
    """Mean over tasks; None where no orders were drawn."""
    found = [task["orders"]["random"][name] for task in record.values["tasks"].values() if task["orders"]]
    return statistics.fmean(found) if found else None


def flips(record: Record) -> float | None:
    """Flips between two orders over those of answers drawn anew, all tasks together; None where orders lack them."""
    found = by_task(record)
    return None if found is None else flips_against_chance(*found.mean(0).tolist())


def by_task(record: Record) -> numpy.ndarray[Any, Any] | None:
    """(tasks, 2): flips between two orders and accuracy, weighted so that their means are those of all answers."""
    tasks = [task for task in record.values["tasks"].values() if task["orders"]]
    if not tasks or not all("pair_flips" in task["orders"]["random"] for task in tasks):
        return None
    sizes = numpy.array([task["samples"] for task in tasks], dtype=float)
    names = ("pair_flips", "mean_accuracy")
    rows = numpy.array([[task["orders"]["random"][name] for name in names] for task in tasks])
    return rows * (sizes / sizes.mean())[:, None]


def answers_in_orders(records: Sequence[Record]) -> int:
    """Rows that were asked in every order, of one model."""
    return sum(task["samples"] for task in records[0].values["tasks"].values() if task["orders"])


def majority(records: Sequence[Record]) -> Floor | None:
    """What always naming one label scores."""
    tasks = records[0].values["tasks"].values()
    return pooled(Floor(task["majority_rate"], task["samples"]) for task in tasks)


def downstream(records: Sequence[Record]) -> Series:
    """Mean over tasks and numbers of examples; a record is one seed, both arms in it."""

    def of(record: Record, arm: str) -> float | None:
        rows = [row for row in scored(record) if PurePath(row["model"]).name.startswith(f"{arm}-seed")]
        return statistics.fmean(row["metrics"][row["metric"]]["value"] for row in rows) if rows else None

    return {arm: [of(record, arm) for record in records] for arm in (BASELINE, ARM)}


def scored(record: Record) -> list[Mapping[str, Any]]:
    """Rows of tasks that have a metric."""
    return [row for row in record.values["rows"] if row["metric"] is not None]


def without_reading(records: Sequence[Record]) -> Floor | None:
    """What the better of a uniform choice and the commonest place scores, mean over the same tasks."""
    rows = [row for row in scored(records[0]) if PurePath(row["model"]).name.startswith(f"{BASELINE}-seed")]
    return pooled(Floor(max(row["guess_rate"] or 0.0, row["constant_rate"] or 0.0), row["samples"]) for row in rows)


def faithful(record: Record) -> float:
    """Share of outputs that the judge found true of the text, mean over data sets."""
    tasks = record.values["tasks"].values()
    return statistics.fmean(
        next(row["accuracy"] for row in task["systems"] if row["system"] == "model") for task in tasks
    )


def untrue(records: Sequence[Record]) -> Floor | None:
    """Nothing need be true; the answers of one model."""
    rows = [row for task in records[0].values["tasks"].values() for row in task["systems"] if row["system"] == "model"]
    return pooled(Floor(0.0, row["samples"]) for row in rows)


def seeds_of(records: Sequence[Record]) -> list[int]:
    """Of records of single models, in the order of ``by_seed``."""
    return sorted({record.values["seed"] for record in records})
