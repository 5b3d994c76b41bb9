"""The blockwise operator equals the reference: outputs and every gradient, at odd sizes and in forced rare branches."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from antiphase import differential_attention
from antiphase.ops import blocks, blockwise, shapes
from antiphase.ops.shapes import product_dtype
from support import attention
from support.attention import Largest, inputs, run


@pytest.fixture(params=["one block", "many blocks"])
def cuts(request, monkeypatch):
    """Force both extremes: everything in one block, and blocks of four rows with one unit at a time."""
    if request.param == "many blocks":
        monkeypatch.setattr(blocks, "QUERY_ROWS", 4)
        monkeypatch.setattr(blocks, "SCORES_IN_CACHE", 30)


@pytest.mark.grid
@pytest.mark.usefixtures("cuts")
@pytest.mark.parametrize("key_maps", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (7, 7), (13, 13), (7, 3), (5, 13)])
def test_equals_the_reference(key_maps, is_causal, window, queries, keys):
    for (heads, groups), lam_shape in itertools.product(
        [(4, 2), (3, 3), (6, 1)], [(), ("heads", 1), (2, 1, "queries")]
    ):
        query, key, value = inputs(2, heads, groups, queries, keys, 4, 5, key_maps)
        shape = tuple({"heads": heads, "queries": queries}.get(size, size) for size in lam_shape)
        lam = torch.rand(shape, dtype=torch.float64, requires_grad=True)
        attention.assert_equal_to_reference(
            "blockwise", query, key, value, lam, is_causal=is_causal, sliding_window=window
        )


@pytest.mark.usefixtures("cuts")
@pytest.mark.parametrize("shape", [(2, 1, 1, 9), (2, 4, 7, 9), (1, 4, 1, 9), (7, 9), (2, 1, 7, 9), (9,), (7, 1)])
@pytest.mark.parametrize("key_maps", [1, 2])
def test_masks_that_broadcast(shape, key_maps):
    query, key, value = inputs(2, 4, 2, 7, 9, 4, 5, key_maps)
    lam = torch.rand(4, 1, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape) > 0.4
    for is_causal in (False, True):
        attention.assert_equal_to_reference("blockwise", query, key, value, lam, attn_mask=mask, is_causal=is_causal)


@pytest.mark.usefixtures("cuts")
@pytest.mark.parametrize("impl", ["reference", "blockwise"])
def test_rows_that_see_nothing_are_zero_with_zero_gradient(impl):
    attention.assert_blind_rows_are_zero(impl, 6)


@pytest.mark.usefixtures("cuts")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(data):
    tensors, options = attention.drawn_call(data, 19, 6)
    attention.assert_equal_to_reference("blockwise", *tensors, **options)


@pytest.mark.parametrize("impl", ["reference", "blockwise", "auto"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_documents_end_to_end(impl, data):
    attention.assert_documents_are_apart(impl, data, 9)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape_in_bf16(data):
    """No form, mask or size goes wrong in the ways that only half precision takes; how exact it is others measure."""
    groups, repeats, key_maps = (data.draw(st.integers(1, 2)) for _ in range(3))
    heads, queries, keys = groups * repeats, data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    exact = inputs(1, heads, groups, queries, keys, 8, 8, key_maps)
    low = [t.detach().bfloat16().requires_grad_() for t in exact]
    exact = [t.detach().double().requires_grad_() for t in low]
    lam = torch.rand(heads, data.draw(st.sampled_from([1, queries])), requires_grad=True)
    options = {"is_causal": data.draw(st.booleans()), "sliding_window": data.draw(st.sampled_from([None, 7]))}
    if data.draw(st.booleans()):
        options["attn_mask"] = torch.rand(1, 1, 1, keys) > 0.3
    expected = run("reference", *exact, lam.detach().double().requires_grad_(), **options)
    eager = run("reference", *low, lam, **options)
    for one, usual, other in zip(run("blockwise", *low, lam, **options), eager, expected, strict=True):
        error, eager_error = ((found.detach().double() - other).abs().max() for found in (one, usual))
        assert error <= max(0.06 * max(1.0, other.detach().abs().max()), 2 * eager_error)


@pytest.mark.parametrize("impl", ["blockwise", "auto"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 40, 40), (2, 0, 0)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"sliding_window": 2}])
def test_nothing_to_do(impl, batch, queries, keys, options):
    tensors = inputs(batch, 4, 2, queries, keys, 4, 6, 2)
    lam = torch.tensor(0.4, requires_grad=True)
    for one, other in zip(run(impl, *tensors, lam, **options), run("reference", *tensors, lam, **options), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("lam", [0.8037, 0.95, 0.9969])
def test_a_lam_near_one_is_not_rounded_where_the_maps_agree(lam, monkeypatch):
    """The first row of every causal sequence is (1 - λ) V."""
    monkeypatch.setattr(shapes, "has_bf16_instructions", lambda: True)  # where there are none, maps are fp32
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, maps, 40, 16).bfloat16() for maps in (4, 4, 2))
    found, expected = (
        run(impl, *(t.detach().requires_grad_() for t in (query.to(dtype), key.to(dtype), value.to(dtype))),
            torch.tensor(lam, dtype=torch.float64).to(kept).requires_grad_(), is_causal=True)
        for impl, dtype, kept in (("blockwise", torch.bfloat16, torch.float32),
                                  ("reference", torch.float64, torch.float64))
    )  # fmt: skip
    first = found[0][:, :, 0].double(), expected[0][:, :, 0]
    assert (first[0] - first[1]).abs().max() <= 0.01 * first[1].abs().max()


@pytest.mark.parametrize("name", ["query", "key", "value", "lam"])
def test_sums_of_half_precision_are_kept_in_full(name, monkeypatch):
    """Gradients of bf16 input err little more than eager attention's, though they are sums over many blocks."""
    monkeypatch.setattr(blocks, "QUERY_ROWS", 8)
    monkeypatch.setattr(shapes, "has_bf16_instructions", lambda: True)
    torch.manual_seed(0)
    length, width = 700, 32
    tensors = [torch.randn(1, maps, length, width).bfloat16() for maps in (2, 2, 1)]
    tensors.append(torch.rand(1, 1, length))
    cotangent = torch.randn(1, 1, length, width).bfloat16()

    def gradient(impl, dtype):
        leaves = [t.to(dtype if index < 3 else max(dtype, torch.float32, key=lambda d: d.itemsize)).requires_grad_()
                  for index, t in enumerate(tensors)]  # fmt: skip
        out = differential_attention(*leaves, is_causal=True, impl=impl)
        index = ["query", "key", "value", "lam"].index(name)
        return torch.autograd.grad(out, leaves[index], cotangent.to(out.dtype))[0].double()

    true = gradient("reference", torch.float64)
    error, usual = (
        (gradient(impl, torch.bfloat16) - true).square().mean().sqrt() for impl in ("blockwise", "reference")
    )
    assert error <= (1.02 if name == "lam" else 1.6) * usual


def test_forward_mode_is_refused_not_ignored():
    tensors = inputs(1, 2, 1, 40, 40, 4, 6, 2)
    tangent = torch.randn_like(tensors[0])
    with pytest.raises(ValueError, match="forward-mode"):
        torch.func.jvp(lambda q: differential_attention(q, *tensors[1:], 0.4), (tensors[0],), (tangent,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensors[2], torch.randn_like(tensors[2]))
        with pytest.raises(ValueError, match="forward-mode"):
            differential_attention(*tensors[:2], dual, 0.4)
    _, found = torch.func.jvp(
        lambda q: differential_attention(q, *tensors[1:], 0.4, impl="reference"), (tensors[0],), (tangent,)
    )
    assert found.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_maps", [1, 2])
def test_errs_at_most_twice_the_eager_error_and_a_rounding(dtype, key_maps):
    tensors = inputs(2, 4, 2, 150, 150, 16, 24, key_maps, dtype)
    attention.assert_keeps_the_tolerance_rule(
        "blockwise", *tensors, torch.rand(4, 1, requires_grad=True), is_causal=True
    )


def test_uninitialised_memory_never_shows(monkeypatch):
    """Every buffer starts as NaN; whatever is read before it is written would spread."""
    original = torch.Tensor.new_empty

    def poisoned(self, *args, **kwargs):
        made = original(self, *args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(blocks, "QUERY_ROWS", 4)
    monkeypatch.setattr(blocks, "SCORES_IN_CACHE", 64)
    query, key, value = inputs(2, 4, 2, 11, 9, 4, 5, 2)
    lam = torch.rand(4, 1, dtype=torch.float64, requires_grad=True)
    attention.assert_equal_to_reference("blockwise", query, key, value, lam, is_causal=True)


def test_nan_in_a_query_stays_in_its_row():
    query, key, value = inputs(1, 1, 1, 6, 6, 4, 5, 2)
    with torch.no_grad():
        query[0, 0, 3] = float("nan")
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    out = differential_attention(query, key, value, 0.5, attn_mask=mask, is_causal=True, impl="blockwise")
    assert out[0, 0, 3].isnan().all()
    assert out[0, 0, [0, 1, 2, 4, 5]].isfinite().all()


def largest_tensor(batch, heads, length, window=0):
    """Of a forward and backward pass."""
    query, key, value = (t.detach() for t in inputs(batch, heads, heads, length, length, 8, 8, 2, dtype=torch.float32))
    arguments = (query, key, value, torch.full((1, 1, 1), 0.5), None, True, window, 1.0)
    with Largest() as largest:
        blockwise.attend_backward(blockwise.attend(*arguments), *arguments)
    return largest.size


def test_only_as_much_memory_as_a_block_of_queries_needs():
    """The largest tensor made grows with the keys, not with queries times keys."""
    sizes = {length: largest_tensor(1, 1, length) for length in (4096, 8192)}
    assert sizes[4096] >= blocks.QUERY_ROWS * 4096  # the mode sees the buffer of one map's scores
    assert sizes[8192] <= 2 * sizes[4096]
    assert largest_tensor(1, 2, 1000, window=10) == 2 * 128 * (128 + 9)  # the keys that a block sees, of two heads


def test_heads_go_together_only_as_far_as_their_scores_stay_in_cache(monkeypatch):
    monkeypatch.setattr(blocks, "SCORES_IN_CACHE", 1 << 18)
    assert (1 << 17) <= largest_tensor(2, 16, 256) <= 1 << 18


@pytest.fixture
def work_of(monkeypatch):
    """A function that gives the multiply-adds of one forward pass over 256 tokens in blocks of 16."""

    def measure(**options):
        formed = []
        original = torch.bmm

        def counting(one, other, **kwargs):
            formed.append(one.shape[0] * one.shape[1] * one.shape[2] * other.shape[2])
            return original(one, other, **kwargs)

        query, key, value = (t.detach() for t in inputs(1, 2, 2, 256, 256, 8, 16, 2))
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "QUERY_ROWS", 16)
            patch.setattr(torch, "bmm", counting)
            differential_attention(query, key, value, 0.5, impl="blockwise", **options)
        return sum(formed)

    return measure


def test_blocks_above_the_diagonal_are_not_computed(work_of):
    """Half of the scores of a causal square are never formed."""
    assert 0.5 <= work_of(is_causal=True) / work_of() <= 0.55


def test_keys_that_a_window_has_left_behind_are_not_computed(work_of):
    """The work grows with the window, not with the square of the length."""
    assert work_of(is_causal=True, sliding_window=16) < 0.25 * work_of(is_causal=True)


def test_strided_input_as_models_give_it():
    """Heads inside positions, as a projection's output is viewed."""
    query = torch.randn(2, 7, 8, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
    key = torch.randn(2, 7, 4, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
    value = torch.randn(2, 7, 2, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    lam = torch.rand((), dtype=torch.float64, requires_grad=True)
    attention.assert_equal_to_reference("blockwise", query, key, value, lam, is_causal=True)


@pytest.mark.parametrize("impl", ["reference", "blockwise"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("window", [None, 3])
def test_a_key_that_is_not_finite_touches_only_queries_that_see_it(impl, poison, window):
    attention.assert_poison_stays(impl, 8, 4, poison, window)


@pytest.mark.parametrize("impl", ["reference", "blockwise"])
def test_shapes_come_out_of_the_meta_device(impl):
    query, key, value = (t.detach().to("meta") for t in inputs(1, 2, 2, 5, 8, 4, 6, 2))
    out = differential_attention(query, key, value, 0.5, is_causal=True, impl=impl)
    assert (out.device.type, out.shape) == ("meta", (1, 2, 5, 6))


def test_output_is_laid_out_for_the_layer():
    """(B, H, N, dv) stored as (B, N, H, dv): the layer's transpose and reshape copy nothing."""
    query, key, value = (t.detach() for t in inputs(2, 4, 2, 7, 7, 4, 5, 2))
    out = differential_attention(query, key, value, 0.5, impl="blockwise")
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.slow
def test_compiles_without_a_graph_break():
    query, key, value = inputs(1, 2, 2, 9, 9, 4, 8, 2, dtype=torch.float32)
    lam = torch.tensor(0.5, requires_grad=True)

    def call(*tensors):
        return differential_attention(*tensors, is_causal=True).square().sum()

    expected = torch.autograd.grad(call(query, key, value, lam), (query, key, value, lam))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(query, key, value, lam), (query, key, value, lam))
    torch.testing.assert_close(found, expected)


def test_operator_registration_is_sound():
    """Torch's own checks of the schema, the fake kernels and autograd."""
    query, key, value = inputs(1, 2, 1, 5, 5, 4, 6, 2, dtype=torch.float32)
    lam = torch.rand(1, 2, 1, requires_grad=True)
    arguments = (query, key, value, lam, None, True, 0, 0.5)
    torch.library.opcheck(blockwise.blockwise_attention, arguments)
    plain = [tensor.detach() for tensor in (query, key, value)]
    by_token = torch.rand(1, 5, 2).transpose(1, 2)  # as V2 computes it
    grad = torch.rand(1, 2, 5, 6)
    torch.library.opcheck(blockwise.blockwise_attention_backward, (grad, *plain, by_token, None, True, 0, 0.5))


def test_double_backward_is_refused():
    query, key, value = inputs(1, 1, 1, 3, 3, 2, 2, 2)
    out = differential_attention(query, key, value, 0.5, impl="blockwise")
    (grad,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=r'no second derivatives; use .*impl="reference"'):
        grad.sum().backward()


def test_subtracting_two_sdpa_calls_gives_the_same():
    """An independent implementation: torch's own attention for each map."""
    query, key, value = (t.detach() for t in inputs(2, 3, 3, 33, 33, 8, 16, 2))
    first = scaled_dot_product_attention(query[:, ::2], key[:, ::2], value, is_causal=True)
    second = scaled_dot_product_attention(query[:, 1::2], key[:, 1::2], value, is_causal=True)
    found = differential_attention(query, key, value, 0.4, is_causal=True, impl="blockwise")
    torch.testing.assert_close(found, first - 0.4 * second)


@pytest.mark.parametrize("has_instructions", [True, False])
def test_bf16_products_where_the_processor_has_them(monkeypatch, has_instructions):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    half = torch.zeros(1, dtype=torch.bfloat16)
    assert product_dtype(half) == (torch.bfloat16 if has_instructions else torch.float32)
    assert product_dtype(half.half()) == torch.float32
    assert product_dtype(half.half().to("meta")) == torch.float16
    assert product_dtype(half.double()) == torch.float64
    query, key, value = (t.detach().bfloat16() for t in inputs(1, 2, 1, 300, 300, 8, 8, 2))
    exact = differential_attention(query.double(), key.double(), value.double(), 0.4, is_causal=True, impl="reference")
    found = differential_attention(query, key, value, 0.4, is_causal=True, impl="blockwise")
    eager = differential_attention(query, key, value, 0.4, is_causal=True, impl="reference")
    attention.assert_errs_at_most_twice(found, eager, exact)
