"""The blockwise operator equals the reference: outputs and every gradient, at odd sizes and in forced rare branches."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from antiphase import differential_attention
from antiphase.ops import blocks, blockwise
from antiphase.ops.shapes import positions_mask, product_dtype


def inputs(batch, heads, groups, queries, keys, width, value_width, key_maps, dtype=torch.float64):
    query = torch.randn(batch, 2 * heads, queries, width, dtype=dtype, requires_grad=True)
    key = torch.randn(batch, key_maps * groups, keys, width, dtype=dtype, requires_grad=True)
    value = torch.randn(batch, groups, keys, value_width, dtype=dtype, requires_grad=True)
    return query, key, value


def run(impl, query, key, value, lam, **options):
    """Output and the gradients of query, key, value and λ for a fixed cotangent."""
    out = differential_attention(query, key, value, lam, impl=impl, **options)
    cotangent = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(out.dtype)
    return out, *torch.autograd.grad(out, (query, key, value, lam), cotangent)


def assert_equal_to_reference(query, key, value, lam, **options):
    names = ("out", "query", "key", "value", "lam")
    expected = run("reference", query, key, value, lam, **options)
    found = run("blockwise", query, key, value, lam, **options)
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
        assert one.isfinite().all(), name


@pytest.fixture(params=["one block", "many blocks"])
def cuts(request, monkeypatch):
    """Force both extremes: everything in one block, and blocks of four rows with one unit at a time."""
    if request.param == "many blocks":
        monkeypatch.setattr(blocks, "QUERY_ROWS", 4)
        monkeypatch.setattr(blocks, "SCORES_IN_CACHE", 30)


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
        assert_equal_to_reference(query, key, value, lam, is_causal=is_causal, sliding_window=window)


@pytest.mark.usefixtures("cuts")
@pytest.mark.parametrize("shape", [(2, 1, 1, 9), (2, 4, 7, 9), (1, 4, 1, 9), (7, 9), (2, 1, 7, 9), (9,), (7, 1)])
@pytest.mark.parametrize("key_maps", [1, 2])
def test_masks_that_broadcast(shape, key_maps):
    query, key, value = inputs(2, 4, 2, 7, 9, 4, 5, key_maps)
    lam = torch.rand(4, 1, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape) > 0.4
    for is_causal in (False, True):
        assert_equal_to_reference(query, key, value, lam, attn_mask=mask, is_causal=is_causal)


@pytest.mark.usefixtures("cuts")
@pytest.mark.parametrize("impl", ["reference", "blockwise"])
def test_rows_that_see_nothing_are_zero_with_zero_gradient(impl):
    query, key, value = inputs(2, 2, 2, 6, 6, 4, 5, 2)
    lam = torch.rand((), dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[0, :, 2] = False
    mask[1] = False
    out, grad_query, grad_key, grad_value, grad_lam = run(impl, query, key, value, lam, attn_mask=mask, is_causal=True)
    assert out[0, :, 2].count_nonzero() == 0
    assert out[1].count_nonzero() == 0
    assert out[0, :, 3].count_nonzero() > 0
    assert grad_query[0, :, 2].count_nonzero() == 0
    assert grad_key[1].count_nonzero() == grad_value[1].count_nonzero() == 0
    assert grad_lam.isfinite()


@pytest.mark.usefixtures("cuts")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(data):
    groups, repeats = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    heads, key_maps = groups * repeats, data.draw(st.sampled_from([1, 2]))
    batch, queries, keys = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 19)), data.draw(st.integers(1, 19)))
    query, key, value = inputs(
        batch, heads, groups, queries, keys, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), key_maps
    )
    lam_shape = [data.draw(st.sampled_from([1, size])) for size in (batch, heads, queries)]
    lam = torch.rand(lam_shape, dtype=torch.float64, requires_grad=True)
    mask_shape = [data.draw(st.sampled_from([1, size])) for size in (batch, heads, queries)]
    mask = data.draw(st.sampled_from([None, torch.rand(*mask_shape, keys) > 0.5]))
    assert_equal_to_reference(
        query, key, value, lam,
        attn_mask=mask,
        is_causal=data.draw(st.booleans()),
        sliding_window=data.draw(st.sampled_from([None, 1, 2, 5, 50])),
        scale=data.draw(st.sampled_from([None, 0.1, 1.0])),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_documents_end_to_end(data):
    """Packed sequences equal one call with a mask that separates them, in values and gradients."""
    documents = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
    is_causal, window = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1, 3]))
    impl = data.draw(st.sampled_from(["blockwise", "auto"]))
    key_maps, groups = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 2))
    edges = [torch.tensor([0, *itertools.accumulate(d[side] for d in documents)]).int() for side in (0, 1)]
    queries, keys = int(edges[0][-1]), int(edges[1][-1])
    tensors = inputs(1, 2 * groups, groups, queries, keys, 3, 4, key_maps)
    lam = torch.rand(2 * groups, queries, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for index, (length, breadth) in enumerate(documents):
        rows = slice(int(edges[0][index]), int(edges[0][index + 1]))
        columns = slice(int(edges[1][index]), int(edges[1][index + 1]))
        seen = positions_mask(length, breadth, is_causal=is_causal, sliding_window=window, device=torch.device("cpu"))
        mask[rows, columns] = True if seen is None else seen
    expected = run("reference", *tensors, lam, attn_mask=mask)
    found = run(
        impl, *tensors, lam,
        is_causal=is_causal, sliding_window=window, cu_seqlens_q=edges[0], cu_seqlens_k=edges[1],
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


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
def test_a_lam_near_one_is_not_rounded_where_the_maps_agree(lam):
    """The first row of every causal sequence is (1 - λ) V."""
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


def test_a_window_takes_room_for_the_keys_that_a_block_sees():
    query, key, value = inputs(1, 2, 2, 1000, 1000, 4, 4, 2)
    plan = blockwise._plan(query, key, value, None, False, 10, 0.5)
    assert plan.rooms["scores 0"].numel() == 2 * 128 * (128 + 9)


@pytest.mark.parametrize("key_maps", [1, 2])
@pytest.mark.parametrize("lam_shape", [(), (2, 1), (1, 2, 5)])
def test_gradcheck(key_maps, lam_shape, monkeypatch):
    monkeypatch.setattr(blocks, "QUERY_ROWS", 2)
    query, key, value = inputs(1, 2, 1, 5, 5, 2, 3, key_maps)
    lam = torch.rand(lam_shape, dtype=torch.float64, requires_grad=True)

    def call(*tensors):
        return differential_attention(*tensors, is_causal=True, impl="blockwise")

    assert torch.autograd.gradcheck(call, (query, key, value, lam))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_maps", [1, 2])
def test_errs_at_most_twice_the_eager_error_and_a_rounding(dtype, key_maps):
    """The tolerance rule: error ≤ 2 × (eager at the same dtype + one rounding), both against fp64, for every tensor."""
    exact = inputs(2, 4, 2, 150, 150, 16, 24, key_maps)
    exact_lam = torch.rand(4, 1, dtype=torch.float64, requires_grad=True)
    low = [t.detach().to(dtype).requires_grad_() for t in exact]
    low_lam = exact_lam.detach().float().requires_grad_()
    truth = run("reference", *[t.detach().double().requires_grad_() for t in (*low, low_lam)], is_causal=True)
    eager = run("reference", *low, low_lam, is_causal=True)
    fast = run("blockwise", *low, low_lam, is_causal=True)
    for name, true, slow, quick in zip(("out", "query", "key", "value", "lam"), truth, eager, fast, strict=True):
        rounding = (true.to(quick.dtype).double() - true).abs().max()
        budget = 2 * ((slow.double() - true).abs().max() + rounding)
        assert (quick.double() - true).abs().max() <= budget, name


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
    assert_equal_to_reference(query, key, value, lam, is_causal=True)


def test_nan_in_a_query_stays_in_its_row():
    query, key, value = inputs(1, 1, 1, 6, 6, 4, 5, 2)
    with torch.no_grad():
        query[0, 0, 3] = float("nan")
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    out = differential_attention(query, key, value, 0.5, attn_mask=mask, is_causal=True, impl="blockwise")
    assert out[0, 0, 3].isnan().all()
    assert out[0, 0, [0, 1, 2, 4, 5]].isfinite().all()


def test_what_is_hidden_has_no_influence():
    """The causal edge: changing a key changes no earlier query; the last query stands at the last key."""
    query, key, value = (t.detach() for t in inputs(1, 2, 2, 5, 8, 4, 5, 2))
    before = differential_attention(query, key, value, 0.5, is_causal=True, impl="blockwise")
    for place in range(8):
        changed_key, changed_value = key.clone(), value.clone()
        changed_key[:, :, place] += 3
        changed_value[:, :, place] += 3
        after = differential_attention(query, changed_key, changed_value, 0.5, is_causal=True, impl="blockwise")
        differs = (after != before).any(-1).any(1)[0]
        assert differs.tolist() == [row + 3 >= place for row in range(5)]


class Largest(TorchDispatchMode):
    """Remembers the most entries of any tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return result


def largest_tensor(batch, heads, length):
    """Of a forward and backward pass."""
    tensors = inputs(batch, heads, heads, length, length, 8, 8, 2, dtype=torch.float32)
    query, key, value = (t.detach() for t in tensors)
    arguments = (query, key, value, torch.full((1, 1, 1), 0.5), None, True, 0, 1.0)
    with Largest() as largest:
        blockwise.attend_backward(blockwise.attend(*arguments), *arguments)
    return largest.size


def test_only_as_much_memory_as_a_block_of_queries_needs():
    """The largest tensor made grows with the keys, not with queries times keys."""
    sizes = {length: largest_tensor(1, 1, length) for length in (4096, 8192)}
    assert sizes[4096] >= blocks.QUERY_ROWS * 4096  # the mode sees the buffer of one map's scores
    assert sizes[8192] <= 2 * sizes[4096]


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
    assert_equal_to_reference(query, key, value, lam, is_causal=True)


@pytest.mark.parametrize("impl", ["reference", "blockwise"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("window", [None, 3])
def test_a_key_that_is_not_finite_touches_only_queries_that_see_it(impl, poison, window):
    query, key, value = (t.detach() for t in inputs(1, 2, 2, 8, 8, 4, 5, 2))
    key[:, :, 4] = poison
    out = differential_attention(query, key, value, 0.5, is_causal=True, sliding_window=window, impl=impl)
    sees = [row for row in range(8) if row >= 4 and (window is None or row - 4 < window)]
    blind = [row for row in range(8) if row not in sees]
    assert out[0, :, blind].isfinite().all()
    assert not out[0, :, sees].isfinite().any()


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
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_operator_registration_is_sound():
    """Torch's own checks of the schema, the fake kernels and autograd."""
    query, key, value = inputs(1, 2, 1, 5, 5, 4, 6, 2, dtype=torch.float32)
    lam = torch.rand(1, 2, 1, requires_grad=True)
    arguments = (query, key, value, lam, None, True, 0, 0.5)
    torch.library.opcheck(blockwise.blockwise_attention, arguments)


def test_double_backward_is_refused():
    query, key, value = inputs(1, 1, 1, 3, 3, 2, 2, 2)
    out = differential_attention(query, key, value, 0.5, impl="blockwise")
    (grad,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=r'no second derivatives; use .*impl="reference"'):
        grad.sum().backward()


def test_two_maps_of_equal_keys_equal_the_shared_key_form():
    query, key, value = (t.detach() for t in inputs(2, 4, 2, 9, 9, 4, 5, 1))
    doubled = key.repeat_interleave(2, dim=1)
    shared = differential_attention(query, key, value, 0.4, is_causal=True, impl="blockwise")
    two = differential_attention(query, doubled, value, 0.4, is_causal=True, impl="blockwise")
    torch.testing.assert_close(shared, two)


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
    rounding = (exact.bfloat16() - exact).abs().max()
    assert (found - exact).abs().max() <= 2 * ((eager - exact).abs().max() + rounding)
