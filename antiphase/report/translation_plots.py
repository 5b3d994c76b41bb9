"""Records of ``antiphase translate`` → figures: learning curves, and the alignment of one held-out pair."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
from matplotlib.figure import Figure

from antiphase.records import Record
from antiphase.report.classification_plots import epoch_curves
from antiphase.report.look_plots import ALIGNED, aligned
from antiphase.report.plots import STYLE, visible
from antiphase.report.tables import format_value


def _models(record: Record) -> list[str]:
    return list(dict.fromkeys(run["model"] for run in record.values["runs"]))


@matplotlib.rc_context(STYLE)
def epochs(record: Record) -> Figure | None:
    """Held-out token accuracy and losses after each epoch, a line for each run."""
    if record.kind != "translate":
        return None
    titles = ("Held-out tokens that are right", "Loss: held-out, and training (fainter)")
    return epoch_curves(record.values["runs"], _models(record), titles=titles, unit="nats a token")


@matplotlib.rc_context(STYLE)
def alignment(record: Record) -> Figure | None:
    """A row of panels for each model, a panel for each layer: the mean over its heads on one held-out pair."""
    example = record.values.get("example") if record.kind == "translate" else None
    if not example:
        return None
    maps = {name: record.arrays[f"alignment.{name}"].mean(1) for name in _models(record)}
    layers = max(map(len, maps.values()))
    if any(len(found) != layers for found in maps.values()):  # `--set MODEL.num_hidden_layers`
        layers = 1
    panels = [
        (f"{visible(name)}, layer {layer}", weights)
        for name, found in maps.items()
        for layer, weights in enumerate(found)
    ]
    names = {side: [visible(text, 14) for text in example[side]] for side in ("target", "source")}
    return aligned(
        panels, ("target", names["target"]), ("source", names["source"]), across=min(max(layers, 2), ALIGNED),
        right=example["alignment"] or (),
    )  # fmt: skip


def _epoch_words(record: Record) -> tuple[str, str, str]:
    ends = [
        f"{row['model']} {format_value(row['exact_match'], 'percent')}"
        for row in record.values["models"]
        if row["trained"]
    ]
    caption = (
        "A line for each run; nothing of it chooses weights, the last epoch's are kept. Tokens are predicted after the "
        "right ones."
    )
    return (
        "Training of the translators", caption,
        f"Line charts over epochs. Sentences right at the end: {', '.join(ends)}.",
    )  # fmt: skip


def _alignment_words(record: Record) -> tuple[str, str, str]:
    example = record.values["example"]
    rings = " Rings are the right words." if example["alignment"] else ""
    caption = (
        f"Which tokens of the source (columns) each token of the target (rows) looks at as it is written, on one "
        f"held-out pair, seed {example['seed']}: means over the heads of a layer.{rings} In differential models red "
        "adds and blue takes away."
    )
    return "Alignment", caption, f"Heat maps of cross-attention: {' '.join(example['source'])}."


WORDS: dict[str, Callable[[Record], tuple[str, str, str]]] = {
    "translation-epochs": _epoch_words,
    "translation-alignment": _alignment_words,
}
"""Title, caption and text alternative of each figure."""
