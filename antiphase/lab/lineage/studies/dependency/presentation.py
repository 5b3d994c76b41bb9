"""Presentation of records of ``antiphase study dependency``."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from antiphase.base.records import Record
from antiphase.lab.lineage.studies.dependency import Dependency, DistanceMean, Mean
from antiphase.lab.lineage.studies.style import handles, style_of
from antiphase.lab.pages.plots import PERCENT, STYLE, legend_below
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, present


def accuracies(record: Record) -> Table | None:
    """Accuracy of each model by dependency length."""
    found = Dependency.of(record)
    rows = found.summary
    distances = sorted({row.distance for row in rows})
    held_out = {row.distance for row in rows if row.held_out}
    known = {(row.model, row.distance): row for row in rows if row.trained}
    cells = [
        [model, *(_mean_or_counts(known.get((model, distance))) for distance in distances)] for model in found.models
    ]
    floors = {(row.shortcut, row.distance): row.accuracy for row in found.shortcuts}
    for name in dict.fromkeys(row.shortcut for row in found.shortcuts):
        cells.append([f"({name})", *(f"{100 * floors[name, distance]:.0f}" for distance in distances)])
    untrained = present(row.accuracy for row in rows if not row.trained)
    columns = [
        Column("Model"),
        *(Column(f"{distance}{'*' if distance in held_out else ''}", "number") for distance in distances),
    ]
    note = (
        "Per cent of verbs given the right number, by words between verb and subject; mean over "
        f"{len(record.seeds)} seed{'' if len(record.seeds) == 1 else 's'}; * was not in training. Guess: "
        f"{100 * found.guess_rate:g} %, untrained models {100 * min(untrained):.0f} to "
        f"{100 * max(untrained):.0f} %. In parentheses: what the number of one noun scores, or that of most nouns, "
        "without regard to clauses. A seed has learned if it is more than half of the way from the best of them to "
        "100 %."
    )
    if any(row.learned for row in rows):
        note += " Where some seeds learned and others did not, a cell says how many did, in the place of a mean."
    return Table(title="Accuracy by dependency length", columns=columns, rows=cells, note=note, is_matrix=True)


@Dependency.from_record
def accuracy_details(found: Dependency) -> Table | None:
    """Every mean with its interval, also for sentences whose nearest noun has the other number."""
    rows = [
        [
            row.model, "trained" if row.trained else "untrained", row.distance,
            "no" if row.held_out else "yes", *_with_interval(row), *_with_interval(row.misled),
        ]
        for row in found.summary
    ]  # fmt: skip
    columns = [
        Column("Model"), Column("State"), Column("Words between", "integer"), Column("In training"),
        Column("Accuracy", "percent"), Column("95 %", "number"), Column("Nearest noun misleads", "percent"),
        Column("95 % of these", "number"),
    ]  # fmt: skip
    kind = found.summary[0].interval_is
    return Table(title="Accuracy by dependency length in full", columns=columns, rows=rows, note=f"Intervals: {kind}.")


@Dependency.from_record
def dependency_runs(found: Dependency) -> Table | None:
    """One row per model and seed."""
    rows = [
        [run.model, run.seed, run.parameters, run.development_accuracy, run.best_epoch, run.seconds]
        for run in found.runs
    ]
    columns = [
        Column("Model"), Column("Seed", "integer"), Column("Parameters", "integer"),
        Column("Development accuracy", "percent"), Column("Best epoch", "integer"), Column("Seconds", "integer"),
    ]  # fmt: skip
    return Table(title="Runs of the study", columns=columns, rows=rows)


def _mean_or_counts(row: Mean | None) -> str | None:
    """Per cent, or for example ``2 of 3`` if some seeds learned and others did not."""
    if row is not None and row.learned:
        return "{} of {}".format(*row.learned)
    return None if row is None or row.accuracy is None else f"{100 * row.accuracy:.0f}"


def _with_interval(row: Mean) -> list[float | str | None]:
    """Mean and interval, or counts if some seeds learned and others did not."""
    if row.learned:
        return ["learned: {} of {}".format(*row.learned), None]
    return [row.accuracy, "–".join(f"{100 * bound:.1f}" for bound in row.interval) if row.interval else None]


SHIFT = 0.012
"""Offset of neighbouring models along the axis of distances, so that equal accuracies remain visible."""


@Dependency.from_record
@matplotlib.rc_context(STYLE)
def accuracy_by_distance(found: Dependency) -> Figure | None:
    """Accuracy by distance between subject and verb, on all sentences and on those with a misleading nearest noun."""
    rows, models = trained_rows(found), found.models
    figure = Figure(figsize=(11.5, 4.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for part, (axes, title) in enumerate(
        zip(panels, ("All sentences", "The nearest noun has the other number"), strict=True)
    ):
        for index, name in enumerate(models):
            own = sorted((row for row in rows if row.model == name), key=lambda row: row.distance)
            style = style_of(name)
            x = [row.distance * (1 + SHIFT * (index - (len(models) - 1) / 2)) for row in own]
            # a mean of seeds that learned and seeds that did not describes neither, so there is no point
            y = [float("nan") if (one := row.parts[part]).learned else one.accuracy for row in own]
            axes.plot(x, y, style["linestyle"], color=style["color"], linewidth=1.3, label=name)
            for place, row, height in zip(x, own, y, strict=True):
                filled = "white" if row.held_out else style["color"]
                mark = {"color": style["color"], "markerfacecolor": filled, "linestyle": "", "marker": style["marker"]}
                axes.plot(place, height, markersize=5.5, **mark)
                if row.parts[part].learned:
                    seeds = _of_seeds(found, row, is_misled=part == 1)
                    axes.plot([place] * len(seeds), seeds, markersize=3.2, alpha=0.7, **mark)
                if interval := row.parts[part].interval:
                    low, high = (min(1.0, max(0.0, bound)) for bound in interval)
                    axes.vlines(place, low, high, color=style["color"], linewidth=1, alpha=0.6)
        axes.axhline(found.guess_rate, color="#555555", linewidth=1.2, linestyle=":")
        floors = _best_shortcuts(found, is_misled=part == 1)
        axes.plot(list(floors), list(floors.values()), color="#555555", linewidth=1.2, linestyle=(0, (1, 3)))
        axes.set_xscale("log")
        distances = sorted({row.distance for row in rows})
        axes.set_xticks(distances, [str(distance) for distance in distances])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(title=title, xlabel="words between subject and verb")
        axes.yaxis.set_major_formatter(PERCENT)
    panels[0].set_ylabel("right number of the verb")
    means = present(part.accuracy for row in rows for part in row.parts)
    lowest = min(means + present(part.accuracy for row in found.rows for part in (row, row.misled)))
    panels[0].set_ylim(min(0.45, lowest - 0.03), 1.02)
    panels[1].text(
        1.01, found.guess_rate, "guess", transform=panels[1].get_yaxis_transform(), va="center", fontsize=9.5
    )
    legend_below(figure, min(4, len(models)), handles(models))
    return figure


def _of_seeds(found: Dependency, mean: DistanceMean, *, is_misled: bool) -> list[float]:
    """The accuracies of single seeds behind a mean."""
    known = (mean.model, mean.distance, mean.trained)
    own = [row for row in found.rows if (row.model, row.distance, row.trained) == known]
    return present(row.misled.accuracy if is_misled else row.accuracy for row in own)


def _best_shortcuts(found: Dependency, *, is_misled: bool) -> dict[int, float]:
    """The highest score by distance of what needs no clauses."""
    best: dict[int, float] = {}
    for row in found.shortcuts:
        score = row.misled if is_misled else row.accuracy
        if score is not None:
            best[row.distance] = max(score, best.get(row.distance, 0.0))
    return best


def trained_rows(found: Dependency) -> list[DistanceMean]:
    """Means after training."""
    return [row for row in found.summary if row.trained]


def _caption(record: Record) -> str:
    found = Dependency.of(record)
    kind = trained_rows(found)[0].interval_is
    return (
        "Filled marks are lengths of the training sentences, hollow ones were only tested; bars are 95 % intervals "
        f"({kind}). Where some seeds learned and others did not, small marks are single seeds. The widely dotted "
        "line is the best of the shortcuts in the table, which need no clauses. Sentences come in pairs that differ "
        "in the subject's number alone: what does not reach the subject is right in half of them. At a length left "
        "out between trained ones, no noun so far back was ever the subject in training: a model that knows places "
        "and not clauses looks past it. On the right are the sentences in which the noun nearest to the verb has "
        "the other number."
    )


def _alternative(record: Record) -> str:
    rows = trained_rows(Dependency.of(record))
    farthest = max(row.distance for row in rows)
    ends = [f"{row.model} {_mean_or_counts(row)}" for row in rows if row.distance == farthest]
    return f"Line charts of accuracy over words between subject and verb. At {farthest} words: {', '.join(ends)}."


PRESENTATION = Presentation(
    introduction="Models of one width, from recurrent networks to differential attention, learned to name the number "
    "of a verb from generated sentences whose clauses have some lengths, and were tested at those and at others.",
    tables=lambda record: [accuracies(record)],
    figures={
        "study-dependency": Drawing(
            draw=accuracy_by_distance, title="Accuracy by dependency length", caption=_caption, alternative=_alternative
        )
    },
    details=lambda record: [accuracy_details(record), dependency_runs(record)],
)
