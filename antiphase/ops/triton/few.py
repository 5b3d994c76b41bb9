"""PyTorch operators that launch the decoding kernels: attention alone, or with λ and norm of a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.ops.dispatch import bypassing_dispatcher, operator
from antiphase.ops.shapes import check_alike, check_real
from antiphase.ops.triton.decode import join_kernel, span_kernel
from antiphase.ops.triton.launch import (
    DEVICES,
    INTERPRETED,
    blocks_of,
    count_blocks,
    major_capability,
    multiprocessors,
    padded,
    power_of_two,
    why_not,
    window_of,
)

MOST_SPANS = 64
"""Largest number of key spans in a decoding step."""


def attend_few(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    groups: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
) -> Tensor:
    """``decoding.attend_few`` in two kernels, not differentiable; arguments and result as there; window 0: none."""
    return _launch(query, key, value, mask, groups, is_causal, sliding_window, scale, lam=lam)


def v1_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    weight: Tensor,
    mask: Tensor | None,
    groups: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
    initial: float,
    eps: float,
    factor: float,
) -> Tensor:
    """``attend_few`` with λ and head norm of a V1 layer: normalized outputs (B, H, N, dv).

    Args:
        q1, k1, q2, k2: (d,) each, contiguous, of which λ is computed in fp32.
        weight: (dv,) of the norm, contiguous.
        initial: λinit.
        eps, factor: of ``ops.layer.rms_norm``.
    """
    return _launch(
        query, key, value, mask, groups, is_causal, sliding_window, scale,
        layer=(q1, k1, q2, k2, weight), numbers=(initial, eps, factor),
    )  # fmt: skip


def _launch(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, groups: int, is_causal: bool, sliding_window: int,
    scale: float, *, lam: Tensor | None = None, layer: Sequence[Tensor | None] = (None,) * 5,
    numbers: tuple[float, float, float] = (0.0, 0.0, 1.0),
) -> Tensor:  # fmt: skip
    """Both kernels, either with λ in ``lam`` or with what a V1 layer has: four vectors and the norm's weight in
    ``layer``, and λinit, ε and factor in ``numbers``.
    """
    batch, maps, queries, width = query.shape
    heads, keys, parts = maps // 2, key.shape[2], value.shape[1] // max(1, groups)
    value_width = parts * value.shape[-1]
    *vectors, weight = layer
    initial, eps, factor = numbers
    if (
        groups < 1
        or value_width < 1
        or width < 1
        or maps < 2
        or maps % (2 * groups)
        or key.shape not in ((batch, groups, keys, width), (batch, 2 * groups, keys, width))
        or value.shape not in ((batch, groups, keys, value_width), (batch, 2 * groups, keys, value_width // 2))
    ):
        given = f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        raise ValueError(f"query, key and value of {given} do not fit together for {groups} value heads")
    check_alike(query, key, value)
    if (reason := why_not(query, value_width)) is not None:
        raise ValueError(reason)
    check_real(lam, mask, query)
    for part in (t for t in layer if t is not None):
        if not part.is_floating_point() or part.device != query.device or not part.is_contiguous():
            raise ValueError(f"λ vectors and the norm's weight must be real, contiguous and on {query.device}")
    lam_strides = _strides("lam", lam, (batch, heads, queries))
    mask_strides = _strides("mask", mask, (batch, heads, queries, keys))
    if weight is not None and [t.numel() for t in layer if t is not None] != [width] * 4 + [value_width]:
        raise ValueError(f"the λ vectors must have {width} numbers each and the norm's weight {value_width}")
    out = _empty_output(query, value, groups)
    if not out.numel() or not keys:
        return out.zero_()
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
    if mask is not None:
        mask = mask.view(torch.uint8)
    rows = padded(heads // groups * queries)
    programs = 2 * multiprocessors(query.device)
    wanted = min(MOST_SPANS, max(1, programs // max(1, batch * groups)))
    widths = padded(width), padded(value_width)
    blocks = blocks_of("span", *widths, query.dtype, major_capability(query.device), has_mask=mask is not None)
    span = blocks.keys * count_blocks(count_blocks(keys, wanted), blocks.keys)
    spans = count_blocks(keys, span)
    lines = batch * groups * spans * 2 * rows
    sums = torch.empty(lines * (value_width + 2), dtype=torch.float32, device=query.device)
    constants: dict[str, Any] = {
        "WIDTH": width, "VALUE_WIDTH": value_width, "BLOCK_D": widths[0], "BLOCK_DV": widths[1], "ROWS": rows,
        "OF_LAYER": lam is None,
    }  # fmt: skip
    with torch.cuda.device_of(query):
        span_kernel[batch * groups, spans](
            query, key, value, lam, *vectors, mask, sums,
            query.stride()[:3], key.stride()[:3], value.stride()[:3], lam_strides, mask_strides,
            heads, groups, queries, keys, span, scale * math.log2(math.e), initial, **constants,
            BLOCK_N=blocks.keys, KEY_MAPS=key.shape[1] // groups, PARTS=parts,
            CAUSAL=is_causal or sliding_window > 0, WINDOW=window_of(sliding_window, keys), HAS_MASK=mask is not None,
            RAISE=INTERPRETED, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
        join_kernel[batch * groups, heads // groups * queries](
            sums, lam, *vectors, weight, out, lam_strides, out.stride()[:3], heads, groups, queries, spans,
            initial, eps, factor, **constants, BLOCK_SPANS=power_of_two(spans), num_warps=4,
        )  # fmt: skip
    return out


def _strides(name: str, tensor: Tensor | None, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor broadcast to these sizes, without the calls that would broadcast it.

    Raises:
        ValueError: it does not broadcast to them.
    """
    if tensor is None:
        return (0,) * len(sizes)
    shape = (1,) * (len(sizes) - tensor.dim()) + tuple(tensor.shape)
    if len(shape) != len(sizes) or any(own not in (1, size) for own, size in zip(shape, sizes, strict=True)):
        raise ValueError(f"{name} must broadcast to {sizes}, got {tuple(tensor.shape)}")
    steps = (0,) * (len(sizes) - tensor.dim()) + tensor.stride()
    return tuple(0 if own == 1 else step for own, step in zip(shape, steps, strict=True))


def _empty_output(query: Tensor, value: Tensor, groups: int) -> Tensor:
    """An empty (B, H, N, dv), stored as (B, N, H, dv) so that the layer's reshape costs nothing."""
    batch, maps, queries, _ = query.shape
    return query.new_empty(batch, queries, maps // 2, value.shape[1] // groups * value.shape[-1]).transpose(1, 2)


_attend_few = operator("triton_attend_few", attend_few, DEVICES)
_v1_step = operator("triton_v1_step", v1_step, DEVICES)


@torch.library.register_fake("antiphase::triton_attend_few")
def _(query: Tensor, key: Tensor, value: Tensor, lam: Tensor, mask: Tensor | None, groups: int, *_: Any) -> Tensor:
    return _empty_output(query, value, groups)


@torch.library.register_fake("antiphase::triton_v1_step")
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return _empty_output(query, value, rest[6])


triton_attend_few = bypassing_dispatcher(attend_few, _attend_few)
triton_v1_step = bypassing_dispatcher(v1_step, _v1_step)
