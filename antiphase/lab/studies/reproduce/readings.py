"""What the records of a reproduction say of each claim: values by arm and seed, and the floors to be exceeded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, TypeVar

import numpy

from antiphase.base.records import Record
from antiphase.base.typed import build
from antiphase.lab.measures.allocation import Allocation
from antiphase.lab.measures.hallucination import MODEL, Hallucination, SystemScore
from antiphase.lab.measures.harness import Harness, TaskScore
from antiphase.lab.measures.long_context import LongContext
from antiphase.lab.measures.many_shot import ManyShot, OverOrders, TaskShots
from antiphase.lab.measures.many_shot.measure import flips_against_chance
from antiphase.lab.measures.needles import Needles
from antiphase.lab.measures.outliers import Outliers
from antiphase.lab.measures.quantization import Quantization
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.retrieval_results import Accuracy, CellScore, MapAllocation
from antiphase.lab.settings.schema import EvaluationSettings
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.studies.compare import Comparison
from antiphase.lab.studies.metrics import CEILING, FLOOR_MARGIN

BASELINE, ARM = ARMS = ("softmax", "differential")
Series = dict[str, list[float | None]]
"""Arm to one value for each seed."""
R = TypeVar("R", bound=Result)
Part = TypeVar("Part")
Value = TypeVar("Value")
Row = TypeVar("Row", Accuracy, CellScore, MapAllocation)


@dataclass(frozen=True)
class OfModel(Generic[R]):
    """A measurement of one trained model."""

    arm: str
    seed: int
    result: R


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured, by part; of a part that was not, nothing."""

    compare: Comparison | None = None
    seeds: Sequence[int] = ()
    """Of the comparison."""
    curve_samples: int = 0
    """Sequences behind an accuracy of the comparison."""
    harness: Sequence[Harness] = ()
    """As for needles and allocation: a result for each seed, with both arms in it."""
    needles: Sequence[Needles] = ()
    allocation: Sequence[Allocation] = ()
    long_context: Sequence[OfModel[LongContext]] = ()
    many_shot: Sequence[OfModel[ManyShot]] = ()
    hallucination: Sequence[OfModel[Hallucination]] = ()
    outliers: Sequence[OfModel[Outliers]] = ()
    quantization: Sequence[OfModel[Quantization]] = ()

    @classmethod
    def of(cls, records: Mapping[str, Sequence[Record]]) -> Found:
        """Read the records of each part.

        Raises:
            InputError: a record that holds something else.
        """

        def pairs(part: str, kind: type[R]) -> list[R]:
            return [kind.of(record) for record in records.get(part, ())]

        def models(part: str, kind: type[R]) -> list[OfModel[R]]:
            listed = records.get(part, ())
            return [OfModel(one.values["arm"], one.values["seed"], kind.of(one)) for one in listed]

        own: dict[str, Any] = (
            {
                "compare": Comparison.of(record),
                "seeds": record.seeds,
                "curve_samples": run_part(record, "evaluation", EvaluationSettings).curve_samples,
            }
            if (record := next(iter(records.get("compare", ())), None))
            else {}
        )
        return cls(
            **own,
            harness=pairs("harness", Harness),
            needles=pairs("needles", Needles),
            allocation=pairs("allocation", Allocation),
            long_context=models("long-context", LongContext),
            many_shot=models("many-shot", ManyShot),
            hallucination=models("hallucination", Hallucination),
            outliers=models("outliers", Outliers),
            quantization=models("quantization", Quantization),
        )

    def has(self, part: str) -> bool:
        """Whether a part was measured."""
        return bool(getattr(self, part.replace("-", "_")))


def run_part(record: Record, name: str, kind: type[Part]) -> Part:
    """A section of the settings that all runs of a comparison share, as its record has it.

    Raises:
        InputError: the record holds something else.
    """
    run = record.config.get("run")
    return build(kind, run.get(name) if isinstance(run, dict) else None, f"config.run.{name}")


class Floor(NamedTuple):
    """What a share of right answers has to exceed."""

    guess: float
    """What a system without the ability scores."""
    answers: int
    """The number of answers behind the share of one model."""

    def exceeded_by(self, share: float) -> bool:
        """Whether a share exceeds the floor by a margin, and by more than chance would explain (95 %, Wilson)."""
        shown = wilson_interval(round(share * self.answers), self.answers)[0] > self.guess
        return shown and share > self.guess + FLOOR_MARGIN


def pooled(floors: Iterable[Floor]) -> Floor | None:
    """The floor of the mean over cells."""
    listed = list(floors)
    if not listed:
        return None
    return Floor(statistics.fmean(floor.guess for floor in listed), sum(floor.answers for floor in listed))


def by_seed(models: Sequence[OfModel[R]], value: Callable[[R], Value | None]) -> dict[str, list[Value | None]]:
    """Arm to what each seed's model has; None where a model was not measured."""
    known = {(model.arm, model.seed): value(model.result) for model in models}
    return {arm: [known.get((arm, seed)) for seed in seeds_of(models)] for arm in ARMS}


def seeds_of(models: Sequence[OfModel[Any]]) -> list[int]:
    """The seeds in the order of ``by_seed``."""
    return sorted({model.seed for model in models})


def compared(name: str) -> Callable[[Found], Series]:
    """A metric of the comparison."""

    def read(found: Found) -> Series:
        values = found.compare.values(name) if found.compare is not None else {}
        return {arm: values.get(arm, []) for arm in ARMS}

    return read


def diverged(record: Record) -> list[int]:
    """Seeds of a comparison in which a model diverged, and so has no last loss."""
    return sorted({run.seed for run in Comparison.of(record).runs if run.is_diverged and run.seed is not None})


# ------------------------------------------------------------------------------------------ several needles

Cell = tuple[int, int, int]
"""Needles, questions and tokens of a prompt."""


def by_arm(listed: Sequence[Sequence[Row]], value: Callable[[list[Row]], float | None]) -> Series:
    """``value`` of each arm's rows, for lists that hold one seed's rows of both arms."""
    return {arm: [value(rows_of(rows, arm)) for rows in listed] for arm in ARMS}


def rows_of(rows: Sequence[Row], arm: str) -> list[Row]:
    """Those of a trained arm with the needle anywhere."""
    return [row for row in rows if row.trained and row.depth is None and row.arm.startswith(f"{arm}-seed")]


def allocated(*spans: str) -> Callable[[Found], Series]:
    """Share of Σ|A| on some spans, mean over layers, seen from the end of the question."""

    def share(rows: list[MapAllocation]) -> float | None:
        whole = next((row for row in rows if row.is_last), None)
        return None if whole is None else sum(whole.spans[span].share for span in spans)

    return lambda found: by_arm([result.rows for result in found.allocation], share)


def cells_of_allocation(found: Found) -> dict[Cell, Floor]:
    """Cells of the needle grid with as many needles as where allocation was measured."""
    asked = {row.needles for result in found.allocation for row in result.rows}
    return {cell: floor for cell, floor in needle_cells(found).items() if cell[0] in asked}


def found_there(found: Found) -> Series:
    """How often the answer is found among as many needles."""
    return right_in(found, cells_of_allocation(found))


def needle_cells(found: Found) -> dict[Cell, Floor]:
    """Cells of the needle grid with the needle anywhere."""
    return {
        cell_of(row): Floor(row.guess_rate, row.samples)
        for row in found.needles[0].summary
        if row.trained and row.depth is None
    }


def cell_of(row: Accuracy | CellScore) -> Cell:
    """The place of a row in the needle grid."""
    return row.needles, row.queries, row.length


def right_in(found: Found, cells: Iterable[Cell]) -> Series:
    """Share of right outputs, mean over some cells."""
    chosen = set(cells)

    def right(rows: list[Accuracy]) -> float | None:
        shares = [row.accuracy for row in rows if cell_of(row) in chosen]
        return statistics.fmean(shares) if shares else None

    return by_arm([result.summary for result in found.needles], right)


def telling_cells(found: Found) -> dict[Cell, Floor]:
    """Cells where the models are neither on the floor nor on the ceiling, over all seeds of both arms."""
    telling = {}
    for cell, floor in needle_cells(found).items():
        known = [share for shares in right_in(found, [cell]).values() for share in shares if share is not None]
        mean = statistics.fmean(known)
        if Floor(floor.guess, floor.answers * len(known)).exceeded_by(mean) and mean < CEILING:
            telling[cell] = floor
    return telling


def counted(found: Found) -> str:
    """N of the cells that count, and of those that do not."""
    telling = telling_cells(found)
    named = [
        ", ".join(str(cell[0]) for cell in needle_cells(found) if (cell in telling) == counts)
        for counts in (True, False)
    ]
    return f"N = {named[0] or 'none'}" + (f", not {named[1]}" if named[1] else "")


# ------------------------------------------------------------------------------------------ single models


def largest(what: str) -> Callable[[Found], Series]:
    """The largest value over all layers."""

    def read(result: Outliers) -> float:
        return next(row.top["1"] for row in result.rows if (row.what, row.layer) == (what, "all"))

    return lambda found: by_seed(found.outliers, read)


def lost_to_four_bits(found: Found) -> Series:
    """What attention logits in 4 bits cost in loss."""

    def read(result: Quantization) -> float | None:
        losses = {row.bits: row.loss for row in result.rows}
        return losses[4] - losses[None] if {4, None} <= losses.keys() else None

    return by_seed(found.quantization, read)


def gained(found: Found) -> Series:
    """By how much the preceding text lowers the loss at the end."""
    return by_seed(found.long_context, lambda result: result.tail.context_gain if result.tail else None)


def loss_at_the_end(found: Found) -> Series:
    """Loss behind the whole window."""
    return by_seed(found.long_context, lambda result: result.tail.loss if result.tail else None)


def most_shots(found: Found) -> Series:
    """Accuracy at the largest number of examples, mean over tasks."""
    return by_seed(found.many_shot, lambda result: statistics.fmean(at_most_shots(result)))


def at_most_shots(result: ManyShot) -> list[float]:
    """The accuracy of each task at its largest number of examples."""
    return [task.rows[-1].accuracy for task in result.tasks.values()]


def in_orders(result: ManyShot) -> list[tuple[TaskShots, OverOrders]]:
    """Tasks whose examples came in random orders."""
    return [(task, task.orders["random"]) for task in result.tasks.values() if task.orders]


def mean_of_orders(found: Found) -> Series:
    """Accuracy, mean over orders and tasks; None where no orders were drawn."""

    def read(result: ManyShot) -> float | None:
        means = [orders.mean_accuracy for _, orders in in_orders(result)]
        return statistics.fmean(means) if means else None

    return by_seed(found.many_shot, read)


def flips(found: Found) -> Series:
    """Flips between two orders divided by chance's, all tasks together; None where no orders were drawn."""

    def read(result: ManyShot) -> float | None:
        table = by_task(result)
        return None if table is None else flips_against_chance(*table.mean(0).tolist())

    return by_seed(found.many_shot, read)


def by_task(result: ManyShot) -> numpy.ndarray[Any, Any] | None:
    """(tasks, 2): flips between two orders and accuracy, weighted so that their means are those of all answers."""
    tasks = in_orders(result)
    if not tasks:
        return None
    sizes = numpy.array([task.samples for task, _ in tasks], dtype=float)
    rows = numpy.array([[orders.pair_flips, orders.mean_accuracy] for _, orders in tasks], dtype=float)
    return rows * (sizes / sizes.mean())[:, None]


def majority(found: Found) -> Floor | None:
    """What always naming one label scores."""
    tasks = found.many_shot[0].result.tasks.values()
    return pooled(Floor(task.majority_rate, task.samples) for task in tasks)


def downstream(found: Found) -> Series:
    """Mean over tasks and numbers of examples."""

    def read(result: Harness, arm: str) -> float | None:
        values = [row.value for row in scored(result, arm)]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(values) else None

    return {arm: [read(result, arm) for result in found.harness] for arm in ARMS}


def scored(result: Harness, *arms: str) -> list[TaskScore]:
    """Rows of tasks that have a metric."""
    names = tuple(f"{arm}-seed" for arm in arms)
    return [row for row in result.rows if row.metric is not None and PurePath(row.model).name.startswith(names)]


def without_reading(found: Found) -> Floor | None:
    """What the better of a uniform choice and the commonest place scores, mean over the same tasks."""
    rows = scored(found.harness[0], BASELINE)
    floor = pooled(Floor(max(row.guess_rate or 0.0, row.constant_rate or 0.0), row.samples) for row in rows)
    once = {row.task: row.samples for row in rows}  # other numbers of examples ask about the same rows
    return None if floor is None else floor._replace(answers=sum(once.values()))


def of_system(result: Hallucination, system: str) -> list[SystemScore]:
    """The scores of a system on each data set."""
    return [row for task in result.tasks.values() for row in task.systems if row.system == system]


def faithful(found: Found) -> Series:
    """Share of outputs that the judge found true of the text, mean over data sets."""
    return by_seed(
        found.hallucination, lambda result: statistics.fmean(row.accuracy for row in of_system(result, MODEL))
    )


def untrue(found: Found) -> Floor | None:
    """Nothing need be true; the answers of one model."""
    return pooled(Floor(0.0, row.samples) for row in of_system(found.hallucination[0].result, MODEL))
