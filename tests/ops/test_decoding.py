"""Few queries against a cache give what the reference gives, in both forms, with every mask and gradient."""

import itertools

import pytest
import torch

from antiphase.layers.functions import join_halves
from antiphase.ops.api import differential_attention
from antiphase.ops.decoding import attend_few
from support.attention import assert_errs_at_most_twice


def inputs(halves, *, heads, groups, queries, keys, dtype=torch.float64):
    shapes = [(2, 2 * heads, queries, 6), (2, groups * halves, keys, 6), (2, groups * halves, keys, 6)]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def reference(halves, query, key, value, lam, **options):
    whole = join_halves(value) if halves == 2 else value
    return differential_attention(query, key, whole, lam, impl="reference", **options)


MASKS = {
    "none": lambda keys: None, "padding": lambda keys: torch.arange(keys) >= torch.tensor([0, 2])[:, None, None, None],
    "nothing to see in one row": lambda keys: torch.arange(keys) >= torch.tensor([0, keys])[:, None, None, None],
}  # fmt: skip


@pytest.mark.grid
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
    found = attend_few(*tensors, lam, visible, groups=groups, **options)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    cotangent = torch.randn_like(expected)
    gradients = [torch.autograd.grad(out, (*tensors, lam), cotangent) for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_error_is_at_most_twice_that_of_the_reference_at_the_same_dtype(halves, dtype):
    tensors = [t.detach() for t in inputs(halves, heads=4, groups=2, queries=1, keys=300, dtype=dtype)]
    lam = torch.tensor(0.4)
    exact = reference(halves, *(t.double() for t in tensors), lam.double())
    few = attend_few(*tensors, lam, None, groups=2, is_causal=False, sliding_window=None, scale=6**-0.5)
    assert few.dtype == dtype
    assert_errs_at_most_twice(few, reference(halves, *tensors, lam), exact)


def test_lambda_of_any_shape_that_broadcasts():
    tensors = inputs(2, heads=4, groups=2, queries=3, keys=5)
    for shape in itertools.chain([(), (4, 1), (1, 3)], itertools.product((1, 2), (1, 4), (1, 3))):
        lam = torch.rand(shape, dtype=torch.float64)
        found = attend_few(*tensors, lam, None, groups=2, is_causal=True, sliding_window=None, scale=0.4)
        expected = reference(2, *tensors, lam, is_causal=True, scale=0.4)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize(("heads", "groups", "queries", "few"), [(4, 4, 16, True), (8, 2, 4, True), (8, 2, 5, False)])
def test_the_operator_uses_this_path_for_few_rows_only(monkeypatch, halves, heads, groups, queries, few):
    tensors = [t.detach() for t in inputs(halves, heads=heads, groups=groups, queries=queries, keys=20)]
    if halves == 2:
        tensors[2] = join_halves(tensors[2])
    calls = []

    def counted(*arguments, **options):
        calls.append(options["groups"])
        return attend_few(*arguments, **options)

    monkeypatch.setattr("antiphase.ops.api.attend_few", counted)
    monkeypatch.setattr("antiphase.ops.implementations.why_not_native", lambda query, scale: "not built")
    monkeypatch.setattr("antiphase.ops.api.why_not_built", lambda: "not built")
    for mask in (None, torch.rand(2, 1, 1, 20) > 0.3):
        found = differential_attention(*tensors, 0.4, attn_mask=mask, is_causal=True)
        expected = differential_attention(*tensors, 0.4, attn_mask=mask, is_causal=True, impl="reference")
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert calls == ([groups] * 2 if few else [])
    differential_attention(*tensors, 0.4, attn_mask=torch.ones(2, heads, 1, 20).bool())
    assert len(calls) == 2 * few  # a mask by head is not for this way


@pytest.mark.parametrize("halves", [1, 2])
def test_softmax_and_subtraction_of_half_precision_are_fp32(halves):
    """A step errs no more than eager attention, which keeps both in fp32."""
    tensors = inputs(halves, heads=4, groups=4, queries=1, keys=400, dtype=torch.bfloat16)
    lam = torch.full((1, 4, 1), 0.97)
    with torch.no_grad():
        true = reference(halves, *(t.double() for t in tensors), lam.double())
        usual = (reference(halves, *tensors, lam).double() - true).square().mean().sqrt()
        found = attend_few(
            *tensors, lam, None, groups=4, is_causal=True, sliding_window=None, scale=6**-0.5
        )  # fmt: skip
    assert (found.double() - true).square().mean().sqrt() <= 1.05 * usual


def test_products_of_fp16_do_not_overflow():
    """24 · 24 · 128 is above fp16's largest number; its scaled score is not."""
    query, key = (torch.full((1, 4, n, 128), 24.0).half() for n in (1, 17))
    value = torch.randn(1, 2, 17, 128).half()
    found = differential_attention(query, key, value, 0.4, is_causal=True)
    torch.testing.assert_close(found.float(), 0.6 * value.float().mean(2, keepdim=True), rtol=1e-2, atol=1e-3)
