"""Few queries against a cache give what the reference gives, in both forms, with every mask and gradient."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphase.interface import join_halves
from antiphase.ops.api import differential_attention
from antiphase.ops.decoding import attend_few


def inputs(
    halves: int, *, heads: int, groups: int, queries: int, keys: int, dtype: Any = torch.float64
) -> list[Tensor]:
    shapes = [(2, 2 * heads, queries, 6), (2, groups * halves, keys, 6), (2, groups * halves, keys, 6)]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def reference(halves: int, query: Tensor, key: Tensor, value: Tensor, lam: Any, **options: Any) -> Tensor:
    whole = join_halves(value) if halves == 2 else value
    return differential_attention(query, key, whole, lam, impl="reference", **options)


MASKS: dict[str, Any] = {
    "none": lambda keys: None,
    "padding": lambda keys: torch.arange(keys) >= torch.tensor([0, 2])[:, None, None, None],
    "nothing to see in one row": lambda keys: torch.arange(keys) >= torch.tensor([0, keys])[:, None, None, None],
}


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize(("heads", "groups"), [(3, 3), (6, 2), (4, 1)])
@pytest.mark.parametrize(("queries", "is_causal"), [(1, False), (3, True), (3, False)])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_are_those_of_the_reference(halves, heads, groups, queries, is_causal, window, mask):
    tensors = inputs(halves, heads=heads, groups=groups, queries=queries, keys=7)
    lam = torch.rand(2, heads, queries, dtype=torch.float64, requires_grad=True)
    visible = MASKS[mask](7)
    options = {"is_causal": is_causal, "sliding_window": window, "scale": 0.3}
    expected = reference(halves, *tensors, lam, attn_mask=visible, **options)
    found = attend_few(*tensors, lam, visible, halves=halves, **options)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    cotangent = torch.randn_like(expected)
    gradients = [torch.autograd.grad(out, (*tensors, lam), cotangent) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_error_is_at_most_twice_that_of_the_reference_at_the_same_dtype(halves, dtype):
    tensors = [t.detach() for t in inputs(halves, heads=4, groups=2, queries=1, keys=300, dtype=dtype)]
    lam = torch.tensor(0.4)
    exact = reference(halves, *(t.double() for t in tensors), lam.double())
    rounding = (exact.to(dtype).double() - exact).abs().max()
    eager = (reference(halves, *tensors, lam).double() - exact).abs().max()
    few = attend_few(*tensors, lam, None, halves=halves, is_causal=False, sliding_window=None, scale=6**-0.5)
    assert few.dtype == dtype
    assert (few.double() - exact).abs().max() <= 2 * (eager + rounding)


def test_lambda_of_any_shape_that_broadcasts():
    tensors = inputs(2, heads=4, groups=2, queries=3, keys=5)
    for shape in itertools.chain([(), (4, 1), (1, 3)], itertools.product((1, 2), (1, 4), (1, 3))):
        lam = torch.rand(shape, dtype=torch.float64)
        found = attend_few(*tensors, lam, None, halves=2, is_causal=True, sliding_window=None, scale=0.4)
        expected = reference(2, *tensors, lam, is_causal=True, scale=0.4)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
