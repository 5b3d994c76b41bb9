"""Records → one self-contained HTML page: words, tables and figures, without network or JavaScript."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from antiphase.errors import InputError
from antiphase.records import Record, write_atomically
from antiphase.registry import measurement_of
from antiphase.report import (
    ablation_plots,
    benchmarks,
    compared,
    figures,
    plots,
    summary,
    tables,
    tuning_plots,
)
from antiphase.report.presentation import words_for
from antiphase.report.tables import Table

TableMaker = Callable[[Record], list[Table | None]]

RASTER = (
    "attention-map",
    "calibrated-heads",
)
"""Figures embedded as PNG: one shape for each cell of a map would make an SVG of megabytes."""
NEEDED_WIDTH = 0.66
"""Share of its natural width below which a figure scrolls sideways: its text stays readable on a phone."""


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A figure with its words and the tables that lie behind it."""

    name: str
    title: str
    caption: str
    alternative: str
    source: str
    width: int
    height: int
    smallest_width: int
    tables: list[Table]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One record on the page."""

    anchor: str
    title: str
    colours: dict[str, str]
    paragraphs: list[str]
    main_tables: list[Table]
    sentences: list[str]
    verdict: str
    figures: list[PageFigure]
    provenance: Table
    detail_tables: list[Table]


def write_report(records: Sequence[Record], output: Path, *, refresh: int | None = None) -> Path:
    """Write one HTML page with a section for each record, in order. Returns ``output``.

    ``refresh``: seconds after which a browser loads the page again, for one that is going to change.

    Raises:
        InputError: there is no record, or ``output`` is a folder or cannot be written.
    """
    output = Path(output)
    if not records:
        raise InputError("a report needs at least one record: name the folder of a run")
    if output.is_dir():
        raise InputError(f"--output {output} is a folder; name a file, for example {output / 'report.html'}")
    if output.suffix not in (".html", ".htm"):
        raise InputError(f"--output {output} must end in .html, so that no record or other file is written over")
    sections = [_section(record, f"record-{number}") for number, record in enumerate(records, start=1)]
    page = resources.files(__package__) / "page.html"
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(page.read_text(encoding="utf-8"))
    text = template.render(title="antiphase report", sections=sections, refresh=refresh)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, text.encode("utf-8", errors="replace"))  # a token may be half a character
    except OSError as error:
        raise InputError(f"--output {output} cannot be written ({error.strerror}); choose another file") from None
    return output


def _section(record: Record, anchor: str) -> Section:
    drawn = [_page_figure(record, name, figure) for name, figure in figures.figures_of(record).items()]
    shown = {table.title for figure in drawn for table in figure.tables}
    main_tables = summary.main_tables(record)
    shown |= {table.title for table in main_tables}
    measurement = measurement_of(record.kind)
    own = [] if measurement is None else measurement.presentation.details(record)
    details = [*own, *(make(record) for make in DETAILS)]
    arms = tables.arms_of(record)
    return Section(
        anchor=anchor,
        title=_title(record),
        colours={arm: plots.arm_colour(arms, arm) for arm in arms},
        paragraphs=_paragraphs(record),
        main_tables=main_tables,
        sentences=compared.sentences(record),
        verdict=compared.verdict_of(record) if record.kind == "compare" else "",
        figures=drawn,
        provenance=tables.provenance(record),
        detail_tables=[table for table in details if table is not None and table.title not in shown],
    )


def _lambda_table(record: Record) -> Table | None:
    return tables.by_layer(record, "lambdas", "λ by layer")


def _gradient_table(record: Record) -> Table | None:
    return tables.by_layer(record, "gradient_norms", "Gradient norm by layer at the end of training")


BEHIND: dict[str, TableMaker] = {
    "learning-curves": lambda record: [tables.runs_table(record), tables.curve_table(record)],
    "needles": lambda record: [tables.needle_summary(record), tables.needle_cells(record)],
    "allocation": lambda record: [
        tables.allocation(record),
        tables.allocation(record, by_layer=True),
        tables.knockouts(record),
    ],
    "lambda": lambda record: [_lambda_table(record)],
}
"""The tables behind each figure."""
DETAILS: tuple[Callable[[Record], Table | None], ...] = (
    compared.comparison,
    tables.runs_table,
    tables.curve_table,
    tables.needle_summary,
    tables.needle_cells,
    tables.perplexity,
    tables.allocation,
    lambda record: tables.allocation(record, by_layer=True),
    tables.knockouts,
    _lambda_table,
    _gradient_table,
    benchmarks.timing,
    tables.settings,
    tables.environment,
)
"""Every table; those already shown with a figure are left out of the details."""


def _page_figure(record: Record, name: str, figure: Figure) -> PageFigure:
    own = figures.drawings_of(record).get(name)
    if own is None:
        title, caption, alternative = WORDS[name](record)
        is_raster, behind = name in RASTER, BEHIND[name](record) if name in BEHIND else []
    else:
        title, caption, alternative = own.title, words_for(own.caption, record), words_for(own.alternative, record)
        is_raster, behind = own.is_raster, own.behind(record)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())  # CSS: 96 pixels an inch
    return PageFigure(
        name=name,
        title=title,
        caption=caption,
        alternative=alternative,
        source=_embedded(figure, is_raster=is_raster),
        width=width,
        height=height,
        smallest_width=round(NEEDED_WIDTH * width),
        tables=[table for table in behind if table is not None],
    )


def _embedded(figure: Figure, *, is_raster: bool) -> str:
    """A figure as the source of an image."""
    kind, media_type = ("png", "image/png") if is_raster else ("svg", "image/svg+xml")
    return f"data:{media_type};base64,{base64.b64encode(figures.figure_bytes(figure, kind)).decode('ascii')}"


FRAGMENT = """{% for table in tables %}<table><caption>{{ table.title }}</caption>
<tr>{% for column in table.columns %}<th>{{ column.name }}</th>{% endfor %}</tr>
{% for row in table.text() %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% if table.note %}<p>{{ table.note }}</p>{% endif %}
{% endfor %}{% for source in sources %}<img src="{{ source }}" style="max-width: 100%">
{% endfor %}"""


def fragment(record: Record) -> str:
    """The main tables and the figures of a record as HTML that stands in other pages, such as notebooks."""
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(FRAGMENT)
    sources = [_embedded(figure, is_raster=True) for figure in figures.figures_of(record).values()]
    return template.render(tables=summary.main_tables(record), sources=sources)


def _title(record: Record) -> str:
    arms = tables.arms_of(record)
    if record.kind == "compare":
        return " against ".join(arms) if len(arms) == 2 else f"comparison of {', '.join(arms)}"
    title = f"{record.kind}: {', '.join(arms)}" if arms and arms != ["model"] else record.kind
    own = [str(record.values["arm"])] if "arm" in record.values else []
    own += [f"seed {record.values['seed']}"] if "seed" in record.values else []
    return ", ".join([title, *own])


def _paragraphs(record: Record) -> list[str]:
    """What was measured and how to read it, in plain words."""
    values, arms = record.values, tables.arms_of(record)
    if record.kind == "compare":
        seeds = len({run.get("seed") for run in tables.runs_of(record)})
        repeated = "once with one seed" if seeds == 1 else f"once with each of {seeds} seeds"
        guess = values.get("guess_rate")
        by_chance = f" ({100 * guess:.3g} % here)" if guess is not None else ""
        so_far = values.get("unfinished")
        waiting = [] if so_far is None else [f"{100 * so_far:.0f} % of the training is done; this page is growing."]
        return [
            *waiting,
            f"Small language models that differ in one thing, the arm ({', '.join(arms)}), were trained side "
            f"by side, {repeated}; in each seed every arm read the same data in the same order. They had to "
            "find a fact in a longer text: first-query accuracy is the share of first questions that a model "
            f"answered right. A model that only names any value it has seen reaches the guess "
            f"rate{by_chance}, and the untrained model shows what the architecture does before it has "
            "learned anything: read every accuracy beside those two. Seeds are repetitions; where the ranges "
            "of two arms overlap, luck may have chosen the order.",
        ]
    measurement = measurement_of(record.kind)
    if measurement is not None:
        return [measurement.presentation.introduction]
    known = {
        "reproduce": "The experiments of the Differential Transformer paper at a small scale: pairs of models that "
        "differ in their attention alone, equal in parameters, data and order of data. Each claim has the paper's "
        "numbers and a verdict by rule: reproduced or not seen where the paired 95 % interval excludes 0, contradicted "
        "only at the paper's own scale, not testable where the models cannot do what would show it. Sections of single "
        "models show the first seed. Models this small prove nothing of large ones.",
        "budget": "What a training run takes, from its settings alone; the model was built on the meta device.",
        "train": "One training run. Accuracy is the share of first questions about a hidden fact that the "
        "model answered right.",
        "scaling": "Every dot is a model trained by itself, with its own decay; the curves are laws E + A · x^(-a) "
        "fitted to all runs of an arm.",
        "ablations": "Parts of differential attention taken away or replaced, and its rivals, each trained on the same "
        "data in the same order. Parameters stand beside each row; the width of the MLP makes up for what rivals add.",
        "tune": "Every arm trained at every learning rate of one grid, so that no arm is favoured by its tuning.",
        "calibrate-search": "Every head was calibrated alone on one part of the samples and kept if the score rose; "
        "the kept ones were then judged together on the other part. Chance alone lets many heads “improve”: read the "
        "held-out gain and its interval.",
        "calibrate-apply": "The model as it is and with the plan's heads calibrated, on the same samples.",
        "calibrate-study": "The experiments of the calibration paper on this model: heads were chosen on one part of "
        "the samples, and every gain is measured on the other, beside controls with random heads and random tokens.",
        "benchmark-attention": "Differential attention beside softmax attention of equal size and beside other ways to "
        "the same difference. The candidates took turns; nothing was timed that errs more than plain attention of the "
        "same precision allows.",
        "benchmark-calibration": "Calibrated attention, every head of it, beside the attention that it replaces, and "
        "what probing a text holds beside a forward pass. The candidates took turns.",
        "benchmark-model": "Whole models of equal size: a training step (forward, backward, AdamW), the prefill of a "
        "prompt, and the tokens generated after it. The candidates took turns.",
    }
    fallback = f"Records of kind “{record.kind}” have no layout of their own: here are their single values."
    trained = (values.get("models") or {}).get("description") if record.kind == "reproduce" else None
    return [known.get(record.kind, fallback), *([f"The models: {trained}"] if trained else [])]


def _curve_words(record: Record) -> tuple[str, str, str]:
    runs, arms = tables.runs_of(record), tables.arms_of(record)
    ends = []
    for arm in arms:
        values = tables.present((run.get("final") or {}).get("accuracy") for run in runs if run["arm"] == arm)
        if values:
            ends.append(f"{arm} {tables.format_value(statistics.median(values), 'percent')}")
    final = f" Median accuracy at the end: {', '.join(ends)}." if ends else ""
    caption = "Thin lines are single seeds, thick lines the median where every seed was measured."
    return "Learning curves", caption, f"Line charts over optimizer steps, one colour for each arm.{final}"


def _needle_words(record: Record) -> tuple[str, str, str]:
    rows = tables.needles_of(record, "summary")
    if len(tables.grid_points(rows)) == 1:
        caption = (
            "Filled marks are trained models, hollow ones the same models before training. A mark is the median over "
            "seeds, its bar their range; with one seed the bar is the Wilson 95 % interval over samples. Compare only "
            " 'anywhere' with the guess rate: at depth 0 or 1, naming the first or last number is always right."
        )
    else:
        caption = (
            "Per cent of first questions answered right, on one colour scale. The bottom row of each panel "
            "is the guess rate of its column; untrained models, where measured, are the lower panels."
        )
    words = [
        f"{row['arm']} {tables.state(row)} {tables.format_value(row.get('accuracy'), 'percent')}"
        f" ({tables.point_words(tables.grid_point(row))})"
        for row in rows
        if row.get("depth") is None
    ]
    over_all = f" Anywhere: {'; '.join(words)}." if words else ""
    return "Needles by depth", caption, f"First-query accuracy by depth of the asked needle.{over_all}"


def _allocation_words(record: Record) -> tuple[str, str, str]:
    rows = plots.overall_allocation(record)
    words = []
    for arm in tables.arms_of(record):
        for model in ("trained", "untrained"):
            members = [row for row in rows if (row["arm"], tables.state(row)) == (arm, model)]
            share = tables.span_mean(members, "answer", "share")
            if share is not None:
                words.append(f"{arm} {model} {tables.format_value(share, 'percent')}")
    caption = (
        "Mean over layers and seeds of the map that the model uses (for differential attention the "
        "difference), seen from the last prompt position; dots are seeds, hatched bars untrained models. The "
        "first panel divides by Σ|A|, so subtraction cannot flatter it; the second is the signed sum, "
        "which is small for any two maps that cancel, learned or not. Where the record has them: the part of the "
        "layers' outputs that comes from a span, and how the log-probability of the right answer changes, in nats, "
        "when the answer, or as many random tokens of filler, are hidden from the last tokens in all layers."
    )
    on_answer = f" Share on the answer: {', '.join(words)}." if words else ""
    return "Where attention went", caption, f"Bars for each span of the prompt, arm by arm.{on_answer}"


def _map_words(record: Record) -> tuple[str, str, str]:
    chosen = [
        f"{arm}: layer {choice.layer}, head {choice.head}, counted from 0, with {choice.answer_weight:.3f} "
        f"of |weight| on the answer, {tables.format_value(choice.answer_share, 'percent')} of that row's Σ|A|"
        for arm, choice in plots.strongest_heads(record).items()
    ]
    caption = (
        "One input, read by every arm. Upper maps: the head whose last prompt position puts most |weight| on "
        f"the answer, so the best case of each arm: {'; '.join(chosen)}. Lower maps: the mean over all heads "
        "and layers, where nothing was chosen. One colour scale, centred at 0; dashed frames mark the "
        "columns of the answer and the row of the last prompt position."
    )
    return "Attention on one input", caption, f"Heat maps of signed attention weights. {'; '.join(chosen)}."


def _lambda_words(record: Record) -> tuple[str, str, str]:
    words = [
        f"{run['arm']} seed {run.get('seed')}: {', '.join(map(tables.format_value, run['lambdas']))}"
        for run in tables.runs_of(record)
        if tables.present(run.get("lambdas") or [])
    ]
    caption = "λ is the weight of the second map in first − λ · second. Thin lines are seeds, the thick one "
    caption += "their median."
    return "λ by layer", caption, f"Line chart of λ by layer. {'; '.join(words)}."


def _benchmark_words(record: Record) -> tuple[str, str, str]:
    caption = (
        "Median time of each way, divided by that of the ordinary one of equal size; below the line is faster. Bars "
        "that end at the top are longer, their number stands above them."
    )
    parts = [
        f"{row['task']}, {row['dtype']}, {row['length']:,} tokens: {row['subject']} takes {row['ratio']:.2f} times as "
        f"long as {row['baseline']}"
        for row in record.values["rows"]
    ]
    return "Time against the ordinary way", caption, "Bars. " + "; ".join(parts) + "."


WORDS: dict[str, Callable[[Record], tuple[str, str, str]]] = {
    "benchmark": _benchmark_words,
    "learning-curves": _curve_words,
    "needles": _needle_words,
    "allocation": _allocation_words,
    "attention-map": _map_words,
    "lambda": _lambda_words,
    "claims": lambda record: (
        "The paper's claims",
        "Dots are mean paired differences in per cent of the softmax arm, bars 95 % intervals over seeds; to the right "
        "the differential arm is better. The axis is linear to 10 % and logarithmic beyond. Colours are verdicts.",
        "Differences with intervals, a line for each claim.",
    ),
    "loss-laws": lambda record: (
        "Loss by size and tokens",
        "Dots are runs, curves the fitted laws.",
        "Scatter plots of held-out loss over parameters and training tokens, with a curve for each arm.",
    ),
    "calibrated-heads": lambda record: (
        "Each head calibrated alone",
        "Change of the score in points, in a search on its part of the samples, in a study on all; grey: not tried.",
        "Heatmap of layers and heads: change of the score when one head is calibrated.",
    ),
    "calibration-effects": lambda record: (
        "What each setting gains",
        "Dots are gains on samples that chose no head, bars paired 95 % intervals; one over zero shows nothing.",
        "Gains in points with intervals, a line for each setting.",
    ),
    "calibration-sweeps": lambda record: (
        "Sweeps",
        "Gain on samples that chose no head, with its paired 95 % interval, over one setting at a time.",
        "Line charts of the gain over α, β, the number of samples and the number of heads.",
    ),
    "calibration-screen": lambda record: (
        "Slopes against exact changes",
        "A dot for each head: what one backward pass foretells, and what calibrating the head does.",
        "Scatter plot of slopes and exact changes of the log probability of right answers.",
    ),
    **ablation_plots.WORDS,
    **tuning_plots.WORDS,
}
"""Title, caption and text alternative of each figure."""
