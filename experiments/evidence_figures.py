"""Figures of the studies in ``evidence.yaml``, from records of runs, into docs/images.

python -m experiments.evidence_figures
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from antiphase.lab.pages.figures import figure_bytes
from antiphase.lab.pages.plots import COLOURS, LINES, MARKERS, PERCENT, STYLE
from experiments.evidence import studies
from experiments.evidence_effects import Results, runs_of, steps_by_level
from tools.tables.evidence import found

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
GAPS = {"steps": "one setting for both arms", "steps-own": "each arm's own setting"}
"""Studies of the length of training, and their labels."""
STARTS = {"0.02": "0.02 everywhere", "authors": "the authors'"}


def main() -> None:
    """Write every figure, from the runs that are finished."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    figure = loss_by_start(found("factorial"))
    (IMAGES / "factorial.png").write_bytes(figure_bytes(figure, "png"))
    if all(map(runs_of, GAPS)):
        figure = gap_by_steps({label: found(study) for study, label in GAPS.items()})
        (IMAGES / "steps.png").write_bytes(figure_bytes(figure, "png"))
    arms, until = steps_by_level(runs_of("survival"), "attention", list(studies()["survival"]["factors"]["attention"]))
    (IMAGES / "survival.png").write_bytes(figure_bytes(learned_by(arms, until), "png"))


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


@matplotlib.rc_context(STYLE)
def gap_by_steps(studies: Mapping[str, Results]) -> Figure:
    """V1's loss minus softmax's by the length of training: a mark per seed, and the mean with its 95 % interval.

    Args:
        studies: by their labels; of the factors arm and steps, with the same steps.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    names = next(iter(studies.values())).factors["steps"]
    lengths = np.array([int(name.replace(",", "")) for name in names])
    for index, (label, results) in enumerate(studies.items()):
        arms, _ = results.factors
        places = lengths * 2 ** (0.08 * (index - (len(studies) - 1) / 2))
        for place, name in zip(places, names, strict=True):
            first, second = (results.losses[results.combinations.index((arm, name))] for arm in results.factors[arms])
            gaps = (second - first)[np.isfinite(second - first)]
            axes.plot([place] * len(gaps), gaps, MARKERS[index], color=COLOURS[index], fillstyle="none", markersize=6)
        known = [one.found for one in results.simple_effects(arms) if one.found is not None]
        means = np.array([one.estimate for one in known])
        colour, line = COLOURS[index], LINES[index]
        spread = [one.interval()[1] - one.estimate for one in known]
        axes.errorbar(places, means, spread, color=colour, linestyle=line, capsize=4, label=label)
    axes.axhline(0, color="0.4", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, names)
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    axes.set(title="Held-out loss of V1 minus that of softmax", xlabel="steps of 4,096 tokens", ylabel="nats per token")
    axes.legend(fontsize=9)
    return figure


@matplotlib.rc_context(STYLE)
def learned_by(arms: Mapping[str, Sequence[int | None]], until: int) -> Figure:
    """Share of each arm's runs that had passed 50 % by a step (Kaplan and Meier), with pointwise 95 % intervals."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    last = until + 50
    for index, (name, steps) in enumerate(arms.items()):
        ends = [until if step is None else step for step in steps]
        curve = stats.ecdf(stats.CensoredData.right_censored(ends, [step is None for step in steps])).cdf
        interval = curve.confidence_interval(0.95, method="log-log")
        # Before the first and after the last step of the data the functions are constant
        places = [0.0, *curve.quantiles, float(last)]
        shares, low, high = (
            [start, *function.probabilities, function.probabilities[-1]]
            for start, function in ((0.0, curve), (0.0, interval.low), (0.0, interval.high))
        )
        axes.step(places, shares, where="post", color=COLOURS[index], linestyle=LINES[index],
                  label=f"{name}, {len(steps)} runs")  # fmt: skip
        # Where all or none of the runs have passed, the formula gives no bound
        low, high = np.nan_to_num(np.array(low), nan=1.0), np.nan_to_num(np.array(high), nan=1.0)
        axes.fill_between(places, low, high, step="post", color=COLOURS[index], alpha=0.15, linewidth=0)
    axes.set(title="Runs that have learned retrieval", xlabel="training step", ylabel="share above 50 % accuracy")
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_xlim(0, last)
    axes.legend(fontsize=9, loc="lower right")
    return figure


if __name__ == "__main__":
    main()
