"""Records of ``antiphase evaluate long-context``, ``outliers`` and ``quantization`` → tables."""

from __future__ import annotations

from antiphase.records import Record
from antiphase.report.tables import Column, Table


def positions(record: Record) -> Table | None:
    """Cumulative loss at growing positions."""
    rows = record.values.get("curve") if record.kind == "evaluate-long-context" else None
    if not rows:
        return None
    columns = [Column("Tokens of context", "integer"), Column("Loss, nats per token", "loss"),
               Column("95 % over windows"), Column("Bits per byte", "loss")]  # fmt: skip
    cells = [[row["position"], row["loss"], interval_text(row["interval"]), row.get("bits_per_byte")] for row in rows]
    note = (
        f"Mean over all tokens up to there, {record.values['windows']} windows of {record.values['length']:,} tokens."
    )
    return Table(title="Loss by length of context", columns=columns, rows=cells, note=note)


def context_worth(record: Record) -> Table | None:
    """What a window's own beginning is worth at its end."""
    tail = record.values.get("tail") if record.kind == "evaluate-long-context" else None
    if not tail:
        return None
    columns = [Column("Context"), Column("Loss, nats per token", "loss"), Column("95 % over windows")]
    rows = [
        ["the window's own", tail["loss"], ""],
        ["another window's", tail["foreign_loss"], ""],
        ["another's minus own", tail["gain"], interval_text(tail["gain_interval"])],
    ]
    note = "An older record: it has no loss with little context, so the gain from context is not known."
    if "context_gain" in tail:
        rows[1:1] = [
            [f"the {tail['tokens']:,} tokens before", tail["little_loss"], ""],
            ["gain from context", tail["context_gain"], interval_text(tail["context_gain_interval"])],
        ]
        note = "The gain from context is what the rest of the window's own text takes off the loss with little of it."
    return Table(title=f"The last {tail['tokens']:,} tokens of each window", columns=columns, rows=rows, note=note)


def largest(record: Record) -> Table | None:
    """Largest attention logits and hidden states, and their kurtosis, by layer."""
    rows = record.values.get("rows") if record.kind == "evaluate-outliers" else None
    if not rows:
        return None
    places = list(dict.fromkeys(place for row in rows for place in row["top"]))
    columns = [Column("Of"), Column("Layer"), *(Column(f"Top {place}", "number") for place in places),
               Column("Median", "number"), Column("Kurtosis", "number"),
               Column("Kurtosis over channels", "number")]  # fmt: skip
    cells = [
        [
            row["what"], row["layer"], *(row["top"].get(place) for place in places), row["median"],
            row.get("kurtosis"), row.get("channel_kurtosis"),
        ]
        for row in rows
    ]  # fmt: skip
    note = (
        "Sizes |q·k| · scale and |hidden|. Kurtosis: of all signed values of a layer, 3 of normal ones. Over channels: "
        "of their root mean squares over tokens, 1 where all are equal, the width where there is one alone. Kurtoses "
        'of "all" are means over layers.'
    )
    return Table(title="Largest values", columns=columns, rows=cells, note=note)


def few_bits(record: Record) -> Table | None:
    """Loss and retrieval with attention logits in few bits."""
    rows = record.values.get("rows") if record.kind == "evaluate-quantization" else None
    if not rows:
        return None
    columns = [Column("Bits"), Column("Loss, nats per token", "loss"), Column("Retrieval", "percent"),
               Column("95 %")]  # fmt: skip
    cells = [
        [
            "all" if row["bits"] is None else str(row["bits"]), row["loss"], row["retrieval"],
            f"{100 * row['interval'][0]:.1f} to {100 * row['interval'][1]:.1f} %",
        ]
        for row in rows
    ]  # fmt: skip
    note = (
        f"One step for each {record.values['granularity']}. Retrieval is the first question's answer; naming any "
        f"number of the context is right in {100 * record.values['guess_rate']:.3g} %."
    )
    return Table(title="Attention logits in few bits", columns=columns, rows=cells, note=note)


def few_bit_weights(record: Record) -> Table | None:
    """Loss and retrieval with the weights of linear layers in few bits."""
    rows = record.values.get("weights") if record.kind == "evaluate-quantization" else None
    if not rows:
        return None
    whole = next(row for row in record.values["rows"] if row["bits"] is None)
    columns = [Column("Bits"), Column("Weights in few bits", "percent"), Column("Share a scale"),
               Column("Loss, nats per token", "loss"), Column("More than all bits", "signed"),
               Column("Retrieval", "percent"), Column("95 %")]  # fmt: skip
    cells = [
        [
            str(row["bits"]), row["share"],
            ", ".join("a row" if group == 0 else str(group) for group in row["groups"]), row["loss"],
            row["loss"] - whole["loss"], row["retrieval"],
            f"{100 * row['interval'][0]:.1f} to {100 * row['interval'][1]:.1f} %",
        ]
        for row in rows
    ]  # fmt: skip
    note = "Linear layers, through torchao; embeddings, norms and λ keep all bits, and so do activations."
    return Table(title="Weights in few bits", columns=columns, rows=cells, note=note)


def shots(record: Record) -> Table | None:
    """Accuracy over numbers of examples."""
    tasks = record.values.get("tasks") if record.kind == "evaluate-many-shot" else None
    if not tasks:
        return None
    columns = [Column("Task"), Column("Examples", "integer"), Column("Tokens", "integer"),
               Column("Accuracy", "percent"), Column("95 %"), Column("Guess", "percent"),
               Column("Commonest label", "percent")]  # fmt: skip
    rows = [
        [
            name, row["shots"], row["tokens"], row["accuracy"],
            f"{100 * row['interval'][0]:.1f} to {100 * row['interval'][1]:.1f} %", found["guess_rate"],
            found["majority_rate"],
        ]
        for name, found in tasks.items()
        for row in found["rows"]
    ]  # fmt: skip
    note = "Answers are decoded over the labels only. Tokens: the median prompt's."
    for field, reason in (("left_out", "Longer than the model reads"), ("too_few_rows", "Too few rows for")):
        counts = sorted({count for found in tasks.values() for count in found.get(field, ())})
        if counts:
            note += f" {reason}: {', '.join(map(str, counts))} examples."
    return Table(title="Accuracy by number of examples", columns=columns, rows=rows, note=note)


def orders(record: Record) -> Table | None:
    """Accuracy over orders of the same examples."""
    tasks = record.values.get("tasks") if record.kind == "evaluate-many-shot" else None
    rows = [
        [
            name, kind, row["shots"], len(row["accuracies"]), row["mean_accuracy"], row["margin"], row["flip_share"],
            row.get("pair_flips"), 2 * row["mean_accuracy"] * (1 - row["mean_accuracy"]), found["samples"],
            found["majority_rate"],
        ]
        for name, found in (tasks or {}).items()
        for kind, row in found["orders"].items()
    ]  # fmt: skip
    if not rows:
        return None
    columns = [Column("Task"), Column("Order"), Column("Examples", "integer"), Column("Orders", "integer"),
               Column("Mean accuracy", "percent"), Column("Best - worst", "percent"),
               Column("Answers that flip", "percent"), Column("Between two orders", "percent"),
               Column("Expected by chance", "percent"), Column("Asked", "integer"),
               Column("Commonest label", "percent")]  # fmt: skip
    note = (
        "A model that always gives one answer has margin 0: read it beside accuracy, flips and the commonest label. "
        "Expected by chance: 2p(1-p), what answers drawn anew for each order, right as often, would flip from right to "
        "wrong or back between two orders. Fewer than 200 asked decide nothing about orders."
    )
    if any("pair_flips" not in row for found in (tasks or {}).values() for row in found["orders"].values()):
        note += " An older record: it has no flips between two orders."
    return Table(title="The same examples in other orders", columns=columns, rows=rows, note=note)


def interval_text(interval: list[float] | None) -> str:
    """``2.31 to 2.54``."""
    return "–" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
