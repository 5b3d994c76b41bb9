"""Figures of the studies in ``evidence.yaml``, from records of runs, into docs/images.

python benchmarks/evidence_figures.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))  # for imports of the neighbouring scripts
from evidence_effects import Results
from evidence_tables import found

from antiphase.report.figures import figure_bytes
from antiphase.report.plots import COLOURS, MARKERS, STYLE

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
STARTS = {"0.02": "0.02 everywhere", "authors": "the authors'"}


def main() -> None:
    """Write every figure whose runs are complete."""
    figure = loss_by_start(found("factorial"))
    (IMAGES / "factorial.png").write_bytes(figure_bytes(figure, "png"))


@matplotlib.rc_context(STYLE)
def loss_by_start(results: Results) -> Figure:
    """A line per kind of layer from one initialization to the other, with a mark per seed."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    starts = results.factors["start"]
    kinds = [(kind, norm) for kind in results.factors["attention"] for norm in results.factors["head norm"]]
    for index, (kind, norm) in enumerate(kinds):
        rows = [results.losses[results.combinations.index((kind, norm, start))] for start in starts]
        shift = 0.03 * (index - (len(kinds) - 1) / 2)
        places = [place + shift for place in range(len(starts))]
        colour = COLOURS[results.factors["attention"].index(kind)]
        line = "-" if norm == "with" else "--"
        axes.plot(places, [row.mean() for row in rows], line, color=colour, label=f"{kind}, {norm} head norm")
        for place, row in zip(places, rows, strict=True):
            axes.plot([place] * len(row), row, MARKERS[index], color=colour, fillstyle="none", markersize=6)
    axes.set_xticks(range(len(starts)), [STARTS[start] for start in starts])
    axes.set_xlim(-0.3, len(starts) - 0.7)
    axes.set(title="Held-out loss after 2.5M tokens", xlabel="start", ylabel="nats per token")
    axes.legend(fontsize=9, loc="upper right")
    return figure


if __name__ == "__main__":
    main()
