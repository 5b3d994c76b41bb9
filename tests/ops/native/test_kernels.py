"""The native kernels equal the reference: outputs and every gradient, at sizes on both sides of each of their edges."""

import itertools
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from antiphase import differential_attention
from antiphase.layers.functions import softmax_attention, softmax_weights
from antiphase.ops import api
from antiphase.ops.native import library, operators, steps
from antiphase.ops.shapes import positions_mask, statistics_dtype
from support import attention
from support.attention import cotangent, inputs, run

AROUND_EDGES = [(1, 7), (12, 12), (49, 49), (97, 97), (47, 130), (130, 47), (5, 300), (300, 300)]
"""Queries and keys around rows that go together (6, 12 or 16), blocks (48), panels (8 to 32) and tiles (256)."""


def softmax(query, key, value, mask=None, *, is_causal=False, window=0, scale=0.3, save=True):
    out, _ = operators.native_attention(
        query, key, value, None, mask, None, None, key.shape[1], is_causal, window, scale, save
    )  # fmt: skip
    return out


@pytest.mark.grid("kernels")
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("queries", "keys"), AROUND_EDGES)
@pytest.mark.parametrize("window", [None, 1, 33])
def test_equals_the_reference(queries, keys, window):
    for is_causal, key_maps, (heads, groups, width, value_width) in itertools.product(
        (False, True), (1, 2), [(4, 2, 5, 7), (1, 1, 32, 64)]
    ):
        query, key, value = inputs(2, heads, groups, queries, keys, width, value_width, key_maps)
        lam = torch.rand(2, 1, queries, dtype=torch.float64, requires_grad=True)
        attention.assert_equal_to_reference(
            "native", query, key, value, lam, is_causal=is_causal, sliding_window=window
        )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", [(2, 1, 1, 90), (2, 4, 70, 90), (1, 4, 1, 90), (70, 90), (2, 1, 70, 90), (70, 1)])
def test_masks_that_broadcast(shape):
    query, key, value = inputs(2, 4, 2, 70, 90, 4, 5, 2)
    lam = torch.rand(4, 1, dtype=torch.float64, requires_grad=True)
    for is_causal in (False, True):
        attention.assert_equal_to_reference(
            "native", query, key, value, lam, attn_mask=torch.rand(shape) > 0.4, is_causal=is_causal
        )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_of_whole_panels(side):
    query, key, value = inputs(2, 2, 2, 150, 150, 6, 8, 2)
    lam = torch.rand(2, 1, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 1, 1, 150, dtype=torch.bool)
    if side != "right":
        mask[0, ..., :97] = False
    if side != "left":
        mask[1, ..., 41:] = False
    for is_causal in (False, True):
        attention.assert_equal_to_reference("native", query, key, value, lam, attn_mask=mask, is_causal=is_causal)


@pytest.mark.usefixtures("kernels")
def test_rows_that_see_nothing_are_zero_with_zero_gradient():
    attention.assert_blind_rows_are_zero("native", 60)


@pytest.mark.usefixtures("kernels")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(data):
    tensors, options = attention.drawn_call(data, 70, 20)
    attention.assert_equal_to_reference("native", *tensors, **options)


@pytest.mark.usefixtures("kernels")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_documents_end_to_end(data):
    attention.assert_documents_are_apart("native", data, 60)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("queries", "keys"), AROUND_EDGES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_attention_equals_its_formula(queries, keys, is_causal):
    query, key, value = inputs(2, 6, 2, queries, keys, 5, 7, 1, maps=1)
    out = softmax(query, key, value, is_causal=is_causal)
    weights = softmax_weights(query, key, None, is_causal=is_causal, sliding_window=None, scale=0.3)
    expected = weights @ value.repeat_interleave(3, dim=1)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        torch.autograd.grad(out, (query, key, value), cotangent(out)),
        torch.autograd.grad(expected, (query, key, value), cotangent(out)), rtol=1e-11, atol=1e-11,
    )  # fmt: skip


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("queries", "keys"), AROUND_EDGES)
@pytest.mark.parametrize("case", ["plain", "window", "mask", "documents"])
def test_heads_share_a_second_map_as_if_each_had_a_copy(queries, keys, case):
    """Outputs and every gradient; those of copies are summed."""
    mask, edges, batch = None, (None, None), 1 if case == "documents" else 2
    if case == "mask":
        mask = torch.rand(batch, 1, queries, keys) > 0.3
    if case == "documents":
        edges = [torch.tensor([0, length // 3, length], dtype=torch.int32) for length in (queries, keys)]
    for key_maps, shared, dtype in itertools.product((1, 2), (2, 3, 4), (torch.float64, torch.bfloat16)):
        tensors = inputs(batch, 2 * shared, 2, queries, keys, 5, 7, key_maps, dtype)
        lam = torch.rand(batch, 2 * shared, queries, dtype=statistics_dtype(dtype), requires_grad=True)
        settings = (lam, mask, *edges, 2, True, 33 if case == "window" else 0, 0.3, True)
        copies = [map for head in range(2 * shared) for map in (2 * head, 2 * (head - head % shared) + 1)]
        found, _ = operators.native_attention(*tensors, *settings, shared)
        expected, _ = operators.native_attention(tensors[0][:, copies], *tensors[1:], *settings)
        close = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(found, expected, **close)
        torch.testing.assert_close(
            *(torch.autograd.grad(out, (*tensors, lam), cotangent(found)) for out in (found, expected)), **close
        )


@pytest.mark.usefixtures("kernels")
def test_sharing_that_no_kernel_forms_is_refused():
    query, key, value = inputs(1, 4, 2, 9, 9, 5, 7, 2)
    lam, mask = torch.rand(1, 4, 9, dtype=torch.float64), torch.rand(1, 4, 9, 9) > 0.3
    for shared, seen in ((0, None), (3, None), (4, None), (2, mask)):
        with pytest.raises(ValueError, match="cannot share a second map"):
            operators.native_attention(query, key, value, lam, seen, None, None, 2, True, 0, 0.3, True, shared)


@pytest.mark.grid("kernels")
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "width", "value_width"), [(60, 16, 32), (700, 64, 128), (61, 9, 11)])
@pytest.mark.parametrize("key_maps", [1, 2])
def test_errs_at_most_twice_the_eager_error_and_a_rounding(dtype, length, width, value_width, key_maps):
    tensors = inputs(1, 2, 1, length, length, width, value_width, key_maps, dtype)
    attention.assert_keeps_the_tolerance_rule(
        "native", *tensors, torch.rand(2, length, requires_grad=True), is_causal=True
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("contiguous", [True, False])
def test_memory_around_the_inputs_is_not_read(dtype, contiguous):
    """Every input is cut out of a larger tensor of NaN, in the order of a layer or with a stride in its last place."""

    def within_nan(tensor):
        batch, heads, length, width = tensor.shape
        step = 1 if contiguous else 2
        room = torch.full((batch + 1, length + 3, heads + 1, step * width + 5), float("nan"), dtype=tensor.dtype)
        view = room[:batch, 1 : length + 1, :heads, 2 : 2 + step * width : step].transpose(1, 2)
        return view.copy_(tensor).detach().requires_grad_()

    tensors = [tensor.detach() for tensor in inputs(2, 2, 1, 61, 75, 9, 11, 2, dtype)]
    lam = torch.rand(2, 61, dtype=torch.float64 if dtype == torch.float64 else torch.float32, requires_grad=True)
    expected = run("native", *[tensor.requires_grad_() for tensor in tensors], lam, is_causal=True)
    found = run("native", *map(within_nan, tensors), lam, is_causal=True)
    few = [differential_attention(t[0][:, :, -1:], *t[1:], 0.5, impl="native") for t in (
        [tensor.detach() for tensor in tensors], [within_nan(tensor).detach() for tensor in tensors])]  # fmt: skip
    for one, other in zip((*found, few[1]), (*expected, few[0]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_scratch_memory_of_one_call_is_not_read_by_the_next(dtype):
    torch.set_num_threads(1)  # the same thread, so the same scratch
    for queries, keys, width in ((37, 37, 8), (5, 90, 12), (97, 61, 40), (1, 33, 8)):
        tensors = [t.detach().to(dtype).requires_grad_() for t in inputs(1, 2, 1, queries, keys, width, 2 * width, 2)]
        lam = torch.tensor(0.4, dtype=torch.promote_types(dtype, torch.float32), requires_grad=True)
        before = run("native", *tensors, lam, is_causal=True)
        bad = [torch.full_like(t, float("nan")) for t in inputs(1, 2, 1, 200, 200, width, 2 * width, 2)]
        run("native", *(t.to(dtype).requires_grad_() for t in bad), lam)
        for one, other in zip(run("native", *tensors, lam, is_causal=True), before, strict=True):
            assert torch.equal(one, other)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("window", [None, 30])
def test_a_key_that_is_not_finite_touches_only_queries_that_see_it(poison, window):
    attention.assert_poison_stays("native", 80, 41, poison, window)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), pytest.param(5, 5, marks=pytest.mark.slow), (6, 2)])
@pytest.mark.parametrize(("queries", "keys", "window"), [(400, 1200, None), (600, 130, None), (700, 700, 33)])
def test_the_number_of_threads_changes_no_bit(heads, groups, queries, keys, window):
    query, key, value = inputs(2, heads, groups, queries, keys, 16, 32, 2, torch.float32)
    lam = torch.rand(heads, 1, requires_grad=True)
    mask = torch.rand(2, heads, 1, keys) > 0.2  # heads that see keys of their own end at places of their own
    mask[:, ::2, :, : keys // 2] = False
    found = []
    for count in (1, 2, 3, 5, 8):
        torch.set_num_threads(count)
        few = differential_attention(query[:, :, -1:].detach(), key.detach(), value.detach(), 0.3, impl="native")
        plain, masked = (
            run("native", query, key, value, lam, is_causal=True, sliding_window=window, attn_mask=hides)
            for hides in (None, mask)
        )
        found.append((*plain, *masked, few))
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("built")
def test_calls_from_several_threads_at_once_do_not_meet():
    calls = [(*inputs(1, 2, 2, 40 + 30 * i, 90, 8, 8, 2), torch.rand(2, 1).double().requires_grad_()) for i in range(8)]
    expected = [run("native", *call) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, alone in zip(pool.map(lambda call: run("native", *call), calls), expected, strict=True):
                assert all(torch.equal(*pair) for pair in zip(found, alone, strict=True))


def _in_a_child(queue):
    torch.set_num_threads(1)  # as in a worker of a data loader: OpenMP's threads do not survive a fork
    torch.manual_seed(1)
    query, key, value = (t.detach() for t in inputs(1, 2, 2, 60, 60, 8, 8, 2))
    queue.put(differential_attention(query, key, value, 0.4, impl="native").sum().item())


@pytest.mark.usefixtures("built")
def test_a_forked_process_computes_the_same():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    there = queue.get(timeout=60)
    child.join()
    _in_a_child(queue)
    assert queue.get(timeout=60) == there


@pytest.mark.usefixtures("built")
def test_operator_registration_is_sound():
    query, key, value = inputs(1, 2, 1, 9, 11, 4, 6, 2)
    lam = torch.rand(1, 2, 9, dtype=torch.float64, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    mask = torch.rand(1, 1, 9, 11) > 0.2
    torch.library.opcheck(
        operators.native_attention, (query, key, value, lam, mask, None, None, 1, True, 0, 0.5, True), test_utils=checks
    )
    plain = [tensor.detach() for tensor in (query, key, value, lam)]
    torch.library.opcheck(steps.native_attention_of_few, (*plain, mask, 1, True, 0, 0.5), test_utils=checks)


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_compiles_without_a_graph_break():
    query, key, value = inputs(1, 2, 1, 20, 20, 4, 6, 2, torch.float32)
    lam = torch.rand(2, 1, requires_grad=True)

    def call(*tensors):
        return differential_attention(*tensors, is_causal=True, impl="native")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, expected = compiled(query, key, value, lam), call(query, key, value, lam)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(o.sum(), (query, key, value, lam)) for o in (found, expected)))


@pytest.mark.usefixtures("built")
def test_second_derivatives_and_forward_mode_are_refused():
    query, key, value = inputs(1, 1, 1, 4, 4, 2, 2, 2)
    out = differential_attention(query, key, value, 0.5, impl="native")
    (grad,) = torch.autograd.grad(out.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.sum().backward()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query.detach(), torch.ones_like(query))
        with pytest.raises(ValueError, match="no forward-mode derivatives"):
            differential_attention(dual, key, value, 0.5, impl="native")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_scores_near_the_largest_finite_number(dtype):
    """The largest score of a row counts as 1 whatever its size."""
    query, key, value = (t.detach() for t in inputs(1, 1, 1, 70, 70, 128, 8, 2, dtype))
    key[:, :, 33] = query[:, :, 33] = 1e5  # a score of 1e11
    for rows in (slice(None), slice(33, 34)):  # many queries, and few
        found = differential_attention(query[:, :, rows], key, value, 0.25, impl="native")
        given = query[:, :, rows], key, value
        exact = differential_attention(*(tensor.double() for tensor in given), 0.25, impl="reference")
        eager = differential_attention(*given, 0.25, impl="reference")
        if dtype == torch.float64:
            torch.testing.assert_close(found, exact)
            continue
        attention.assert_errs_at_most_twice(found, eager, exact)


@pytest.mark.usefixtures("kernels")
def test_a_row_whose_scores_are_all_minus_infinity_is_nan_and_one_that_sees_nothing_is_zero():
    query, key, value = (t.detach() for t in inputs(1, 2, 2, 80, 80, 4, 5, 2))
    key[:, :, 0], query[:, :, 0] = float("-inf"), 1.0  # causal: the first query sees this key alone
    mask = torch.ones(1, 1, 80, 80, dtype=torch.bool)
    mask[..., 7, :] = False
    for rows in (slice(None), slice(1)):  # many queries, and few
        found, expected = (
            differential_attention(
                query[:, :, rows], key[:, :, rows], value[:, :, rows], 0.5,
                is_causal=True, attn_mask=mask[..., rows, rows], impl=impl,
            )
            for impl in ("native", "reference")
        )  # fmt: skip
        assert found[:, :, 0].isnan().all()
        assert expected[:, :, 0].isnan().all()
        assert found[:, :, 7:8].count_nonzero() == 0
    assert found.shape[2] == 1


def test_torch_func_is_refused_in_one_sentence_and_softmax_falls_back_to_torch():
    query, key, value = (t.detach() for t in inputs(1, 2, 2, 40, 40, 4, 5, 2))
    for impl in ("blockwise", "auto"):
        with pytest.raises(ValueError, match=r"no derivatives under torch\.func; use .*reference"):
            torch.func.grad(lambda q, impl=impl: differential_attention(q, key, value, 0.5, impl=impl).sum())(query)
    found, expected = (
        torch.func.grad(lambda q, way=way: way(q).square().sum())(query)
        for way in (
            lambda q: softmax_attention(q, key, key, None, is_causal=True, sliding_window=None, scale=0.5),
            lambda q: torch.nn.functional.scaled_dot_product_attention(q, key, key, is_causal=True, scale=0.5),
        )
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("built")
def test_edges_may_change_between_forward_and_backward():
    tensors = inputs(1, 2, 2, 10, 10, 4, 4, 2)
    lam = torch.rand(2, 1, dtype=torch.float64, requires_grad=True)
    edges = torch.tensor([0, 4, 10]).int()
    out = differential_attention(*tensors, lam, cu_seqlens_q=edges, cu_seqlens_k=edges, impl="native")
    expected = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    edges.numpy()[:] = 10_000
    for one, other in zip(torch.autograd.grad(out.sum(), tensors), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("built")
def test_the_operator_of_a_few_queries_loses_no_derivative_without_a_word():
    """It has none: whoever needs them goes through another operator, and PyTorch names this one."""
    query, key, value = inputs(1, 2, 2, 1, 9, 4, 4, 2)
    lam = torch.rand(2, 1, dtype=torch.float64, requires_grad=True)
    found, expected = (
        torch.autograd.grad(differential_attention(query, key, value, lam, impl=impl).sum(), (query, key, value, lam))
        for impl in ("native", "reference")
    )
    torch.testing.assert_close(found, expected)
    out = steps.native_attention_of_few(query, key, value, lam.detach()[None], None, 2, True, 0, 0.5)
    with pytest.warns(UserWarning, match="native_attention_of_few: an autograd kernel was not registered"):
        out.sum().backward()


@pytest.mark.usefixtures("kernels")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_few_queries(data):
    """Values whole or in halves, a map or two, masks and windows: all as the reference."""
    groups, repeats, maps = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    parts, queries = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    keys = data.draw(st.sampled_from([1, 15, 16, 511, 512, 513, 1100]))
    dtype, window = data.draw(st.sampled_from([torch.float32, torch.float64])), data.draw(st.sampled_from([0, 1, 600]))
    width, value_width = data.draw(st.integers(1, 70)), parts * data.draw(st.integers(1, 70))
    heads, key_maps = groups * repeats, data.draw(st.integers(1, maps))
    query, key, value = (
        t.detach() for t in inputs(2, heads, groups, queries, keys, width, value_width, key_maps, dtype, maps)
    )
    lam = torch.rand(2, heads, 1, dtype=dtype) if maps == 2 else None
    mask = data.draw(st.sampled_from([None, torch.rand(2, 1, 1, keys) > 0.5]))
    halves = value.unflatten(3, (parts, -1)).transpose(2, 3).flatten(1, 2)
    found = steps.native_attention_of_few(query, key, halves, lam, mask, groups, True, window, 0.3)
    options = {"is_causal": True, "sliding_window": window or None, "scale": 0.3}
    if lam is None:
        visible = positions_mask(
            queries, keys, is_causal=True, sliding_window=window or None, device=torch.device("cpu")
        )
        visible = visible if mask is None else visible & mask
        weights = softmax_weights(query, key, visible, is_causal=False, sliding_window=None, scale=0.3)
        expected = weights @ value.repeat_interleave(repeats, dim=1)
    else:
        expected = differential_attention(query, key, value, lam, attn_mask=mask, impl="reference", **options)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found, expected.to(dtype), rtol=tolerance, atol=tolerance)


def test_auto_is_native_where_it_serves(monkeypatch, built):
    calls = []
    monkeypatch.setattr(operators, "run", lambda task, **kwargs: calls.append(task))
    monkeypatch.setattr(api, "native_attention_of_few", lambda *args: calls.append("few") or args[0])
    query, key, value = (t.detach() for t in inputs(1, 2, 2, 60, 60, 8, 8, 2))
    differential_attention(query, key, value, 0.5)
    differential_attention(query[:, :, :1], key, value, 0.5)
    assert calls == [library.FORWARD, "few"]


torch.manual_seed(0)  # an error may exceed the bound by chance, where eager errs little: these do not
ONE_QUERY = [t.detach() for t in inputs(2, 4, 2, 1, 70, 8, 6, 2, torch.float32)]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("lam", [0.4, torch.tensor(0.4), torch.rand(4, 1), torch.rand(2, 1, 1)], ids=range(4))
@pytest.mark.parametrize("form", ["whole", "strided", "bf16", "shared key", "three queries", "padding"])
def test_a_decoding_step_is_one_call_of_an_operator(monkeypatch, lam, form):
    """Without the checks in Python, and with the same result."""
    query, key, value = ONE_QUERY
    if form == "strided":  # views of a cache
        key, value = (torch.cat([t, t], 2)[:, :, 1:71] for t in (key, value))
    elif form == "bf16":
        query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    elif form == "shared key":
        key = key[:, ::2]
    elif form == "three queries":
        query = torch.cat([query, 2 * query, -query], 2)
    mask = torch.rand(2, 1, 1, 70) > 0.5 if form == "padding" else None
    options, tensors = {"attn_mask": mask, "is_causal": True, "scale": 0.3}, (query, key, value)
    exact = differential_attention(*(t.double() for t in tensors), lam, impl="reference", **options)
    eager = differential_attention(*tensors, lam, impl="reference", **options)
    monkeypatch.setattr(api, "check_tensors", None)
    found = differential_attention(*tensors, lam, **options)
    attention.assert_errs_at_most_twice(found, eager, exact)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("change", [
    {"query": ONE_QUERY[0].clone().requires_grad_()}, {"lam": torch.rand(4, 1, requires_grad=True)},
    {"lam": torch.rand(4, 1).double()}, {"lam": 1}, {"attn_mask": torch.rand(70) > 0.5}, {"sliding_window": 9},
    {"key": ONE_QUERY[1].mT.contiguous().mT}, {"query": torch._neg_view(ONE_QUERY[0])}, {"scale": -0.3},
    {"impl": "blockwise"}, {"return_weights": True}, {"query": ONE_QUERY[0].expand(-1, -1, 40, -1)},
], ids=lambda change: "".join(change))  # fmt: skip
def test_a_step_that_asks_for_more_goes_the_usual_way(change):
    call = dict(zip(("query", "key", "value", "lam"), (*ONE_QUERY, torch.full((4, 1), 0.4)), strict=True))
    call |= {"is_causal": True} | change
    found, expected = differential_attention(**call), differential_attention(**call | {"impl": "reference"})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    of = found[0] if change == {"return_weights": True} else found
    assert of.requires_grad == any(t.requires_grad for t in call.values() if torch.is_tensor(t))


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("queries", [1, 2, 20])
def test_batches_of_vmap_keep_derivatives(queries):
    """A batch does not tell that derivatives are needed."""
    query, key, value = inputs(3, 2, 2, queries, 20, 4, 4, 2)
    lam = torch.rand(2, 1, dtype=torch.float64)

    def call(*tensors):
        return differential_attention(*tensors, lam, is_causal=True, impl="native")

    by_row = torch.vmap(lambda *rows: call(*(row[None] for row in rows))[0])
    found, expected = (
        torch.autograd.grad(function(query, key, value).square().sum(), (query, key, value))
        for function in (by_row, call)
    )
    torch.testing.assert_close(found, expected)


REFUSED_STEPS = [{"dtype": torch.float16}, {"scale": -0.3}, {"scale": 0.3}]
"""Of half precision and of negative scale, which the operator refuses; and a transposed key, which it copies."""


@pytest.mark.usefixtures("built")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("change", REFUSED_STEPS, ids=str)
def test_a_trace_of_a_step_computes_the_same(change):
    """A refusal within a tracer would end the process, or stay in the graph."""
    query, key, value = (t.to(change.get("dtype", t.dtype)) for t in ONE_QUERY)
    turned = query, key.mT.contiguous().mT, value

    def call(*tensors):
        return differential_attention(*tensors, 0.4, scale=change.get("scale"))

    expected = call(query, key, value)
    for program in (torch.jit.trace(call, (query, key, value)), make_fx(call)(query, key, value)):
        torch.testing.assert_close(program(query, key, value), expected)
        torch.testing.assert_close(program(*turned), expected)
    torch.testing.assert_close(torch.jit.trace(call, turned)(*turned), expected)


@pytest.mark.usefixtures("built")
def test_steps_are_checked_in_fake_mode_and_by_rank():
    with FakeTensorMode() as fake:
        query, key, value = map(fake.from_tensor, ONE_QUERY)
        with pytest.raises(ValueError, match="same length"):
            differential_attention(query, key, value[:, :, :7], 0.4)
    with pytest.raises(ValueError, match="2 or 3 dimensions"):
        differential_attention(*ONE_QUERY, torch.full((1, 1, 1, 1), 0.4))
