"""How records of ``antiphase compare`` and ``antiphase train`` are shown; figures that measurements share with them."""

from __future__ import annotations

import statistics

from antiphase.records import Record
from antiphase.report import compared, plots, tables
from antiphase.report.presentation import Drawing, Presentation
from antiphase.report.tables import Table


def _introduction(record: Record) -> str:
    values, arms = record.values, tables.arms_of(record)
    seeds = len({run.get("seed") for run in tables.runs_of(record)})
    repeated = "once with one seed" if seeds == 1 else f"once with each of {seeds} seeds"
    guess = values.get("guess_rate")
    by_chance = f" ({100 * guess:.3g} % here)" if guess is not None else ""
    so_far = values.get("unfinished")
    waiting = (
        ""
        if so_far is None
        else f"{100 * so_far:.0f} % of the training is done; this page is updated while the models train.\n"
    )
    return (
        f"{waiting}Small language models that differ in one thing, the arm ({', '.join(arms)}), were trained side by "
        f"side, {repeated}; in each seed every arm read the same data in the same order. They had to find a fact in a "
        "longer text: first-query accuracy is the share of first questions that a model answered right. A model that "
        f"only names any value it has seen reaches the guess rate{by_chance}, and the untrained model shows what the "
        "architecture does before it has learned anything: read every accuracy beside those two. Seeds are "
        "repetitions; where the ranges of two arms overlap, the order may be chance."
    )


def _final_accuracies(record: Record) -> str:
    ends = []
    for arm in tables.arms_of(record):
        runs = [run for run in tables.runs_of(record) if run["arm"] == arm]
        values = tables.present((run.get("final") or {}).get("accuracy") for run in runs)
        if values:
            ends.append(f"{arm} {tables.format_value(statistics.median(values), 'percent')}")
    final = f" Median accuracy at the end: {', '.join(ends)}." if ends else ""
    return f"Line charts over optimizer steps, one colour for each arm.{final}"


def _needle_caption(record: Record) -> str:
    if len(tables.grid_points(tables.needles_of(record, "summary"))) == 1:
        return (
            "Filled marks are trained models, hollow ones the same models before training. A mark is the median over "
            "seeds, its bar their range; with one seed the bar is the Wilson 95 % interval over samples. Compare only "
            "'anywhere' with the guess rate: at depth 0 or 1, naming the first or last number is always right."
        )
    return (
        "Per cent of first questions answered right, on one colour scale. The bottom row of each panel "
        "is the guess rate of its column; untrained models, where measured, are the lower panels."
    )


def _needle_alternative(record: Record) -> str:
    words = [
        f"{row['arm']} {tables.state(row)} {tables.format_value(row.get('accuracy'), 'percent')}"
        f" ({tables.point_words(tables.grid_point(row))})"
        for row in tables.needles_of(record, "summary")
        if row.get("depth") is None
    ]
    over_all = f" Anywhere: {'; '.join(words)}." if words else ""
    return f"First-query accuracy by depth of the asked needle.{over_all}"


def _allocation_alternative(record: Record) -> str:
    rows = plots.overall_allocation(record)
    words = []
    for arm in tables.arms_of(record):
        for model in ("trained", "untrained"):
            members = [row for row in rows if (row["arm"], tables.state(row)) == (arm, model)]
            share = tables.span_mean(members, "answer", "share")
            if share is not None:
                words.append(f"{arm} {model} {tables.format_value(share, 'percent')}")
    on_answer = f" Share on the answer: {', '.join(words)}." if words else ""
    return f"Bars for each span of the prompt, arm by arm.{on_answer}"


def _chosen_heads(record: Record) -> str:
    chosen = [
        f"{arm}: layer {choice.layer}, head {choice.head}, counted from 0, with {choice.answer_weight:.3f} "
        f"of |weight| on the answer, {tables.format_value(choice.answer_share, 'percent')} of that row's Σ|A|"
        for arm, choice in plots.strongest_heads(record).items()
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
        f"{run['arm']} seed {run.get('seed')}: {', '.join(map(tables.format_value, run['lambdas']))}"
        for run in tables.runs_of(record)
        if tables.present(run.get("lambdas") or [])
    ]
    return f"Line chart of λ by layer. {'; '.join(words)}."


def lambda_table(record: Record) -> Table | None:
    """λ of every layer and run."""
    return tables.by_layer(record, "lambdas", "λ by layer")


def needle_tables(record: Record) -> list[Table | None]:
    """The grid of needles, over seeds and for each."""
    return [tables.needle_summary(record), tables.needle_cells(record)]


def allocation_tables(record: Record) -> list[Table | None]:
    """Where attention went, in all and by layer, and what knocking a span out does."""
    return [tables.allocation(record), tables.allocation(record, by_layer=True), tables.knockouts(record)]


NEEDLES = Drawing(
    draw=plots.needle_grid,
    title="Needles by depth",
    caption=_needle_caption,
    alternative=_needle_alternative,
    behind=needle_tables,
)
ALLOCATION = Drawing(
    draw=plots.allocation_bars,
    title="Where attention went",
    caption="Mean over layers and seeds of the map that the model uses (for differential attention the difference), "
    "seen from the last prompt position; dots are seeds, hatched bars untrained models. The first panel divides by "
    "Σ|A|, so subtraction cannot flatter it; the second is the signed sum, which is small for any two maps that "
    "cancel, learned or not. Where the record has them: the part of the layers' outputs that comes from a span, and "
    "how the log-probability of the right answer changes, in nats, when the answer, or as many random tokens of "
    "filler, are hidden from the last tokens in all layers.",
    alternative=_allocation_alternative,
    behind=allocation_tables,
)
FIGURES = {
    "learning-curves": Drawing(
        draw=plots.learning_curves,
        title="Learning curves",
        caption="Thin lines are single seeds, thick lines the median where every seed was measured.",
        alternative=_final_accuracies,
        behind=lambda record: [tables.runs_table(record), tables.curve_table(record)],
    ),
    "needles": NEEDLES,
    "allocation": ALLOCATION,
    "attention-map": Drawing(
        draw=plots.attention_maps,
        title="Attention on one input",
        caption=_map_caption,
        alternative=lambda record: f"Heat maps of signed attention weights. {_chosen_heads(record)}.",
        is_raster=True,
    ),
    "lambda": Drawing(
        draw=plots.lambdas,
        title="λ by layer",
        caption="λ is the weight of the second map in first − λ · second. Thin lines are seeds, the thick one their "
        "median.",
        alternative=_lambdas,
        behind=lambda record: [lambda_table(record)],
    ),
}


def _details(record: Record) -> list[Table | None]:
    return [
        compared.comparison(record), tables.runs_table(record), tables.curve_table(record), *needle_tables(record),
        tables.perplexity(record), *allocation_tables(record), lambda_table(record),
        tables.by_layer(record, "gradient_norms", "Gradient norm by layer at the end of training"),
    ]  # fmt: skip


COMPARE = Presentation(
    introduction=_introduction,
    tables=lambda record: [compared.headline(record)],
    figures=FIGURES,
    details=_details,
)
TRAIN = Presentation(
    introduction="One training run. Accuracy is the share of first questions about a hidden fact that the model "
    "answered right.",
    tables=lambda record: [compared.headline(record)],
    figures=FIGURES,
    details=_details,
)
