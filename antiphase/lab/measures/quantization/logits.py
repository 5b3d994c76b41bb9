"""Quantized attention logits (2410.05258, section 3.7, figure 8): outliers make the quantization steps coarse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall
from antiphase.attention.hooks import transformed
from antiphase.attention.selected_maps import ChosenMaps, MapChoice, softmax_of
from antiphase.base.errors import InputError
from antiphase.lab.measures.quantization import GRANULARITIES


@contextmanager
def quantized_logits(model: PreTrainedModel, bits: int, *, granularity: str = "head") -> Iterator[None]:
    """Round q·k · scale of every map to ``bits`` bits before the softmax, in every forward pass within the block.

    x becomes s · round(x / s) with s = max|x| / (2^(bits - 1) - 1), with the maximum over visible pairs of the
    sequence. In a differential model both maps are rounded before the subtraction. Maps are computed as a whole, so
    memory is quadratic in length.

    Args:
        bits: at least 2, for 2^(bits - 1) - 1 steps on either side of zero.
        granularity: the unit that shares a step s: all maps of a layer ("tensor"), a map ("head") or a query's row
            ("row").

    Raises:
        InputError: bits or granularity are invalid, or the model has no attention that can be observed.
    """
    if bits < 2:
        raise InputError(f"bits must be at least 2, got {bits}")
    if granularity not in GRANULARITIES:
        raise InputError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}")
    text = model.config.get_text_config()
    if not getattr(text, "num_attention_heads", 0):
        raise InputError(f"models of type {model.config.model_type} have no attention logits that could be quantized")
    every = MapChoice(None)

    def form(maps: ChosenMaps) -> Tensor:
        return maps.multiply(softmax_of(rounded(maps.scores(), bits, granularity)))

    def quantize(call: AttentionCall) -> Tensor:
        return every.changed(call, form)

    with transformed(model, quantize):
        yield


def rounded(scores: Tensor, bits: int, granularity: str) -> Tensor:
    """Scores (B, G, R, N, M) rounded to ``bits`` bits; -inf is kept."""
    hidden = scores == float("-inf")
    sizes = scores.abs().masked_fill(hidden, 0.0)
    shared = {"tensor": (1, 2, 3, 4), "head": (3, 4), "row": (4,)}[granularity]
    step = sizes.amax(shared, keepdim=True) / (2 ** (bits - 1) - 1)
    step = step.where(step > 0, 1.0)  # all scores are zero and stay zero
    return (scores / step).round() * step
