"""Retrieval accuracy of models in text and in the synthetic task; trends and paired differences.

All models read the same contexts, so their differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import named
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
from antiphase.lab.measures.needles import Needles, NeedlesSettings
from antiphase.lab.measures.needles.text import Generating, text_needles
from antiphase.lab.measures.settings import DEPTHS, ContextSettings
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.scoring.needles import crossings, needle_cell, predictor, summarize
from antiphase.lab.statistics.intervals import paired_interval, slope_interval
from antiphase.lab.text.haystacks import Cell, Context, Haystack
from antiphase.lab.text.retrieval import RetrievalTask

SIZES = ("needles", "queries", "length")


def evaluate(settings: NeedlesSettings, output: Path, **options: Any) -> Record:
    """Measure and write the record; see ``context_runner.evaluate_on_contexts``."""
    return evaluate_on_contexts(MEASUREMENT, settings, output, **options)


def needles_in_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    needles: Sequence[int] = (8,),
    queries: Sequence[int] = (1,),
    lengths: Sequence[int] = (512,),
    depths: Sequence[float] = DEPTHS,
    samples: int = 50,
    seed: int = 0,
) -> Needles:
    """Retrieval accuracy of a model in every cell, and of an untrained one at random depths.

    Args:
        texts: documents from which contexts are cut.
        lengths: numbers of tokens in a context and its output.
        samples: number of contexts in each cell.

    Raises:
        InputError: the sizes do not fit together, the model, or the texts.
    """
    cells = cells_of(needles, queries, lengths, depths)
    found = measure_in_text(MEASUREMENT, model, tokenizer, texts, cells, samples=samples, seed=seed)
    assert isinstance(found, Needles)
    return found


def _of_texts(loaded: LoadedModel, cell: Cell, contexts: Sequence[Context], haystack: Haystack) -> list[Row]:
    system = Generating(loaded.model, loaded.tokenizer, named("model", loaded.name), loaded.chat)
    return text_needles(system, {cell: contexts})


def _of_symbols(loaded: LoadedModel, cell: Cell, task: RetrievalTask, settings: ContextSettings) -> list[Row]:
    predict = predictor(loaded.model)
    return [needle_cell(predict, task, depth=cell.depth, samples=settings.samples, seed=settings.seed)]


def _result(found: CellRows) -> Needles:
    arms = list(dict.fromkeys(arm for arm, _ in found.rows))
    baseline = found.rows[arms[0], True]
    tree = {
        **found.shared,
        "cells": [{**row, "right": "".join(map(str, row["right"]))} for row in found.marked()],
        "summary": found.marked(summarize),
        "crossings": found.marked(crossings),
        "trends": [{"arm": arm, **row} for arm in arms for row in trends(found.rows[arm, True])],
        "paired": [
            {"arm": arm, "baseline": arms[0], **row}
            for arm in arms[1:]
            for row in paired(found.rows[arm, True], baseline)
        ],
    }
    return build(Needles, finite(tree))


MEASUREMENT = CellMeasurement(of_texts=_of_texts, of_symbols=_of_symbols, result=_result, untrained_at_depths=False)


def trends(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Uniformity of one system's accuracy over depths, and its change with length: one row per N and R.

    Returns:
        Rows with ``needles``, ``queries``; ``lengths``: for each length the mean ``accuracy`` over fixed depths and the
        ``spread`` over them, largest minus smallest; ``slope``: change per doubling of the length, by least squares
        over all contexts at fixed depths, with its 95 % ``slope_interval``; None for a single length.
    """
    fixed = [row for row in rows if row["depth"] is not None]
    found = []
    for (needles, queries), members in _grouped(fixed, "needles", "queries"):
        lengths = []
        for (length,), cells in _grouped(members, "length"):
            shares = [cell["correct"] / cell["samples"] for cell in cells]
            lengths.append({"length": length, "accuracy": fmean(shares), "spread": max(shares) - min(shares)})
        points = [(row["length"], value) for row in members for value in row["right"]]
        fitted = slope_interval(points) if len(lengths) > 1 else None
        found.append(
            {
                "needles": needles, "queries": queries, "lengths": lengths,
                "median_spread": median(row["spread"] for row in lengths),
                "slope": fitted[0] if fitted else None, "slope_interval": list(fitted[1]) if fitted else None,
            }
        )  # fmt: skip
    return found


def paired(rows: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Paired difference of two systems on the same contexts: one row per cell, and one over all fixed depths.

    Returns:
        Rows with ``needles``, ``queries``, ``length``, ``depth`` ("fixed": all depths but None), ``samples``,
        ``better`` and ``worse`` (contexts that only the first or only the second system answered correctly),
        ``difference`` and its 95 % ``interval``.
    """
    found = []
    for (needles, queries, length), members in _grouped(list(zip(rows, baseline, strict=True)), *SIZES):
        place = {"needles": needles, "queries": queries, "length": length}
        fixed = [pair for pair in members if pair[0]["depth"] is not None]
        for depth, pairs in [*((pair[0]["depth"], [pair]) for pair in members), ("fixed", fixed)]:
            both = [values for one, other in pairs for values in zip(one["right"], other["right"], strict=True)]
            if not both:
                continue
            better = sum(one > other for one, other in both)
            worse = sum(one < other for one, other in both)
            difference, interval = paired_interval(better, worse, len(both))
            found.append(
                {
                    **place, "depth": depth, "samples": len(both), "better": better, "worse": worse,
                    "difference": difference, "interval": list(interval),
                }
            )  # fmt: skip
    return found


def _grouped(rows: Sequence[Any], *names: str) -> list[tuple[tuple[Any, ...], list[Any]]]:
    """Rows, or pairs of rows, grouped by some of their keys, in ascending order."""

    def key(row: Any) -> tuple[Any, ...]:
        first = row[0] if isinstance(row, tuple) else row
        return tuple(first[name] for name in names)

    return [(values, list(members)) for values, members in groupby(sorted(rows, key=key), key)]
