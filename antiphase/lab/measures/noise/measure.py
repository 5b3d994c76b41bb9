"""Answers of models with irrelevant tokens drawn again or hidden, and with their second maps removed or exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.attention.second_map import Form, has_second_map
from antiphase.base.errors import InputError, named
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record, finite
from antiphase.base.typed import build
from antiphase.lab.measures.context_runner import (
    CellMeasurement,
    CellRows,
    Row,
    cells_of,
    evaluate_on_contexts,
    measure_in_text,
)
from antiphase.lab.measures.noise import FORMS, Noise, NoiseSettings
from antiphase.lab.measures.settings import ContextSettings
from antiphase.lab.scoring.allocation import ALL_LAYERS, batches_of
from antiphase.lab.scoring.effects import allocation_with_effects
from antiphase.lab.scoring.lengths import readable_length
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.scoring.noise import hidden, resampled, retrieving_layers, second_maps
from antiphase.lab.text import resampling
from antiphase.lab.text.haystacks import Cell, Context, Haystack, prompt_batch
from antiphase.lab.text.resampling import PARTS, Part, TextResampler
from antiphase.lab.text.retrieval import RetrievalBatch, RetrievalTask


def evaluate(settings: NoiseSettings, output: Path, **options: Any) -> Record:
    """Measure and write the record; see ``context_runner.evaluate_on_contexts``."""
    measuring = _measuring(settings.resamples, settings.second_map, settings.seed)
    return evaluate_on_contexts(measuring, settings, output, **options)


def noise_in_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    needles: int = 8,
    lengths: Sequence[int] = (512,),
    samples: int = 50,
    resamples: int = 16,
    forms: Sequence[Form] = (),
    seed: int = 0,
) -> Noise:
    """How much a model's answers depend on irrelevant tokens and second maps; and those of an untrained one.

    Args:
        texts: documents from which contexts are cut.
        lengths: numbers of tokens in a context and its output.
        samples: number of contexts of each length.
        resamples: how often the filler, and the other facts, of a context are drawn again.
        forms: what is done to second maps, "removed" or "exchanged"; default: both if the model has them.

    Raises:
        InputError: the sizes do not fit together or the texts, or ``forms`` are given for a model without second maps.
        ValueError: the model's attention cannot be observed.
    """
    measuring = _measuring(resamples, forms, seed)
    cells = cells_of([needles], [1], lengths, [])
    found = measure_in_text(measuring, model, tokenizer, texts, cells, samples=samples, seed=seed)
    assert isinstance(found, Noise)
    return found


def _measuring(resamples: int, forms: Sequence[str], seed: int) -> CellMeasurement:
    """The measurement of a cell with these settings."""

    def of_texts(loaded: LoadedModel, cell: Cell, contexts: Sequence[Context], haystack: Haystack) -> list[Row]:
        resampler = TextResampler(haystack, loaded.tokenizer)

        def copies(part: Part) -> list[Tensor]:
            return [
                resampler.copies(context, part, resamples, _generator(seed, part, cell, index))
                for index, context in enumerate(contexts)
            ]

        return measured(loaded, cell, [prompt_batch(loaded.tokenizer, context) for context in contexts], copies)

    def of_symbols(loaded: LoadedModel, cell: Cell, task: RetrievalTask, settings: ContextSettings) -> list[Row]:
        batch = task.sample(settings.samples, keyed_generator(seed, "noise", cell.length, cell.depth), depth=cell.depth)

        def copies(part: Part) -> list[Tensor]:
            return [
                resampling.of_symbols(task, batch, row, part, resamples, _generator(seed, part, cell, row))
                for row in range(settings.samples)
            ]

        return measured(loaded, cell, list(batches_of(batch)), copies)

    def measured(loaded: LoadedModel, cell: Cell, batches: Sequence[RetrievalBatch], copies: Any) -> list[Row]:
        place = vars(cell)
        positions = [answer for batch in batches for answer in batch.answer_positions[:, 0]]
        rows: list[Row] = []
        for part in PARTS if cell.needles > 1 else PARTS[:1]:
            found = resampled(loaded.model, copies(part), positions)
            rows.append({"of": "resampled", **place, "part": part, **found})
        where = allocation_with_effects(loaded.model, batches)
        rows += [{"of": "allocation", **place, "samples": len(positions), **row} for row in where]
        layers = [row["layer"] for row in where if row["map"] == "second" and row["layer"] != ALL_LAYERS]
        changes = hidden(loaded.model, batches, retrieving_layers(where))
        if layers and has_second_map(loaded.model):
            changes += second_maps(loaded.model, batches, layers, cast(Sequence[Form], forms or FORMS))
        return rows + [{"of": "changed", **place, **row} for row in changes]

    return CellMeasurement(
        of_texts=of_texts, of_symbols=of_symbols, result=_result, untrained_at_depths=False, longest=readable_length,
        check=partial(_check_second_map, forms=forms),
    )  # fmt: skip


def _check_second_map(loaded: LoadedModel, field: str, forms: Sequence[str]) -> None:
    if forms and not has_second_map(loaded.model):
        raise InputError(
            f"--second-map {','.join(forms)}: {named(field, loaded.name)} has no second map; leave --second-map out, "
            "or choose a differential model"
        )


def _generator(seed: int, part: Part, cell: Cell, index: int) -> Any:
    """Every context has its own random numbers, the same for all models."""
    return keyed_generator(seed, "resampled", part, *vars(cell).values(), index)


def _result(found: CellRows) -> Noise:
    tree: dict[str, Any] = {**found.shared, "resampled": [], "changed": [], "allocation": []}
    for row in found.marked():
        tree[row["of"]].append({name: value for name, value in row.items() if name != "of"})
    return build(Noise, finite(tree))
