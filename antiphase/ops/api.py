"""``differential_attention``, the public operator: validation, autocast and the choice of an implementation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Literal, overload

import torch
from torch import Tensor

from antiphase.ops.blockwise import blockwise_attention
from antiphase.ops.decoding import attend_few, is_few, most_rows_of_kernels, within_window
from antiphase.ops.dispatch import differentiates, is_watched
from antiphase.ops.implementations import (
    kernels_for,
    refuse_transforms,
    resolve_implementation,
    step_module,
    transforms_of,
)
from antiphase.ops.native.library import MOST_SHARED, why_not_built
from antiphase.ops.native.library import why_not as why_not_native
from antiphase.ops.native.operators import native_attention
from antiphase.ops.native.steps import native_attention_of_few
from antiphase.ops.reference import reference_attention
from antiphase.ops.shapes import (
    Shapes,
    autocast_dtype,
    check_alike,
    check_lam,
    check_mask,
    check_tensors,
    four_dimensions,
    statistics_dtype,
)

IMPLEMENTATIONS = ("auto", "reference", "blockwise", "native", "triton")


@overload
def differential_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: float | Tensor,
    *,
    attn_mask: Tensor | None = ...,
    is_causal: bool = ...,
    sliding_window: int | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...


@overload
def differential_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: float | Tensor,
    *,
    attn_mask: Tensor | None = ...,
    is_causal: bool = ...,
    sliding_window: int | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def differential_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: float | Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    sliding_window: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The difference of two softmax attentions: ``(softmax(Q1 K1ᵀ s) - λ softmax(Q2 K2ᵀ s)) V``.

    Ye et al., Differential Transformer, arXiv 2410.05258, section 2.1, equation 1; keys shared by both maps are those
    of Differential Transformer V2 (Microsoft, January 2026). Softmax statistics are fp32 (fp64 for fp64 input); on
    processors with bf16 instructions, the maps of bf16 input are kept in bf16. A query that sees no key gives zeros.

    Example:
        >>> query, key = torch.randn(1, 8, 16, 32), torch.randn(1, 8, 16, 32)  # 4 heads, 2 maps each
        >>> value = torch.randn(1, 4, 16, 64)
        >>> antiphase.differential_attention(query, key, value, 0.2, is_causal=True).shape
        torch.Size([1, 4, 16, 64])

    Args:
        query: (B, 2H, N, d), floating point; maps 2i and 2i+1 belong to head i.
        key: (B, 2Hkv, M, d), two keys per value head (V1), or (B, Hkv, M, d), shared by both maps (V2). Head i reads
            value head g = i // (H / Hkv) and keys 2g, 2g+1 (V1) or g (V2).
        value: (B, Hkv, M, dv), any dv.
        lam: λ: a number, a 0-d tensor, or a 2-D or 3-D tensor that broadcasts to (B, H, N). Use (H, 1) for one λ per
            head; a 1-D tensor is refused.
        attn_mask: boolean, True = may attend, broadcastable to (B, H, N, M); a padding mask is (B, 1, 1, M).
        is_causal: aligns the last query with the last key (unlike ``scaled_dot_product_attention``, which aligns the
            first) and combines with ``attn_mask``.
        sliding_window: w ≥ 1: query i sees key j if 0 <= i - j < w, with the last query aligned with the last key.
        cu_seqlens_q: int32 (sequences + 1,), cumulative lengths starting at 0, for sequences packed along N that do not
            see each other; requires B = 1, ``cu_seqlens_k``, and no ``attn_mask``. Both are read on the host, which
            synchronizes with a GPU and breaks a compiled graph.
        cu_seqlens_k: the same for sequences packed along M.
        scale: factor of the scores; None means 1/√d.
        impl: "reference" (eager, the specification), "native" (compiled CPU kernels: fp32, bf16, fp64), "blockwise"
            (PyTorch's own products on any device; linear memory, hand-written backward), "triton" (fused kernels for
            CUDA devices, d up to 128 and dv up to 256, half precision or fp32) or "auto" (native or Triton kernels if
            they are built or installed and support the call; else plain matrix products for a few queries, and
            blockwise for more). "auto" depends on the build, dtype, device, sizes and form of the mask, on the sign of
            the scale, and on whether gradients are needed.
        return_weights: also return the signed weights (B, H, N, M); only with impl="reference" or "auto".

    Returns:
        (B, H, N, dv) in the input's dtype, and with ``return_weights`` the weights in fp32 (fp64) as well.

    Raises:
        ValueError: a shape, dtype, device or option is wrong; the message gives what was expected and what was given.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    if return_weights and impl not in ("auto", "reference"):
        raise ValueError(
            f'return_weights needs impl="reference": the {impl} implementation never forms the complete map'
        )
    if impl == "auto" and sliding_window is None and cu_seqlens_q is None and cu_seqlens_k is None and value.dim() == 4:
        step = None if return_weights else _step(query, key, value, lam, attn_mask, value.shape[1], is_causal, scale)
        if step is not None:
            return step
    query, key, value = _autocast(query, key, value)
    shapes = check_tensors(query, key, value)
    sliding_window = None if sliding_window is None else _check_window(sliding_window, shapes)
    scale = shapes.width**-0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    chosen = (
        "reference" if return_weights else resolve_implementation(impl, query, key, value, shapes.value_width, scale)
    )
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        if return_weights or attn_mask is not None:
            raise ValueError("cu_seqlens_q and cu_seqlens_k cannot be combined with attn_mask or return_weights")
        return _packed_attention(
            query, key, value, check_lam(lam, query, shapes), cu_seqlens_q, cu_seqlens_k,
            is_causal=is_causal, sliding_window=sliding_window, scale=scale, impl=chosen,
        )  # fmt: skip
    full_lam = check_lam(lam, query, shapes)
    mask = None if attn_mask is None else check_mask(attn_mask, query, shapes)
    casts = query.device.type != "meta" and torch.is_autocast_enabled(query.device.type)
    with torch.autocast(query.device.type, enabled=False) if casts else nullcontext():
        if chosen == "reference":
            out, weights = reference_attention(
                query, key, value, full_lam, mask,
                is_causal=is_causal, sliding_window=sliding_window, scale=scale, shapes=shapes,
            )  # fmt: skip
            return (out, weights) if return_weights else out
        if chosen == "triton":
            return _triton_attention(
                query, key, value, full_lam, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scale
            )
        if chosen == "native":
            return _native_attention(
                query, key, value, full_lam, mask,
                groups=shapes.value_heads, is_causal=is_causal, sliding_window=sliding_window, scale=scale,
            )  # fmt: skip
        if chosen == "auto" and is_few(query, key, shapes.value_heads, mask):
            return attend_few(
                query, key, value, full_lam, mask,
                groups=shapes.value_heads, is_causal=is_causal, sliding_window=sliding_window, scale=scale,
            )  # fmt: skip
        refuse_transforms("blockwise", query, key, value, full_lam)
        return blockwise_attention(query, key, value, full_lam, mask, is_causal, sliding_window or 0, scale)


def _step(
    query: Tensor, key: Tensor, value: Tensor, lam: float | Tensor, mask: Tensor | None, groups: int, is_causal: bool,
    scale: float | None,
) -> Tensor | None:  # fmt: skip
    """A few queries on the native kernels, whose operator checks shapes itself: the checks in Python would take longer
    than the attention. None if the call is of another kind, or the operator refuses it.
    """
    watched = is_watched((query, key, value, lam, mask))  # a refusal within a tracer or a mode would leave traces
    if watched or torch.is_autocast_enabled("cpu") or why_not_built() is not None:
        return None
    if type(lam) is float and math.isfinite(lam):
        lam = torch.scalar_tensor(lam, dtype=statistics_dtype(query.dtype), device="cpu")
    if not isinstance(lam, Tensor) or lam.dim() not in (0, 2, 3) or not (scale is None or type(scale) is float):
        return None
    if not (query.is_cpu and key.is_cpu and value.is_cpu and lam.is_cpu and (mask is None or mask.is_cpu)):
        return None
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad or lam.requires_grad
    ):
        return None
    if groups == 0 or query.dim() != 4 or key.dim() != 4 or not (mask is None or mask.dim() == 4):
        return None
    width = query.shape[3]
    if width == 0 or not is_few(query, key, groups, mask):
        return None
    try:
        out: Tensor = native_attention_of_few(
            query, key, value, lam, mask, groups, bool(is_causal), 0,
            width**-0.5 if scale is None else scale,
        )  # fmt: skip
    except ValueError:  # the caller's checks change the tensors, or say what is wrong
        return None
    return out


def _check_window(sliding_window: int, shapes: Shapes) -> int:
    """The window, no longer than all queries and keys together."""
    # callers without type checking may pass a float or a bool
    if type(sliding_window) is not int or sliding_window < 1:
        raise ValueError(f"sliding_window must be a whole number of at least 1, got {sliding_window!r}")
    return min(sliding_window, max(1, shapes.queries + shapes.keys))


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to autocast's dtype if it is enabled; fp64 stays, as everywhere in autocast."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    dtypes = [autocast_dtype(tensor) for tensor in tensors]
    return tuple(t if dtype is None else t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=True))


def _native_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    *,
    groups: int,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    edges: Sequence[Tensor | None] = (None, None),
    shared: int = 1,
) -> Tensor:
    """Shapes and ``shared``, of any size, as in ``native.operators.attend``; lam None means softmax attention."""
    tensors = [query, key, value] if lam is None else [query, key, value, lam]
    if not all(t.is_cpu for t in tensors) or not (mask is None or mask.is_cpu):  # the kernels need CPU addresses
        given = ", ".join(str(t.device) for t in (*tensors, *(() if mask is None else (mask,))))
        raise ValueError(f"query, key, value, lam and mask must share a device, got {given}")
    watched = is_watched((query, key, value, lam, mask))
    if watched:
        refuse_transforms("native", *tensors)
        if not torch.compiler.is_compiling() and any(t.is_neg() for t in tensors):  # memory holds the negated values
            query, key, value, *others = (tensor.resolve_neg() for tensor in tensors)
            lam = others[0] if others else None
    if sliding_window is not None:
        sliding_window = min(sliding_window, max(1, query.shape[2] + key.shape[2]))
    save = differentiates(*tensors)
    if not save and edges[0] is None and is_few(query, key, groups, mask, maps=1 if lam is None else 2):
        key, value, mask = within_window(query.shape[2], key, value, mask, sliding_window)
        few: Tensor = native_attention_of_few(
            query, key, value, lam, mask, groups, is_causal, sliding_window or 0, scale
        )
        return few
    in_turn = max(n for n in range(1, MOST_SHARED + 1) if math.gcd(shared, query.shape[1] // 2 // groups) % n == 0)
    out, _ = native_attention(
        query, key, value, lam, mask, *edges, groups, is_causal, sliding_window or 0, scale, save, in_turn
    )  # fmt: skip
    return out


def native_softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float | None,
) -> Tensor | None:
    """Softmax attention on the native kernels, (B, H, N, dv); None if they do not support the call.

    Args:
        query: (B, H, N, d).
        key, value: (B, Hkv, M, d) and (B, Hkv, M, dv).
        mask: boolean, broadcastable to (B, H, N, M), True = may attend.
        is_causal: the last query is aligned with the last key.
        sliding_window, scale: as in ``differential_attention``.
    """
    query, key, value = _autocast(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if why_not_native(query, scale) is not None or not query.dtype == key.dtype == value.dtype:
        return None
    if transforms_of(query, key, value) is not None:
        return None
    return _native_attention(
        query, key, value, None, four_dimensions(mask, key.shape[2]),
        groups=key.shape[1], is_causal=is_causal, sliding_window=sliding_window, scale=scale,
    )  # fmt: skip


def _triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    edges: Sequence[Tensor | None] = (None, None),
    longest: tuple[int, int] | None = None,
) -> Tensor:
    refuse_transforms("Triton", query, key, value, lam)
    groups = value.shape[1]
    if longest is None:
        out = attend_cached(
            query, key, value, lam, mask,
            groups=groups, is_causal=is_causal, sliding_window=sliding_window, scale=scale, impl="triton",
        )  # fmt: skip
        if out is not None:
            return out
    sizes = (query.shape[2], key.shape[2]) if longest is None else longest
    launch, save = kernels_for(query, value.shape[-1]), differentiates(query, key, value, lam)
    out, _, _ = launch.triton_attention(
        query, key, value, lam, mask, *edges, *sizes, is_causal, sliding_window or 0, scale, save
    )
    return out


def attend_cached(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    *,
    groups: int,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    impl: str,
    shared: int = 1,
) -> Tensor | None:
    """Attention over keys and values in the layout of a cache: by the native kernels, else by ``attend_few``.

    Arguments and result as in ``decoding.attend_few``; ``shared`` neighbouring heads have the same second query and
    mask. None if the caller should use ``differential_attention``, or where heads share form both maps apart, and for
    the Triton kernels if gradients are needed, which these do not have.
    """
    if impl == "auto" and sliding_window is None:
        step = _step(query, key, value, lam, mask, groups, is_causal, scale)
        if step is not None:
            return step
    query, key, value = _autocast(query, key, value)
    value_width = value.shape[1] // groups * value.shape[3]
    chosen = resolve_implementation(impl, query, key, value, value_width, scale)
    if chosen == "native":
        if lam.dim() != 3 and lam.numel() > 1:
            lam = lam.reshape((1,) * (3 - lam.dim()) + lam.shape)
        if lam.dtype != statistics_dtype(query.dtype):
            lam = lam.to(statistics_dtype(query.dtype))
        return _native_attention(
            query, key, value, lam, four_dimensions(mask, key.shape[2]),
            groups=groups, is_causal=is_causal, sliding_window=sliding_window, scale=scale, shared=shared,
        )  # fmt: skip
    if shared > 1:
        return None
    if chosen == "auto" and is_few(query, key, groups, mask):
        return attend_few(
            query, key, value, lam, mask,
            groups=groups, is_causal=is_causal, sliding_window=sliding_window, scale=scale,
        )  # fmt: skip
    if chosen != "triton" or differentiates(query, key, value, lam):
        return None
    if not is_few(query, key, groups, mask, most_rows_of_kernels(value_width)):
        return None
    refuse_transforms("Triton", query, key, value, lam)
    check_alike(query, key, value)
    kernels_for(query, value_width)
    key, value, mask = within_window(query.shape[2], key, value, mask, sliding_window)
    return step_module().triton_attend_few(query, key, value, lam, mask, groups, is_causal, sliding_window or 0, scale)


def _packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    impl: str,
) -> Tensor:
    """Sequences packed into one row (B = 1): one call per sequence, so that none sees another."""
    query_edges = _check_edges("cu_seqlens_q", cu_seqlens_q, query)
    key_edges = _check_edges("cu_seqlens_k", cu_seqlens_k, key)
    if len(query_edges) != len(key_edges):
        raise ValueError(
            f"cu_seqlens_q and cu_seqlens_k must hold equally many sequences, "
            f"got {len(query_edges) - 1} and {len(key_edges) - 1}"
        )
    assert cu_seqlens_q is not None
    assert cu_seqlens_k is not None
    if impl == "native":
        return _native_attention(
            query, key, value, lam, None, groups=value.shape[1],
            is_causal=is_causal, sliding_window=sliding_window, scale=scale,
            edges=[torch.tensor(own, dtype=torch.int32, device="cpu") for own in (query_edges, key_edges)],
        )  # fmt: skip
    if impl == "triton":
        longest_query, longest_key = (
            max(stop - start for start, stop in pairwise(edges)) for edges in (query_edges, key_edges)
        )
        return _triton_attention(
            query, key, value, lam, None, is_causal=is_causal, sliding_window=sliding_window, scale=scale,
            edges=tuple(edges.to(query.device).contiguous() for edges in (cu_seqlens_q, cu_seqlens_k)),
            longest=(longest_query, longest_key),
        )  # fmt: skip
    outputs = []
    for index in range(len(query_edges) - 1):
        rows = slice(query_edges[index], query_edges[index + 1])
        columns = slice(key_edges[index], key_edges[index + 1])
        outputs.append(
            differential_attention(
                query[:, :, rows],
                key[:, :, columns],
                value[:, :, columns],
                lam[:, :, rows] if lam.shape[2] > 1 else lam,
                is_causal=is_causal,
                sliding_window=sliding_window,
                scale=scale,
                impl=impl,
            )
        )
    return torch.cat(outputs, dim=2)


def _check_edges(name: str, edges: Tensor | None, tensor: Tensor) -> list[int]:
    if edges is None:
        raise ValueError("cu_seqlens_q and cu_seqlens_k must be given together")
    if edges.dtype != torch.int32 or edges.dim() != 1 or edges.numel() < 2:
        raise ValueError(f"{name} must be int32 of shape (sequences + 1,), got {edges.dtype} {tuple(edges.shape)}")
    if tensor.shape[0] != 1:
        raise ValueError(f"{name} needs batch size 1 (sequences end to end), got {tensor.shape[0]}")
    found: list[int] = edges.tolist()
    if found[0] != 0 or found[-1] != tensor.shape[2] or sorted(found) != found:
        raise ValueError(f"{name} must rise from 0 to the length {tensor.shape[2]}, got {found}")
    return found
