"""Which implementation serves a call of ``differential_attention``: what was named, else what fits the device."""

from __future__ import annotations

from importlib import util
from typing import Any

import torch
from torch import Tensor

from antiphase.ops.decoding import attend_few

IMPLEMENTATIONS = ("auto", "reference", "blockwise", "triton")
HAS_TRITON = util.find_spec("triton") is not None


def takes_triton(impl: str, query: Tensor, value_width: int) -> bool:
    """Whether the Triton kernels serve a call: where they are named, and under "auto" on GPUs, if they cover it.

    Raises:
        ValueError: they are named and cannot; it says what would work.
    """
    if impl == "triton":
        if not HAS_TRITON:
            raise ValueError('impl="triton" needs Triton: pip install \'antiphase[triton]\', or use impl="blockwise"')
        reason = _why_not(query, value_width)
        if reason is not None:
            raise ValueError(reason)
        return True
    return impl == "auto" and HAS_TRITON and query.device.type == "cuda" and _why_not(query, value_width) is None


def _why_not(query: Tensor, value_width: int) -> str | None:
    from antiphase.ops.triton.launch import why_not

    return why_not(query, value_width)


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether a call on these will be differentiated."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def few_attention(
    query: Tensor, key: Tensor, value: Tensor, lam: Tensor, mask: Tensor | None, *, groups: int, **options: Any
) -> Tensor:
    """``decoding.attend_few``, on GPUs by its Triton form where no derivatives are asked for; arguments as there."""
    width = value.shape[1] // groups * value.shape[-1]
    if takes_triton("auto", query, width) and not needs_gradient(query, key, value, lam):
        from antiphase.ops.triton.launch import triton_attend_few

        return triton_attend_few(query, key, value, lam, mask, groups=groups, **options)
    return attend_few(query, key, value, lam, mask, groups=groups, **options)
