"""Loss and retrieval with quantized attention logits or linear weights, compared with the unquantized model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from transformers import PreTrainedModel

from antiphase.data.prepare import PreparedData, check_task
from antiphase.data.retrieval import RetrievalBatch
from antiphase.data.streams import Batch
from antiphase.evaluations.held_out import contents as contents
from antiphase.evaluations.held_out import prepare as prepare
from antiphase.evaluations.quantization import Bits, Quantization, QuantizationSettings, WeightBits
from antiphase.evaluations.quantization.logits import quantized_logits
from antiphase.evaluations.quantization.weights import quantized_weights
from antiphase.randomness import keyed_generator
from antiphase.scoring.likelihood import negative_log_likelihoods
from antiphase.scoring.loading import LoadedModel
from antiphase.scoring.needles import first_query_accuracy
from antiphase.uncertainty.intervals import wilson_interval


def measure(
    loaded: LoadedModel,
    data: PreparedData,
    settings: QuantizationSettings,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Quantization:
    """Measure held-out windows and retrieval sequences."""
    task = data.task(**settings.task_sizes())
    check_task(task)
    batch = task.sample(settings.samples, keyed_generator(settings.seed, "quantization"))
    return quantization(
        loaded.model, data.validation(settings.samples), batch, guess_rate=task.guess_rate, bits=settings.bits,
        granularity=settings.granularity, weights=settings.weights, report=report,
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
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Quantization:
    """Loss on ``held_out`` and first-question accuracy on ``batch``, unquantized and with each number of bits.

    Args:
        bits: numbers of bits of attention logits.
        granularity: the unit that shares a step (``quantized_logits``).
        weights: numbers of bits of the weights of linear layers, 8 or 4.
        report: called with the numbers of finished settings and of all.
    """
    count = len(batch.input_ids)

    def measured(model: PreTrainedModel) -> dict[str, Any]:
        losses = negative_log_likelihoods(model, held_out.input_ids, held_out.labels)
        right = round(first_query_accuracy(model, batch) * count)
        interval = list(wilson_interval(right, count))
        return {"loss": float(losses.double().mean()), "retrieval": right / count, "interval": interval}

    rows, total = [], 1 + len(bits) + len(weights)
    for number in (None, *bits):
        block = nullcontext() if number is None else quantized_logits(model, number, granularity=granularity)
        with block:
            rows.append(Bits(number, **measured(model)))
        report(len(rows), total)
    of_weights = []
    for number in weights:
        few = quantized_weights(model, number)
        of_weights.append(WeightBits(number, few.share, list(few.groups), **measured(few.model)))
        report(len(rows) + len(of_weights), total)
    return Quantization(
        granularity=granularity, guess_rate=guess_rate, samples=count, sequences=len(held_out.input_ids), rows=rows,
        weights=of_weights,
    )  # fmt: skip
