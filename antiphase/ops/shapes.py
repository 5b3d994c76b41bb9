"""Checks of the shapes of differential attention, made once, on which every implementation relies.

Legend: B batch, H differential heads, Hkv value heads, R = H / Hkv heads per value head, N queries, M keys, d width of
a query and key, dv width of a value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of queries, keys and values."""
IGNORED_TARGET = -100
"""Target of a position that has no loss, as in PyTorch."""
OTHERWISE = 'use differential_attention(..., impl="reference"), or a layer with return_weights=True'
"""What has derivatives of every kind."""


class Shapes(NamedTuple):
    """Sizes of one call. ``key_maps`` is 2 if each map has its own key (V1) and 1 if both share one (V2)."""

    batch: int
    heads: int
    value_heads: int
    key_maps: int
    queries: int
    keys: int
    width: int
    value_width: int

    @property
    def heads_per_value(self) -> int:
        return self.heads // self.value_heads


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of λ and of sums over rows and blocks: fp32, or fp64 for fp64 input. Scores and maps have it too,
    unless ``product_dtype`` is a half-precision one.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def autocast_dtype(*tensors: Tensor) -> torch.dtype | None:
    """The dtype to which autocast rounds these tensors; None if it is off, or for fp64, which it leaves as it is."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return None if any(t.dtype == torch.float64 for t in tensors) else torch.get_autocast_dtype(kind)


def has_bf16_instructions() -> bool:
    """Whether the processor multiplies matrices in bf16 faster than in fp32, which takes AVX-512 BF16."""
    return torch.cpu._is_avx512_bf16_supported()


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of matrix products and of scores: the input's if the device has instructions for it, else fp32.

    CPUs have none for fp16, and for bf16 only with AVX-512 BF16; without them, half precision is slower than fp32.
    """
    native = tensor.device.type != "cpu" or (tensor.dtype == torch.bfloat16 and has_bf16_instructions())
    return tensor.dtype if native else statistics_dtype(tensor.dtype)


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> Shapes:
    """Check ranks, dtypes, devices and heads of query (B, 2H, N, d), key (B, 2Hkv or Hkv, M, d), value (B, Hkv, M, dv).

    Raises:
        ValueError: one of them is wrong; the message gives what was expected and what was given.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} must have 4 dimensions (batch, heads, length, width), got shape {tuple(tensor.shape)}"
            )
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    check_alike(query, key, value)
    batch, maps, queries, width = query.shape
    value_heads, keys, value_width = value.shape[1:]
    if width == 0 or value_width == 0:
        raise ValueError(f"queries, keys and values must have a width, got {width} and {value_width}")
    if key.shape[0] != batch or value.shape[0] != batch:
        raise ValueError(
            f"query, key and value must share the batch size, got {batch}, {key.shape[0]} and {value.shape[0]}"
        )
    if key.shape[2] != keys:
        raise ValueError(f"key and value must have the same length, got {key.shape[2]} and {keys}")
    if key.shape[3] != width:
        raise ValueError(f"query and key must have the same width, got {width} and {key.shape[3]}")
    if maps % 2 or maps == 0:
        raise ValueError(f"query must have an even number of maps (two for each head), got {maps}")
    heads = maps // 2
    if value_heads == 0 or heads % value_heads:
        raise ValueError(f"the {heads} heads of query must be a multiple of the {value_heads} heads of value")
    if key.shape[1] not in (value_heads, 2 * value_heads):
        raise ValueError(
            f"key must have {2 * value_heads} heads (two keys a value head, V1) or {value_heads} (shared key, V2) "
            f"for a value of {value_heads} heads, got {key.shape[1]}"
        )
    return Shapes(
        batch=batch,
        heads=heads,
        value_heads=value_heads,
        key_maps=key.shape[1] // value_heads,
        queries=queries,
        keys=keys,
        width=width,
        value_width=value_width,
    )


def check_alike(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that the tensors have one dtype and one device.

    Raises:
        ValueError: they do not; the message names them.
    """
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise ValueError(
                f"query, key and value must share dtype and device: query is {query.dtype} on {query.device}, "
                f"{name} is {tensor.dtype} on {tensor.device}"
            )


def check_lam(lam: float | Tensor, query: Tensor, shapes: Shapes) -> Tensor:
    """λ as a tensor (1|B, 1|H, 1|N) in the statistics dtype.

    Raises:
        ValueError: λ is a 1-D tensor (one λ per head is (H, 1)) or does not broadcast, or a number is not finite.
    """
    dtype = statistics_dtype(query.dtype)
    if not isinstance(lam, Tensor):
        try:
            number = float(lam)
        except (TypeError, ValueError):
            raise ValueError(f"lam must be a number or a tensor, got {lam!r}") from None
        if not math.isfinite(number):
            raise ValueError(f"lam must be finite, got {lam}")
        return torch.full((1, 1, 1), number, dtype=dtype, device=query.device)
    if lam.device != query.device:
        raise ValueError(f"lam must be on query's device {query.device}, got {lam.device}")
    if lam.dim() == 1 or lam.dim() > 3:
        raise ValueError(
            f"lam must be a number, a 0-d tensor, or have 2 or 3 dimensions that broadcast to "
            f"(batch, heads, queries); per head is (heads, 1). Got shape {tuple(lam.shape)}"
        )
    full = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape))
    wanted = (shapes.batch, shapes.heads, shapes.queries)
    if any(size not in (1, target) for size, target in zip(full.shape, wanted, strict=True)):
        raise ValueError(f"lam of shape {tuple(lam.shape)} does not broadcast to (batch, heads, queries) = {wanted}")
    return full.to(dtype)


def check_mask(attn_mask: Tensor, query: Tensor, shapes: Shapes) -> Tensor:
    """A boolean mask, True = may attend, as (1|B, 1|H, 1|N, M).

    Raises:
        ValueError: the mask is additive, on another device, or does not broadcast to (B, H, N, M).
    """
    if attn_mask.dtype != torch.bool:
        raise ValueError(
            f"attn_mask must be boolean (True = may attend), got {attn_mask.dtype}; additive biases are not supported, "
            "give mask == 0 for a mask of 0 and very low values"
        )
    if attn_mask.device != query.device:
        raise ValueError(f"attn_mask must be on query's device {query.device}, got {attn_mask.device}")
    wanted = (shapes.batch, shapes.heads, shapes.queries, shapes.keys)
    shape = (1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape)
    if len(shape) != 4 or any(size not in (1, target) for size, target in zip(shape, wanted, strict=True)):
        raise ValueError(
            f"attn_mask of shape {tuple(attn_mask.shape)} does not broadcast to "
            f"(batch, heads, queries, keys) = {wanted}"
        )
    return attn_mask.reshape(shape).expand(-1, -1, -1, shapes.keys)


def check_real(lam: Tensor | None, mask: Tensor | None, query: Tensor) -> None:
    """That λ and the mask of a call that did not come through the interface are real, boolean, and where the query is.

    Raises:
        ValueError: one of them is not.
    """
    if lam is not None and not (lam.is_floating_point() and lam.device == query.device):
        raise ValueError(f"lam must be real and on query's device {query.device}, got {lam.dtype} on {lam.device}")
    if mask is not None and not (mask.dtype == torch.bool and mask.device == query.device):
        raise ValueError(f"the mask must be boolean and on {query.device}, got {mask.dtype} on {mask.device}")


def four_dimensions(mask: Tensor | None, keys: int) -> Tensor | None:
    """A mask as (1|B, 1|H, 1|N, M)."""
    if mask is None:
        return None
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape)).expand(-1, -1, -1, keys)


def positions_mask(
    queries: int, keys: int, *, is_causal: bool, sliding_window: int | None, device: torch.device
) -> Tensor | None:
    """The (N, M) mask of causality and window, the last query aligned with the last key; None if all is visible."""
    if not is_causal and sliding_window is None:
        return None
    distance = torch.arange(queries, device=device)[:, None] + (keys - queries) - torch.arange(keys, device=device)
    mask = distance >= 0
    if sliding_window is not None:
        mask &= distance < sliding_window
    return mask
