"""Records of ``antiphase evaluate perplexity`` as a table and text."""

from __future__ import annotations

from antiphase.report import tables
from antiphase.report.presentation import Presentation

PRESENTATION = Presentation(
    introduction="How well the model predicts held-out text; lower is better.",
    tables=lambda record: [tables.perplexity(record)],
)
