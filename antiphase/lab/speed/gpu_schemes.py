"""Candidates for timing on a GPU: the fused kernels, and users' alternatives, with each backend by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

from antiphase.lab.speed.schemes import (
    BLOCKWISE,
    CAPTURED,
    DIFFLLAMA,
    FOUR_CALLS,
    ONE_CALL_V2,
    OURS_V2,
    SOFTMAX,
    Scheme,
    by_backend,
    ours,
)
from antiphase.layers.functions import join_halves
from antiphase.ops.decoding import attend_few


def two_padded_calls(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """One call per map with whole values; queries and keys are zero-padded to equal widths, for flash attention."""
    whole, width = join_halves(value), query.shape[-1]
    first, second = (
        scaled_dot_product_attention(
            pad(query[:, m::2], (0, width)), pad(key[:, m::2], (0, width)), whole, is_causal=True, scale=width**-0.5
        )
        for m in (0, 1)
    )
    return first - lam * second


def flex(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """FlexAttention: one call with all maps, each with its head's whole values, then the subtraction."""
    whole = join_halves(value).repeat_interleave(2, dim=1)
    attend = compiled_flex(query.shape, query.requires_grad)
    both = attend(query, key, whole, block_mask=_causal(query.shape[2], str(query.device)))
    return both[:, ::2] - lam * both[:, 1::2]


def by_products(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """A decoding step without the kernels: plain products, which "auto" takes where they do not run."""
    return attend_few(
        query, key, value, lam, None, groups=query.shape[1] // 2, is_causal=False, sliding_window=None,
        scale=query.shape[-1] ** -0.5,
    )  # fmt: skip


@cache
def compiled_flex(shape: torch.Size, is_trained: bool) -> Callable[..., Any]:
    """FlexAttention as intended by its authors, compiled for one shape of queries.

    Each call resets the compiler's count of variants: beyond its limit, the uncompiled form would run, which stores N ×
    N scores.
    """
    torch._dynamo.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def _causal(length: int, device: str) -> BlockMask:
    return create_block_mask(lambda b, h, query, key: query >= key, None, None, length, length, device=device)


FLASH = by_backend(SOFTMAX, "flash", SDPBackend.FLASH_ATTENTION)
CUDNN = by_backend(SOFTMAX, "cuDNN", SDPBackend.CUDNN_ATTENTION)
FLASH_DIFFLLAMA = by_backend(DIFFLLAMA, "DiffLlama on flash", SDPBackend.FLASH_ATTENTION)
FLASH_FOUR_CALLS = by_backend(FOUR_CALLS, "four flash calls", SDPBackend.FLASH_ATTENTION)
FLASH_TWO_CALLS = by_backend(
    Scheme("", two_padded_calls, forward=8, backward=20), "two flash calls", SDPBackend.FLASH_ATTENTION
)
FLASH_V2 = by_backend(ONE_CALL_V2, "one flash call for V2", SDPBackend.FLASH_ATTENTION)
FLEX = Scheme("FlexAttention", flex, forward=6, backward=20)  # forms the scores anew for queries and for keys
BLOCKWISE_V2 = replace(OURS_V2, name="V2 blockwise", run=partial(ours, halves=1, impl="blockwise"))
BY_PRODUCTS = replace(BLOCKWISE, name="V1 by products", run=by_products)
BY_PRODUCTS_V2 = replace(OURS_V2, name="V2 by products", run=by_products)
FUSED = Scheme("V1", partial(ours, impl="triton"), forward=6, backward=14)
FUSED_V2 = Scheme("V2", partial(ours, halves=1, impl="triton"), forward=4, backward=11, shares_keys=True)

_WAYS = [FLASH, CUDNN, FLASH_DIFFLLAMA, FLASH_TWO_CALLS, FLASH_FOUR_CALLS, FLEX, BLOCKWISE]
COMPARED_ON_GPU: dict[str, Sequence[tuple[Scheme, Sequence[Scheme]]]] = {
    "forward + backward": [(FUSED, _WAYS), (FUSED_V2, [FLASH, FLASH_V2, BLOCKWISE_V2])],
    "forward": [(FUSED, _WAYS), (FUSED_V2, [FLASH, FLASH_V2, BLOCKWISE_V2])],
    "decode": [(FUSED, [FLASH, FLASH_DIFFLLAMA, BY_PRODUCTS]), (FUSED_V2, [FLASH, FLASH_V2, BY_PRODUCTS_V2])],
    CAPTURED: [(FUSED, [FLASH, FLASH_DIFFLLAMA, BY_PRODUCTS]), (FUSED_V2, [FLASH, FLASH_V2, BY_PRODUCTS_V2])],
}
"""As ``schemes.COMPARED``; the costs of the kernels are those of their plan (docs/performance.md)."""
