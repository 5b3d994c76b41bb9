"""Presentation of records of ``antiphase translate``: learning curves, one alignment, and text."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.lineage.commands.classify.figures import epoch_curves
from antiphase.lab.lineage.commands.classify.tables import outputs
from antiphase.lab.lineage.commands.translate import ShownPair, Translate, tables
from antiphase.lab.measures.look.plots import ALIGNED, aligned
from antiphase.lab.pages.plots import STYLE, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Table, format_value


def _models(found: Translate) -> list[str]:
    return list(dict.fromkeys(run.model for run in found.runs))


@Translate.from_record
@matplotlib.rc_context(STYLE)
def epochs(found: Translate) -> Figure | None:
    """Held-out token accuracy and losses after each epoch, one line per run."""
    titles = ("Held-out tokens that are right", "Loss: held-out, and training (fainter)")
    curves = [(run.model, run.curve) for run in found.runs]
    return epoch_curves(curves, _models(found), titles=titles, unit="nats per token")


@matplotlib.rc_context(STYLE)
def alignment(record: Record) -> Figure | None:
    """A row of panels per model, with one panel per layer: the mean over its heads on one held-out pair."""
    found = Translate.read(record)
    if found is None or found.example is None:
        return None
    example, names = found.example, {name: f"alignment.{name}" for name in _models(found)}
    if not set(names.values()) <= record.arrays.keys():  # the record's arrays are missing
        return None
    maps = {name: record.arrays[array].mean(1) for name, array in names.items()}
    layers = max(map(len, maps.values()))
    if any(len(weights) != layers for weights in maps.values()):  # possible with `--set MODEL.num_hidden_layers`
        layers = 1
    panels = [
        (f"{visible(name)}, layer {layer}", weights)
        for name, of_layers in maps.items()
        for layer, weights in enumerate(of_layers)
    ]
    target, source = ([visible(text, 14) for text in texts] for texts in (example.target, example.source))
    return aligned(
        panels, ("target", target), ("source", source), across=min(max(layers, 2), ALIGNED),
        right=example.alignment or (),
    )  # fmt: skip


def _ends(record: Record) -> str:
    rows = [row for row in Translate.of(record).models if row.trained]
    return ", ".join(f"{row.model} {format_value(row.exact_match, 'percent')}" for row in rows)


def _example(record: Record) -> ShownPair:
    found = Translate.of(record).example
    assert found is not None, "a figure shows it"
    return found


def _alignment_caption(record: Record) -> str:
    example = _example(record)
    rings = " Rings are the right words." if example.alignment else ""
    return (
        f"Which tokens of the source (columns) each token of the target (rows) looks at as it is written, on one "
        f"held-out pair, seed {example.seed}: means over the heads of a layer.{rings} In differential models red "
        "adds and blue subtracts."
    )


@Translate.from_record
def translations(found: Translate) -> Table | None:
    """What each model wrote for the first texts."""
    return outputs("Translations", ((run.model, run.shown) for run in found.runs), seed=found.runs[0].seed)


PRESENTATION = Presentation(
    introduction="Encoders and decoders that learned to write the translation of a sentence. A sentence counts as "
    "right if the model, writing greedily, wrote exactly the reference and stopped. Read every figure beside the "
    "untrained model and beside what needs no learning.",
    tables=lambda record: [tables.data(record), tables.models(record), translations(record)],
    figures={
        "translation-epochs": Drawing(
            draw=epochs,
            title="Training of the translators",
            caption="A line for each run; nothing of it chooses weights, the last epoch's are kept. Tokens are "
            "predicted after the right ones.",
            alternative=lambda record: f"Line charts over epochs. Sentences right at the end: {_ends(record)}.",
        ),
        "translation-alignment": Drawing(
            draw=alignment,
            title="Alignment",
            caption=_alignment_caption,
            alternative=lambda record: f"Heat maps of cross-attention: {' '.join(_example(record).source)}.",
            is_raster=True,
        ),
    },
    details=lambda record: [tables.runs(record), tables.heads(record)],
)
