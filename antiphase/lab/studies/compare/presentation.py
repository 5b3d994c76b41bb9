"""How records of ``antiphase compare`` are shown."""

from __future__ import annotations

import statistics

from antiphase.base.errors import named, worded
from antiphase.base.records import Record
from antiphase.lab.measures.perplexity.presentation import losses
from antiphase.lab.measures.retrieval_presentation import (
    allocation_drawing,
    allocation_tables,
    needle_tables,
    needles_drawing,
)
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Table, format_value, present
from antiphase.lab.studies.compare import figures, tables
from antiphase.lab.studies.compare.reading import comparison_of, retrieval_of, sentences


def _introduction(record: Record) -> str:
    found = comparison_of(record)
    seeds = len({run.seed for run in found.runs})
    repeated = "once with one seed" if seeds == 1 else f"once with each of {seeds} seeds"
    so_far = found.unfinished
    waiting = "" if so_far is None else f"{_progress(record, so_far, is_stopped=bool(found.stopped))}\n"
    return (
        f"{waiting}Language models that differ in one thing, the arm ({', '.join(found.arms)}), were trained "
        f"side by side, {repeated}; in each seed every arm read the same data in the same order. A fact in a "
        "longer text is asked for: first-query accuracy is the share of first questions that a model answered right."
    )


def _curves_caption(record: Record) -> str:
    found = comparison_of(record)
    words = "Thin lines are single seeds, thick lines the median where every seed was measured."
    if len(found.arms) == 1:
        return words
    by_chance = f" ({100 * found.guess_rate:.3g} % here)" if found.guess_rate is not None else ""
    return (
        f"{words} A model that only names any value it has seen reaches the guess rate{by_chance}, and the untrained "
        f"model ({found.untrained}) shows what a model does before this training: read every accuracy beside those "
        "two. Seeds are repetitions; where the ranges of two arms overlap, the order may be chance."
    )


def _progress(record: Record, share: float, *, is_stopped: bool) -> str:
    """How far a comparison is, and what comes next."""
    percent, resume = f"{100 * share:.0f} % of the training", worded(named("resume"))
    if not is_stopped:
        return f"{percent} is done; this page is updated while the models train."
    again = record.command if resume in record.command.split() else f"{record.command} {resume}"
    return f"The comparison stopped when {percent} was done. It goes on with: {again}"


def _final_accuracies(record: Record) -> str:
    found, ends = comparison_of(record), []
    for arm in found.arms:
        values = present(run.final.accuracy for run in found.runs_of(arm))
        if values:
            ends.append(f"{arm} {format_value(statistics.median(values), 'percent')}")
    final = f" Median accuracy at the end: {', '.join(ends)}." if ends else ""
    return f"Line charts over optimizer steps, one colour for each arm.{final}"


def _chosen_heads(record: Record) -> str:
    chosen = [
        f"{arm}: layer {choice.layer}, head {choice.head}, counted from 0, with {choice.answer_weight:.3f} "
        f"of |weight| on the answer, {format_value(choice.answer_share, 'percent')} of that row's Σ|A|"
        for arm, choice in figures.strongest_heads(record).items()
    ]
    return "; ".join(chosen)


def _map_caption(record: Record) -> str:
    return (
        "One input, read by every arm. Upper maps: the head whose last prompt position puts most |weight| on "
        f"the answer, so the best case of each arm: {_chosen_heads(record)}. Lower maps: the mean over all heads "
        "and layers, where nothing was chosen. One colour scale, centred at 0; dashed frames mark the "
        "columns of the answer and the row of the last prompt position."
    )


def _lambdas(record: Record) -> str:
    words = [
        f"{run.arm} seed {run.seed}: {', '.join(map(format_value, run.lambdas))}"
        for run in comparison_of(record).runs
        if run.lambdas and present(run.lambdas)
    ]
    return f"Line chart of λ by layer. {'; '.join(words)}."


def lambda_table(record: Record) -> Table | None:
    """λ of every layer and run."""
    return tables.by_layer(comparison_of(record), lambda run: run.lambdas, "λ by layer")


FIGURES = {
    "learning-curves": Drawing(
        draw=figures.learning_curves,
        title="Learning curves",
        caption=_curves_caption,
        alternative=_final_accuracies,
        behind=lambda record: [tables.runs_table(comparison_of(record)), tables.curve_table(comparison_of(record))],
    ),
    "needles": needles_drawing(retrieval_of),
    "allocation": allocation_drawing(retrieval_of),
    "attention-map": Drawing(
        draw=figures.attention_maps,
        title="Attention on one input",
        caption=_map_caption,
        alternative=lambda record: f"Heat maps of signed attention weights. {_chosen_heads(record)}.",
        is_raster=True,
    ),
    "lambda": Drawing(
        draw=figures.lambdas,
        title="λ by layer",
        caption="λ is the weight of the second map in first − λ · second. Thin lines are seeds, the thick one their "
        "median.",
        alternative=_lambdas,
        behind=lambda record: [lambda_table(record)],
    ),
}


def _details(record: Record) -> list[Table | None]:
    found, retrieval = comparison_of(record), retrieval_of(record)
    return [
        tables.comparison(found), tables.runs_table(found), tables.curve_table(found), *needle_tables(retrieval),
        losses(found.perplexity), *allocation_tables(retrieval), lambda_table(record),
        tables.by_layer(found, lambda run: run.gradient_norms, "Gradient norm by layer at the end of training"),
    ]  # fmt: skip


PRESENTATION = Presentation(
    introduction=_introduction,
    tables=lambda record: [tables.headline(comparison_of(record)), tables.samples(comparison_of(record))],
    figures=FIGURES,
    details=_details,
    arms=lambda record: comparison_of(record).arms,
    sentences=sentences,
    finding=lambda record: comparison_of(record).verdict,
)
