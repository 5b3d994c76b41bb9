"""Attention to spans of the context, their contributions to the layers' outputs, and knockouts of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record, finite
from antiphase.base.typed import build
from antiphase.lab.measures.allocation import Allocation, AllocationSettings
from antiphase.lab.measures.context_runner import (
    CellMeasurement,
    CellRows,
    Row,
    cells_of,
    evaluate_on_contexts,
    measure_in_text,
)
from antiphase.lab.measures.settings import DEPTHS, ContextSettings
from antiphase.lab.scoring.allocation import batches_of
from antiphase.lab.scoring.effects import allocation_with_effects
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.text.haystacks import Cell, Context, Haystack, prompt_batch
from antiphase.lab.text.retrieval import RetrievalBatch, RetrievalTask


def evaluate(settings: AllocationSettings, output: Path, **options: Any) -> Record:
    """Measure and write the record; see ``context_runner.evaluate_on_contexts``."""
    return evaluate_on_contexts(MEASUREMENT, settings, output, **options)


def allocation_in_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    needles: int = 8,
    queries: int = 1,
    length: int = 512,
    depths: Sequence[float] = DEPTHS,
    samples: int = 50,
    seed: int = 0,
) -> Allocation:
    """Attention allocation of the question's last token, by depth of the answer, for the model and an untrained one.

    Args:
        texts: documents from which contexts are cut.
        length: number of tokens in a context and its output.
        samples: number of contexts at each depth.

    Raises:
        InputError: the sizes do not fit together, the model, or the texts.
        ValueError: the model's attention cannot be observed.
    """
    cells = cells_of([needles], [queries], [length], depths)
    found = measure_in_text(MEASUREMENT, model, tokenizer, texts, cells, samples=samples, seed=seed)
    assert isinstance(found, Allocation)
    return found


def _of_texts(loaded: LoadedModel, cell: Cell, contexts: Sequence[Context], haystack: Haystack) -> list[Row]:
    return _rows(loaded, cell, [prompt_batch(loaded.tokenizer, context) for context in contexts])


def _of_symbols(loaded: LoadedModel, cell: Cell, task: RetrievalTask, settings: ContextSettings) -> list[Row]:
    depth = cell.depth
    key = (settings.seed, "allocation", *(() if depth is None else (depth,)))
    batch = task.sample(settings.samples, keyed_generator(*key), depth=depth)
    return _rows(loaded, cell, list(batches_of(batch)))


def _rows(loaded: LoadedModel, cell: Cell, batches: Sequence[RetrievalBatch]) -> list[Row]:
    found = allocation_with_effects(loaded.model, batches)
    samples = sum(len(batch.input_ids) for batch in batches)
    return [{**vars(cell), "samples": samples, **row} for row in found]


def _result(found: CellRows) -> Allocation:
    return build(Allocation, finite({**found.shared, "rows": found.marked()}))


MEASUREMENT = CellMeasurement(of_texts=_of_texts, of_symbols=_of_symbols, result=_result, untrained_at_depths=True)
