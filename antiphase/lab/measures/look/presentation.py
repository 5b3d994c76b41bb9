"""Presentation of records of ``antiphase look`` on a page of several records."""

from __future__ import annotations

from antiphase.base.records import Record
from antiphase.lab.measures.look import Look, plots
from antiphase.lab.measures.look.page import write_look
from antiphase.lab.measures.look.tables import chosen_head, layer_table, mask_words
from antiphase.lab.pages.presentation import Drawing, Presentation


def _chosen(record: Record) -> str:
    chosen = chosen_head(record)
    assert chosen is not None
    if Look.of(record).chosen is not None:
        return f"Layer {chosen[0].name}, head {chosen[1]}."
    besides = "the first of these keys" if chosen[0].is_span else "the first and itself"
    return (
        f"Layer {chosen[0].name}, head {chosen[1]}: the one whose attention is most concentrated on tokens "
        f"other than {besides}, so not a typical one."
    )


def _masks(look: Look) -> list[str]:
    return [mask_words(look, mask) for mask in look.masks]


PRESENTATION = Presentation(
    introduction="Attention of every layer and head on one text. The same record drawn alone (antiphase report RUN) "
    "gives a page in which every weight can be looked up.",
    tables=lambda record: [layer_table(record)],
    page=write_look,
    figures={
        "look-heads": Drawing(
            draw=plots.every_head,
            title="Every head",
            caption="What multiplies the values: queries downwards, keys to the right. Long texts are drawn by the "
            "strongest weight of each block. Grey is hidden by the mask. In differential heads red adds and blue takes "
            "away.",
            alternative="A small heat map for each layer and head.",
            is_raster=True,
        ),
        "look-head": Drawing(
            draw=plots.one_head,
            title="One head",
            caption=_chosen,
            alternative=lambda record: f"Heat maps of attention. {_chosen(record)}",
            is_raster=True,
        ),
        "look-alignment": Drawing(
            draw=plots.alignment,
            title="Alignment",
            caption="Which tokens of the source (columns) each token of the target (rows) looks at as it is written: "
            "means over the heads of a layer. In differential models red adds and blue subtracts.",
            alternative="Heat maps of cross-attention, target tokens downwards, source tokens to the right.",
            is_raster=True,
        ),
        "look-masks": Drawing(
            draw=plots.masks,
            title="Masks",
            caption="What a query may look at, in blue, and which layers have it.",
            alternative=lambda record: f"Pictures of masks. In this model: {'; '.join(_masks(Look.of(record)))}.",
            is_raster=True,
        ),
        "look-positions": Drawing(
            draw=plots.positions,
            title="Sinusoidal positions",
            caption="What is added to the embeddings, as in the Transformer of 2017.",
            alternative="Heat map of 50 positions and 128 dimensions between -1 and 1.",
            is_raster=True,
        ),
    },
)
