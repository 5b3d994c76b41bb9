"""Every figure of a record by name, and how figures become files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from antiphase.errors import InputError
from antiphase.records import Record
from antiphase.registry import measurement_of
from antiphase.report import (
    ablation_plots,
    benchmark_plots,
    calibration_plots,
    plots,
    reproduction_plots,
    scaling_plots,
    tuning_plots,
)
from antiphase.report.presentation import Drawing

FIGURES: dict[str, Callable[[Record], Figure | None]] = {
    "claims": reproduction_plots.claims,
    "benchmark": benchmark_plots.relative_times,
    "learning-curves": plots.learning_curves,
    "needles": plots.needle_grid,
    "allocation": plots.allocation_bars,
    "attention-map": plots.attention_maps,
    "lambda": plots.lambdas,
    "loss-laws": scaling_plots.loss_laws,
    "ablations": ablation_plots.differences,
    "gradient-norms": ablation_plots.gradients,
    "learning-rates": tuning_plots.by_rate,
    "calibrated-heads": calibration_plots.head_changes,
    "calibration-effects": calibration_plots.effect_rows,
    "calibration-sweeps": calibration_plots.sweeps,
    "calibration-screen": calibration_plots.slopes,
}
"""Figures by the name of their file, in the order of the page; None where the record has nothing for it. Those of
measurements that have a folder stand there.
"""


def drawings_of(record: Record) -> Mapping[str, Drawing]:
    """What the folder of the record's measurement draws."""
    measurement = measurement_of(record.kind)
    return {} if measurement is None else measurement.presentation.figures


def figures_of(record: Record) -> dict[str, Figure]:
    """All figures of a record by the name of their file."""
    draws = {**FIGURES, **{name: drawing.draw for name, drawing in drawings_of(record).items()}}
    return {name: figure for name, draw in draws.items() if (figure := draw(record)) is not None}


def figure_bytes(figure: Figure, format: str, dpi: int = 150) -> bytes:
    """The figure as ``svg`` or ``png``, without date or version."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
    with matplotlib.rc_context(plots.STYLE), warnings.catch_warnings():
        # A token in a script that the font lacks is drawn as a box; the table has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=format, dpi=dpi, metadata=metadata, facecolor="white")
    return buffer.getvalue()


def save_figures(record: Record, folder: Path) -> list[Path]:
    """Write every figure of the record as ``NAME.png``; returns the paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--figures {folder} cannot be made ({error.strerror}); choose another folder") from None
    paths = []
    for name, figure in figures_of(record).items():
        paths.append(folder / f"{name}.png")
        paths[-1].write_bytes(figure_bytes(figure, "png"))
    return paths
