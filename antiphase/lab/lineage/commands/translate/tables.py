"""Records of ``antiphase translate`` as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphase.lab.lineage.commands.translate import Translate
from antiphase.lab.pages.tables import Column, Table, format_value


@Translate.from_record
def models(read: Translate) -> Table | None:
    """One row per model, trained and untrained, and per system without learning."""
    found = read.models
    rows: list[list[Any]] = [
        [
            row.model if row.trained else f"{row.model}, untrained", row.loss, row.token_accuracy,
            _share(row.exact_match, row.interval), row.mean_of_heads, row.best_head,
        ]
        for row in sorted(found, key=lambda row: not row.trained)
    ]  # fmt: skip
    rows += [
        [row.system, None, row.tokens_in_place, format_value(row.exact_match, "percent"), None, None]
        for row in read.baselines or []
    ]
    if found[0].chance is not None:
        rows += [
            ["any source word", None, None, None, found[0].chance, found[0].chance],
            ["source word at the same place", None, None, None, found[0].same_place, found[0].same_place],
        ]
    columns = [
        Column("Model"), Column("Loss", "loss"), Column("Tokens", "percent"), Column("Exact match", "number"),
        Column("Aligned", "percent"), Column("Best head", "percent"),
    ]  # fmt: skip
    note = (
        "On held-out pairs. Loss in nats per token and share of tokens right, after right ones; of systems that need "
        "no learning, tokens at the same place. Exact match: greedy output, in brackets the 95 % interval "
        f"({'over seeds' if found[0].seeds > 1 else 'Wilson over sentences'})."
    )
    if any(row[4] is not None for row in rows):
        note += (
            " Aligned: share of target words whose largest weight, signed in differential models, is on the right "
            "source word, by the mean of a layer's heads and by one head; both were chosen on training pairs."
        )
    return Table(title="Translation", columns=columns, rows=rows, note=note).without_empty_columns()


def _share(share: float, interval: Sequence[float]) -> str:
    low, high = (f"{100 * bound:.1f}" for bound in interval)
    return f"{format_value(share, 'percent')} [{low}–{high}]"


@Translate.from_record
def data(found: Translate) -> Table | None:
    """Number of pairs, and how the test pairs were held out."""
    if found.data is None:
        return None
    rows: list[list[Any]] = [
        ["Tested on", found.data.split],
        ["Training pairs of the first seed", found.data.training_samples],
        ["Held-out pairs of the first seed", found.data.test_samples],
        ["… whose source text occurs in training", found.data.test_sources_in_train],
    ]
    return Table(title="Pairs", columns=[Column("What"), Column("Value", "integer")], rows=rows)


@Translate.from_record
def runs(found: Translate) -> Table | None:
    """One row per run."""
    rows = [
        [
            run.model, run.seed, run.exact, run.samples, run.token_accuracy, run.loss, run.ended, run.parameters,
            run.epochs, run.seconds, run.folder,
        ]
        for run in found.runs
    ]  # fmt: skip
    columns = [
        Column("Model"), Column("Seed", "integer"), Column("Exact", "integer"), Column("of", "integer"),
        Column("Tokens right", "percent"), Column("Loss", "loss"), Column("Outputs that end", "percent"),
        Column("Parameters", "integer"), Column("Epochs", "integer"), Column("Seconds", "integer"), Column("Folder"),
    ]  # fmt: skip
    return Table(title="Runs of translators", columns=columns, rows=rows)


@Translate.from_record
def heads(found: Translate) -> Table | None:
    """Alignment accuracy of every head; one row per layer of each run."""
    aligned = [(run, run.alignment) for run in found.runs if run.alignment is not None]
    if not aligned:
        return None
    most = max(len(line) for _, alignment in aligned for line in alignment.heads)
    rows = [
        [run.model, run.seed, layer, alignment.layers[layer], *line, *[None] * (most - len(line))]
        for run, alignment in aligned
        for layer, line in enumerate(alignment.heads)
    ]
    columns = [
        Column("Model"), Column("Seed", "integer"), Column("Layer", "integer"), Column("Mean of heads", "percent"),
        *(Column(f"Head {head}", "percent") for head in range(most)),
    ]  # fmt: skip
    return Table(
        title="Alignment by head", columns=columns, rows=rows,
        note="Mean of heads: by the mean of their weights. Of signed weights the largest counts, not the largest size.",
    )  # fmt: skip
