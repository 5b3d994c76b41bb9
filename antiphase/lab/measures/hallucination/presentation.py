"""Records of ``antiphase evaluate hallucination`` as tables, with the paper's numbers, and a bar chart of verdicts."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.lab.measures.hallucination import GOLD, LEAD, MODEL, WRONG, Hallucination, SystemScore
from antiphase.lab.pages.plots import PERCENT, STYLE, legend_below, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, percents_text, table_of

PUBLISHED: dict[str, tuple[tuple[str, float, float], ...]] = {
    "summarization": (("XSum", 0.44, 0.53), ("CNN/DM", 0.32, 0.41), ("MultiNews", 0.42, 0.61)),
    "question answering": (("Qasper", 0.28, 0.39), ("HotpotQA", 0.36, 0.46), ("2WikiMQA", 0.29, 0.36)),
}
"""Data set, Transformer, DIFF: shares without hallucination according to GPT-4o, 3B models (2410.05258, table 4)."""
WORDS_OF = {LEAD: "first three sentences", GOLD: "reference", WRONG: "reference made wrong"}
PARTS = (
    ("right", "free of hallucination", "#0072B2", ""),
    ("unjudged", "unjudged", "#dddddd", "////"),
    ("wrong", "not free of it", "#D55E00", ""),
    ("empty", "empty", "#7a3300", ""),
)
"""Count, label, colour and hatching; ``wrong`` is drawn without empty outputs."""


def _named(found: Hallucination, row: SystemScore) -> str:
    """The name of a system for readers; for a model, the last part of its path."""
    return WORDS_OF.get(row.system) or found.model.rstrip("/").rpartition("/")[2]


def _measured(found: Hallucination) -> list[tuple[str, SystemScore]]:
    """Data sets and scores of the model and its control."""
    return [(name, row) for name, task in found.tasks.items() for row in task.systems if row.system in (MODEL, LEAD)]


@Hallucination.from_record
def faithful(found: Hallucination) -> Table | None:
    """Verdicts on the model and the control for each data set."""
    if not found.tasks:
        return None
    columns = [Column("Data"), Column("System"), Column("Free of it", "percent"), Column("95 %"),
               Column("At most", "percent"), Column("Unjudged", "integer"), Column("Empty", "integer"),
               Column("Outputs", "integer")]  # fmt: skip
    rows: list[list[Any]] = [
        [
            name, _named(found, row), row.accuracy, percents_text(row.interval), row.accuracy_at_most, row.unjudged,
            row.empty, row.samples,
        ]
        for name, row in _measured(found)
    ]  # fmt: skip
    note = (
        f"Judge: {found.judge.model}. An output without a verdict counts as not free of hallucination, and as free in "
        "the column “at most”; an empty one is wrong."
    )
    left_out = [f"{task.left_out} of {name}" for name, task in found.tasks.items() if task.left_out]
    if left_out:
        note += f" Too long for the model, so passed over: {', '.join(left_out)}."
    return Table(title="Contextual hallucination", columns=columns, rows=rows, note=note)


@Hallucination.from_record
def paper(found: Hallucination) -> Table | None:
    """The paper's table 4, for the kinds of data that were measured."""
    kinds = dict.fromkeys(task.kind for task in found.tasks.values())
    rows: list[list[Any]] = [list(row) for kind in kinds for row in PUBLISHED[kind]]
    columns = [Column("Data"), Column("Transformer-3B", "percent"), Column("DIFF-3B", "percent")]
    note = "2410.05258, table 4: free of hallucination, 100 samples of each, judged by GPT-4o."
    return table_of("The paper's numbers", columns, rows, note)


@Hallucination.from_record
def beside(found: Hallucination) -> Table | None:
    """Coverage and copying of the outputs."""
    if not _measured(found):
        return None
    rows = [
        [name, _named(found, row), row.coverage, row.entity_coverage, row.copied, row.words, row.f1]
        for name, row in _measured(found)
    ]
    columns = [Column("Data"), Column("System"), Column("Coverage", "percent"), Column("of entities", "percent"),
               Column("Copied", "percent"), Column("Words", "number"), Column("F1", "percent")]  # fmt: skip
    note = (
        "Coverage: share of the reference's content words, or of its names and numbers, that the output has. Copied: "
        "share of its words in runs of four that occur in the text. Words: its mean length. F1: SQuAD's, of answers."
    )
    return Table(title="What the outputs cover and copy", columns=columns, rows=rows, note=note)


@Hallucination.from_record
def judge_errors(found: Hallucination) -> Table | None:
    """Verdicts of the judge on outputs whose truth is (almost certainly) known."""
    rows = [
        [
            name, WORDS_OF[row.system], "not faithful" if row.system == WRONG else "faithful", row.samples,
            row.unjudged, row.judge_error, percents_text(row.judge_interval),
        ]
        for name, task in found.tasks.items()
        for row in task.systems
        if row.system != MODEL
    ]  # fmt: skip
    columns = [Column("Data"), Column("Judged"), Column("Should be"), Column("Texts", "integer"),
               Column("Unjudged", "integer"), Column("Judge's error", "percent"), Column("95 %")]  # fmt: skip
    note = (
        "Errors among the verdicts given. References written by people say things that their text does not (XSum's "
        "often), so the judge is not wrong about all of those; the first three sentences are faithful, and a reference "
        "with another entity, or another question's answer, is not."
    )
    return table_of("The judge's own error", columns, rows, note)


@Hallucination.from_record
def controls(found: Hallucination) -> Table | None:
    """Whether the judge tells references from the same references made wrong."""
    rows = [
        [name, one.texts, one.accuracy, percents_text(one.interval), one.auc, percents_text(one.auc_interval)]
        for name, task in found.tasks.items()
        if (one := task.judge) is not None
    ]
    columns = [Column("Data"), Column("Texts", "integer"), Column("Right verdicts", "percent"), Column("95 %"),
               Column("AUC", "percent"), Column("AUC, 95 %")]  # fmt: skip
    note = (
        "References and as many references made wrong; chance is 50 %, and a missing verdict is not right. AUC: how "
        "often a reference has higher odds of yes against no than a wrong one, which no preference for one of the two "
        "answers changes; only local judges give odds."
    )
    return table_of("Whether the judge can tell", columns, rows, note)


@Hallucination.from_record
def sentences(found: Hallucination) -> list[str]:
    """For each data set on which the judge is not better than chance, a sentence that says so."""
    return [
        f"On {name}, the judge is not better than chance at telling references from references made wrong ("
        + "; ".join(
            f"{what} {100 * value:.1f} %, 95 %: {percents_text(interval)}"
            for what, value, interval in (
                ("right verdicts", one.accuracy, one.interval),
                ("AUC", one.auc, one.auc_interval),
            )
            if value is not None
        )
        + f"; {one.texts} texts): its verdicts say nothing about the model."
        for name, task in found.tasks.items()
        if (one := task.judge) is not None and one.at_chance
    ]


@Hallucination.from_record
@matplotlib.rc_context(STYLE)
def verdicts(found: Hallucination) -> Figure | None:
    """A panel per data set with a bar per system; the paper's pairs of shares are below."""
    if not found.tasks:
        return None
    lines = [len(task.systems) + len(PUBLISHED[task.kind]) for task in found.tasks.values()]
    figure = Figure(figsize=(8.4, 1.0 + sum(0.6 + 0.38 * count for count in lines)), layout="constrained")
    panels = figure.subplots(len(lines), 1, squeeze=False, sharex=True, height_ratios=lines)[:, 0]
    for axes, (name, task) in zip(panels, found.tasks.items(), strict=True):
        for place, row in enumerate(task.systems):
            left = 0.0
            for key, words, colour, hatch in PARTS:
                count = getattr(row, key) - (row.empty if key == "wrong" else 0)
                axes.barh(place, count / row.samples, left=left, color=colour, hatch=hatch, edgecolor="white",
                          height=0.62, label=words)  # fmt: skip
                left += count / row.samples
        names = [visible(_named(found, row), 40) for row in task.systems]
        for place, (data, transformer, differential) in enumerate(PUBLISHED[task.kind], start=len(names)):
            axes.plot([transformer, differential], [place] * 2, color="#999999", linewidth=1.2, zorder=1)
            axes.plot(transformer, place, "o", color="white", markeredgecolor="#333333", label="paper: Transformer-3B")
            axes.plot(differential, place, "o", color="#333333", label="paper: DIFF-3B")
            names.append(f"paper: {data}")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set(title=visible(name, 60), xlim=(0, 1))
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter(PERCENT)
    legend_below(figure, 3)
    return figure


PRESENTATION = Presentation(
    introduction="A judge decided for every output whether its source text supports it. Read the verdicts beside the "
    "judge's own error, and what an output covers and copies: a model that copies the first three sentences makes no "
    "false statement.",
    tables=lambda record: [faithful(record), paper(record), beside(record), judge_errors(record), controls(record)],
    sentences=lambda record: sentences(record) or [],
    figures={
        "hallucination": Drawing(
            draw=verdicts,
            title="Verdicts",
            caption="Shares of outputs; dots are the paper's 3B models (table 4). The lower bars say how far the judge "
            "can be trusted: the first three sentences should be free of hallucination throughout, references made "
            "wrong never.",
            alternative="Stacked bars of verdicts for each system.",
        )
    },
)
