"""Loss and retrieval with quantized attention logits or linear weights, compared with the unquantized model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from antiphase.base.randomness import keyed_generator
from antiphase.lab.measures.held_out import contents as contents
from antiphase.lab.measures.held_out import prepare as prepare
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.measures.quantization import Bits, Quantization, QuantizationSettings, WeightBits
from antiphase.lab.measures.quantization.logits import quantized_logits
from antiphase.lab.measures.quantization.weights import quantized_weights
from antiphase.lab.scoring.likelihood import negative_log_likelihoods
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.scoring.needles import first_query_accuracy
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.prepare import PreparedData, check_task
from antiphase.lab.text.retrieval import RetrievalBatch
from antiphase.lab.text.streams import Batch


def measure(
    loaded: LoadedModel, data: PreparedData, settings: QuantizationSettings, parts: Parts = UNSTORED
) -> Quantization:
    """Measure held-out windows and retrieval sequences."""
    task = data.task(**settings.task_sizes())
    check_task(task)
    batch = task.sample(settings.samples, keyed_generator(settings.seed, "quantization"))
    return quantization(
        loaded.model, data.validation(settings.samples), batch, guess_rate=task.guess_rate, bits=settings.bits,
        granularity=settings.granularity, weights=settings.weights, parts=parts,
    )  # fmt: skip


def quantization(
    model: PreTrainedModel,
    held_out: Batch,
    batch: RetrievalBatch,
    *,
    guess_rate: float,
    bits: Sequence[int],
    granularity: str = "head",
    weights: Sequence[int] = (),
    parts: Parts = UNSTORED,
) -> Quantization:
    """Loss on ``held_out`` and first-question accuracy on ``batch``, unquantized and with each number of bits.

    Args:
        bits: numbers of bits of attention logits.
        granularity: the unit that shares a step (``quantized_logits``).
        weights: numbers of bits of the weights of linear layers, 8 or 4.
        parts: a part is one number of bits.
    """
    count = len(batch.input_ids)

    def measured(model: PreTrainedModel) -> dict[str, Any]:
        losses = negative_log_likelihoods(model, held_out.input_ids, held_out.labels)
        right = round(first_query_accuracy(model, batch) * count)
        interval = list(wilson_interval(right, count))
        return {"loss": float(losses.double().mean()), "retrieval": right / count, "interval": interval}

    def of_logits(number: int | None) -> dict[str, Any]:
        block = nullcontext() if number is None else quantized_logits(model, number, granularity=granularity)
        with block:
            return measured(model)

    def of_weights(number: int) -> dict[str, Any]:
        few = quantized_weights(model, number)
        return {"share": few.share, "groups": list(few.groups), **measured(few.model)}

    rows, few_rows, total = [], [], 1 + len(bits) + len(weights)
    for number in (None, *bits):
        rows.append(Bits(number, **parts.stored("logits", number, compute=partial(of_logits, number))))
        parts.report(len(rows), total)
    for number in weights:
        few_rows.append(WeightBits(number, **parts.stored("weights", number, compute=partial(of_weights, number))))
        parts.report(len(rows) + len(few_rows), total)
    return Quantization(
        granularity=granularity, guess_rate=guess_rate, samples=count, sequences=len(held_out.input_ids), rows=rows,
        weights=few_rows,
    )  # fmt: skip
