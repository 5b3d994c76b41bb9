"""Records of ``antiphase evaluate repetition`` as a table."""

from __future__ import annotations

from antiphase.lab.measures.repetition import LONGEST, Repetition
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table, percents_text, table_of

NAMES = {"model": "the model's continuations", "text": "the text's own"}


@Repetition.from_record
def shares(found: Repetition) -> Table | None:
    """Repeated n-grams of the model and of the text."""
    lengths = range(1, LONGEST + 1)
    columns = [Column("Second halves"), Column("Texts", "integer"), Column("Tokens, mean", "number"),
               *(Column(f"{n} token{'s' if n > 1 else ''}", "percent") for n in lengths),
               Column(f"{LONGEST} tokens, 95 %")]  # fmt: skip
    rows = [
        [NAMES[row.of], row.texts, row.tokens, *(row.shares[str(n)] for n in lengths), percents_text(row.interval)]
        for row in found.rows
    ]
    return table_of("Repeated sequences", columns, rows, "Share of sequences of n tokens that occurred before.")


PRESENTATION = Presentation(
    introduction="A model that continues a text greedily may fall into loops. Compare its repeated sequences with the "
    "text's own, which repeats some words anyway.",
    tables=lambda record: [shares(record)],
)
