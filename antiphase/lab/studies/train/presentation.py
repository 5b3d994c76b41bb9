"""How records of ``antiphase train`` are shown."""

from __future__ import annotations

from dataclasses import replace

from antiphase.lab.studies.compare.presentation import PRESENTATION as COMPARISON

PRESENTATION = replace(
    COMPARISON,
    introduction="One training run. Accuracy is the share of first questions about a hidden fact that the model "
    "answered right.",
)
