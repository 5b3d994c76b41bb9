"""Records of ``antiphase evaluate many-shot`` → tables."""

from __future__ import annotations

from antiphase.records import Record
from antiphase.report.tables import Column, Table


def shots(record: Record) -> Table | None:
    """Accuracy over numbers of examples."""
    tasks = record.values.get("tasks") if record.kind == "evaluate-many-shot" else None
    if not tasks:
        return None
    columns = [Column("Task"), Column("Examples", "integer"), Column("Tokens", "integer"),
               Column("Accuracy", "percent"), Column("95 %"), Column("Guess", "percent"),
               Column("Commonest label", "percent")]  # fmt: skip
    rows = [
        [
            name, row["shots"], row["tokens"], row["accuracy"],
            f"{100 * row['interval'][0]:.1f} to {100 * row['interval'][1]:.1f} %", found["guess_rate"],
            found["majority_rate"],
        ]
        for name, found in tasks.items()
        for row in found["rows"]
    ]  # fmt: skip
    note = "Answers are decoded over the labels only. Tokens: the median prompt's."
    for field, reason in (("left_out", "Longer than the model reads"), ("too_few_rows", "Too few rows for")):
        counts = sorted({count for found in tasks.values() for count in found.get(field, ())})
        if counts:
            note += f" {reason}: {', '.join(map(str, counts))} examples."
    return Table(title="Accuracy by number of examples", columns=columns, rows=rows, note=note)


def orders(record: Record) -> Table | None:
    """Accuracy over orders of the same examples."""
    tasks = record.values.get("tasks") if record.kind == "evaluate-many-shot" else None
    rows = [
        [
            name, kind, row["shots"], len(row["accuracies"]), row["mean_accuracy"], row["margin"], row["flip_share"],
            row.get("pair_flips"), 2 * row["mean_accuracy"] * (1 - row["mean_accuracy"]), found["samples"],
            found["majority_rate"],
        ]
        for name, found in (tasks or {}).items()
        for kind, row in found["orders"].items()
    ]  # fmt: skip
    if not rows:
        return None
    columns = [Column("Task"), Column("Order"), Column("Examples", "integer"), Column("Orders", "integer"),
               Column("Mean accuracy", "percent"), Column("Best - worst", "percent"),
               Column("Answers that flip", "percent"), Column("Between two orders", "percent"),
               Column("Expected by chance", "percent"), Column("Asked", "integer"),
               Column("Commonest label", "percent")]  # fmt: skip
    note = (
        "A model that always gives one answer has margin 0: read it beside accuracy, flips and the commonest label. "
        "Expected by chance: 2p(1-p), what answers drawn anew for each order, right as often, would flip from right to "
        "wrong or back between two orders. Fewer than 200 asked decide nothing about orders."
    )
    if any("pair_flips" not in row for found in (tasks or {}).values() for row in found["orders"].values()):
        note += " An older record: it has no flips between two orders."
    return Table(title="The same examples in other orders", columns=columns, rows=rows, note=note)
