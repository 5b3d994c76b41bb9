"""Presentation of records of ``antiphase tokenize``."""

from __future__ import annotations

from antiphase.base.records import Record
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table


def ratios(record: Record) -> Table | None:
    """Pieces per word of each tokenizer."""
    rows = [
        [row["tokenizer"], row["vocabulary"], row["words"], row["pieces"], row["pieces_per_word"], row["unknown"]]
        for row in record.values["tokenizers"]
    ]
    columns = [
        Column("Tokenizer"), Column("Entries", "integer"), Column("Words", "integer"), Column("Pieces", "integer"),
        Column("Pieces per word", "number"), Column("Unknown pieces", "integer"),
    ]  # fmt: skip
    notes = ["Words by one rule for all: a Han character or a run of one kana is a word, elsewhere letters and digits "
             "between spaces; punctuation counts."]  # fmt: skip
    if record.values["learned_from"] == "text":
        notes.append(
            "Pieces were learned from the text itself, so the ratios flatter; --data gives them a real corpus."
        )
    return Table(title="Pieces per word", columns=columns, rows=rows, note=" ".join(notes))


def pieces(record: Record) -> list[Table]:
    """Words, pieces and ids, one table per tokenizer."""
    return [
        Table(
            title=f"Pieces of {found['tokenizer']}",
            columns=[Column("Words"), Column("Pieces"), Column("In the vocabulary"), Column("Ids")],
            rows=[
                [
                    " ".join(row["words"]),
                    " | ".join(piece["text"] for piece in row["pieces"]),
                    " | ".join(piece["piece"] for piece in row["pieces"]),
                    " ".join(str(piece["id"]) for piece in row["pieces"]),
                ]
                for row in found["rows"]
            ],
            is_matrix=True,
        )
        for found in record.values["tokenizers"]
    ]


PRESENTATION = Presentation(
    introduction="One text cut by several tokenizers: spaces are shown as ␣, other characters without a shape as "
    "escapes, and 日[1/3] is the first of three tokens that make up one character.",
    tables=lambda record: [*pieces(record), ratios(record)],
)
