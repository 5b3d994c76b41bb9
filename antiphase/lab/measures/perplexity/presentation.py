"""Records of ``antiphase evaluate perplexity`` as a table and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphase.lab.measures.perplexity import Perplexity
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table, readable, table_of


def losses(rows: Sequence[Any]) -> Table | None:
    """Held-out losses, with all fields of the rows."""
    styles = {"loss": "loss", "arm": "text"}
    names = list(vars(rows[0])) if rows else []
    columns = [Column(readable(name).capitalize(), styles.get(name, "number")) for name in names]
    return table_of("Perplexity", columns, [list(vars(row).values()) for row in rows])


PRESENTATION = Presentation(
    introduction="How well the model predicts held-out text; lower is better.",
    tables=lambda record: [Perplexity.from_record(lambda found: losses(found.rows))(record)],
)
