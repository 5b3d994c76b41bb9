"""The kernels equal the reference, under Triton's interpreter: outputs and every gradient at odd sizes."""

from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
import torch

from antiphase import AntiphaseConfig, AntiphaseForCausalLM, differential_attention
from antiphase.layers.functions import differential_output
from support import attention
from support.attention import in_full, run

launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)
few = pytest.importorskip("antiphase.ops.triton.few", reason="Triton is not installed", exc_type=ImportError)

TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
inputs = partial(attention.inputs, dtype=torch.float32)
check = partial(attention.assert_equal_to_reference, "triton", **TOLERANCE)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Every buffer starts as NaN; whatever is read before it is written would spread."""

    def filled(make):
        def poison(*args, **kwargs):
            made = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return poison

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))


@pytest.mark.grid
@pytest.mark.parametrize(("key_maps", "heads", "groups"), [(1, 2, 2), (2, 2, 1)])
@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (33, 90), (70, 45)])
@pytest.mark.parametrize(("is_causal", "window"), [(False, None), (True, None), (False, 1), (True, 40)])
def test_equals_the_reference(key_maps, heads, groups, queries, keys, is_causal, window):
    query, key, value = inputs(1, heads, groups, queries, keys, 20, 24, key_maps)
    lam = torch.rand((heads, 1) if key_maps == 1 else (), requires_grad=True)
    check(query, key, value, lam, is_causal=is_causal, sliding_window=window)


@pytest.mark.parametrize(("queries", "keys", "window"), [(97, 190, 110), (130, 130, 100)])
def test_windows_wider_than_several_blocks(queries, keys, window):
    """So that some blocks of keys are seen whole, by queries on whose other side keys are hidden."""
    query, key, value = inputs(1, 1, 1, queries, keys, 16, 32, 2)
    check(query, key, value, torch.tensor(0.4, requires_grad=True), sliding_window=window)


@pytest.mark.parametrize("window", [45, 2**31 - 1, 2**40])
def test_a_window_of_all_keys_hides_nothing(window):
    query, key, value = inputs(1, 2, 1, 36, 45, 16, 32, 2)
    check(query, key, value, torch.tensor(0.4, requires_grad=True), sliding_window=window)
    with torch.no_grad():
        found, expected = (
            differential_attention(query[:, :, -2:], key, value, 0.4, impl="triton", **options)
            for options in ({"sliding_window": window}, {"is_causal": True})
        )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [
    (2, 1, 36, 45),
    *(pytest.param(one, marks=pytest.mark.slow) for one in ((45,), (2, 1, 1, 45), (2, 4, 36, 45), (36, 45), (36, 1))),
])  # fmt: skip
def test_masks_that_broadcast(shape):
    query, key, value = inputs(2, 4, 2, 36, 45, 16, 32, 2)
    lam = torch.rand(2, 4, 36, requires_grad=True)
    mask = torch.rand(shape) > 0.4
    for is_causal in (False, True):
        check(query, key, value, lam, attn_mask=mask, is_causal=is_causal)


@pytest.mark.parametrize(("width", "value_width"), [(1, 1), (16, 16), (33, 66), (64, 128), (128, 256)])
def test_widths(width, value_width):
    query, key, value = inputs(1, 1, 1, 34, 34, width, value_width, 2)
    check(query, key, value, torch.tensor(0.4, requires_grad=True), is_causal=True)


def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient():
    query, key, value = inputs(1, 2, 1, 9, 5, 16, 16, 2)  # causal, the first four see nothing
    out, grad, *_ = run("triton", query, key, value, torch.tensor(0.3, requires_grad=True), is_causal=True)
    assert out[:, :, :4].abs().max() == 0
    assert grad[:, :, :4].abs().max() == 0
    assert grad[:, :, 5:].abs().max() > 0
    assert grad.isfinite().all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_keys_give_zeros(is_causal):
    query, key, value = inputs(1, 2, 1, 9, 0, 16, 16, 2)
    lam = torch.tensor(0.3, requires_grad=True)
    for found in run("triton", query, key, value, lam, is_causal=is_causal)[:2]:
        assert found.abs().max() == 0


@pytest.mark.parametrize(("is_causal", "window", "lam_shape"), [
    (True, None, ()), (False, None, (1, 2, 75)), (True, 9, (2, 1)),
    *(pytest.param(True, None, shape, marks=pytest.mark.slow) for shape in ((2, 1), (1, 2, 75))),
])  # fmt: skip
def test_sequences_end_to_end(is_causal, window, lam_shape):
    query, key, value = inputs(1, 2, 1, 75, 80, 16, 32, 2)
    lam = torch.rand(lam_shape, requires_grad=True)
    edges = {
        "cu_seqlens_q": torch.tensor([0, 3, 3, 40, 75], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([[0, 5, 9, 47, 80]] * 2, dtype=torch.int32).T.contiguous()[:, 0],  # with a stride
    }
    check(query, key, value, lam, is_causal=is_causal, sliding_window=window, **edges)


def test_layouts_of_a_layer():
    """Heads between tokens and channels, as projections give them; a cotangent that is a view as well."""
    batch, tokens, heads, width = 2, 37, 2, 16
    projected = [torch.randn(batch, tokens, n, w) for n, w in ((2 * heads, width), (2 * heads, width), (heads, 32))]
    query, key, value = (tensor.transpose(1, 2).requires_grad_() for tensor in projected)
    lam = torch.rand(heads, 1, requires_grad=True)
    found = differential_attention(query, key, value, lam, is_causal=True, impl="triton")
    expected = differential_attention(*in_full(query, key, value, lam), is_causal=True, impl="reference")
    torch.testing.assert_close(found.double(), expected, **TOLERANCE)
    assert found.transpose(1, 2).is_contiguous()
    (slope,) = torch.autograd.grad(found.sum(), query)
    assert slope.shape == query.shape


PACKED = {name: torch.tensor([0, 31, 90], dtype=torch.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}


@pytest.mark.parametrize("key_maps", [1, 2])
@pytest.mark.parametrize(("dtype", "batch", "width", "value_width", "options"), [
    (torch.bfloat16, 1, 128, 256, {"is_causal": True}), (torch.float16, 1, 32, 64, PACKED),
    *(pytest.param(dtype, 2, 32, 64, {"is_causal": True}, marks=pytest.mark.slow)
      for dtype in (torch.bfloat16, torch.float16)),
])  # fmt: skip
def test_half_precision_errs_no_more_than_twice_the_eager_form(dtype, key_maps, batch, width, value_width, options):
    assert_half_precision(dtype, key_maps, batch, width, value_width, options)


def test_half_precision_over_several_blocks_of_queries():
    assert_half_precision(torch.bfloat16, 2, 1, 32, 64, {"is_causal": True}, tokens=200)


def assert_half_precision(dtype, key_maps, batch, width, value_width, options, tokens=90):
    tensors = inputs(batch, 2, 1, tokens, tokens, width, value_width, key_maps, dtype=dtype)
    lam = torch.rand(batch, 2, tokens, requires_grad=True)  # one λ for all would have an error by luck
    attention.assert_keeps_the_tolerance_rule("triton", *tensors, lam, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_maps", [1, 2])
def test_a_few_queries_in_half_precision(dtype, key_maps):
    query, key, value = (t.detach() for t in inputs(2, 4, 2, 2, 300, 64, 128, key_maps, dtype=dtype))
    lam = torch.rand(4, 1)
    exact = differential_attention(*in_full(query, key, value, lam), is_causal=True, impl="reference")
    eager, found = (
        differential_attention(query, key, value, lam, is_causal=True, impl=impl) for impl in ("reference", "triton")
    )
    attention.assert_errs_at_most_twice(found, eager, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_maps", [1, 2])
@pytest.mark.parametrize("queries", [2, 70])
def test_half_precision_where_the_maps_cancel(dtype, key_maps, queries):
    """Flat maps, as at initialisation: the output is small, and an error as large as a map would stand out."""
    query, key, value = inputs(1, 2, 2, queries, 150, 32, 64, key_maps, dtype=dtype)
    query = (0.02 * query).detach()
    exact = differential_attention(query.double(), key.double(), value.double(), 0.98, impl="reference")
    with torch.no_grad():
        eager, found = (differential_attention(query, key, value, 0.98, impl=impl) for impl in ("reference", "triton"))
    attention.assert_errs_at_most_twice(found, eager, exact)


@pytest.mark.parametrize("queries", [1, 20])
def test_the_ratio_of_the_maps_may_exceed_what_fp16_holds(queries):
    query, key, value = (t.detach() for t in inputs(1, 1, 1, queries, 150, 16, 16, 2, dtype=torch.float16))
    query[:, 0], key[:, 1], query[:, 1] = 0.0, 0.0, 20.0
    key[:, 1, 0] = 1.0  # the first map sees all alike, the second the first key alone: its total is 150 times smaller
    exact = differential_attention(query.double(), key.double(), value.double(), 4000.0, impl="reference")
    eager, found = (differential_attention(query, key, value, 4000.0, impl=impl) for impl in ("reference", "triton"))
    attention.assert_errs_at_most_twice(found, eager, exact)


def test_options_together():
    query, key, value = inputs(1, 4, 2, 70, 90, 16, 32, 2)
    lam = torch.rand(1, 4, 70, requires_grad=True)
    edges = {
        "cu_seqlens_q": torch.tensor([0, 30, 30, 70], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 45, 50, 90], dtype=torch.int32),
    }
    mask = {"attn_mask": torch.rand(70, 90) > 0.3}
    for options in ({"is_causal": True}, {"sliding_window": 20}, mask, {"is_causal": True, **edges}):
        check(query, key, value, lam, **options)


@pytest.mark.parametrize("key_maps", [1, 2])
@pytest.mark.skipif(launch.INTERPRETED, reason="the interpreter runs programs in one order")
def test_two_calls_give_the_same_bits(key_maps):
    """No sum depends on the order in which programs run."""
    tensors = inputs(2, 4, 2, 200, 200, 32, 64, key_maps, dtype=torch.bfloat16)
    lam = torch.rand(4, 1, requires_grad=True)
    one, other = (run("triton", *tensors, lam, is_causal=True) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_behind_the_inputs_is_neither_read_nor_written(is_causal):
    """Rows and columns beyond a tile's edge stay in other tensors: not-a-number around the inputs changes nothing."""
    around = [torch.full((2, heads, 50, width), float("nan")) for heads, width in ((4, 24), (4, 24), (2, 40))]
    inside = [t[:, :, 3:47, 2 : width + 2] for t, width in zip(around, (20, 20, 36), strict=True)]
    for tensor in inside:
        tensor.copy_(torch.randn(tensor.shape))
    lam = torch.tensor(0.7, requires_grad=True)
    query, key, value = (tensor.detach().requires_grad_() for tensor in inside)
    check(query, key, value, lam, is_causal=is_causal)


@pytest.mark.grid
@pytest.mark.parametrize(("key_maps", "heads", "groups"), [(2, 2, 1), (1, 3, 3)])
@pytest.mark.parametrize(
    ("queries", "keys", "is_masked"), [(1, 1, False), (1, 200, True), (3, 150, False), (8, 70, True)]
)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "sliding_window": 70}])
def test_a_few_queries(key_maps, heads, groups, queries, keys, is_masked, options):
    query, key, value = (t.detach() for t in inputs(2, heads, groups, queries, keys, 20, 24, key_maps))
    lam = torch.rand(2, heads, queries)
    mask = None
    if is_masked:
        mask = torch.rand(2, 1, 1, keys) > 0.3
        mask[0], mask[1, ..., :64] = False, False  # a row that sees nothing, and a span of keys that nobody sees
    expected = differential_attention(*in_full(query, key, value, lam), attn_mask=mask, impl="reference", **options)
    found = differential_attention(query, key, value, lam, attn_mask=mask, impl="triton", **options)
    torch.testing.assert_close(found.double(), expected, **TOLERANCE)


@pytest.mark.parametrize(("batch", "heads", "queries", "keys"), [(1, 4, 8, 300), (1, 21, 1, 40), (1, 7, 3, 300)])
def test_a_few_queries_of_many_heads(batch, heads, queries, keys, monkeypatch):
    """To 32 rows on one value head."""
    query, key, value = (t.detach() for t in inputs(batch, heads, 1, queries, keys, 16, 16, 2))
    lam, operator, calls = torch.rand(heads, queries), few.triton_attend_few, []
    monkeypatch.setattr(few, "triton_attend_few", lambda *args: calls.append(args) or operator(*args))
    expected = differential_attention(*in_full(query, key, value, lam), is_causal=True, impl="reference")
    found = differential_attention(query, key, value, lam, is_causal=True, impl="triton")
    torch.testing.assert_close(found.double(), expected, **TOLERANCE)
    assert len(calls) == 1


def test_inputs_that_repeat_themselves():
    query, key, value = (tensor[:1].detach() for tensor in inputs(1, 2, 1, 40, 40, 16, 16, 2))
    expanded = [tensor.expand(3, -1, -1, -1).requires_grad_() for tensor in (query, key, value)]
    check(*expanded, torch.rand(2, 1, requires_grad=True), is_causal=True)


@pytest.mark.parametrize(("queries", "keys"), [(0, 9), (9, 0)])
def test_no_queries_or_no_keys_give_no_gradient(queries, keys):
    query, key, value = inputs(1, 2, 1, queries, keys, 16, 16, 2)
    slopes = run("triton", query, key, value, torch.rand(2, 1, requires_grad=True))[1:]
    assert all((slope == 0).all() for slope in slopes)


def test_an_empty_batch():
    query, key, value = inputs(0, 2, 1, 9, 9, 16, 16, 2)
    found = run("triton", query, key, value, torch.tensor(0.5, requires_grad=True), is_causal=True)
    assert [tensor.shape[0] for tensor in found[:4]] == [0] * 4
    assert found[4] == 0


def step(query, key, value, lam):
    """A decoding step of V1 with values in halves."""
    return differential_output(
        query, key, value, lam, None, halves=2, is_causal=False, sliding_window=None, scaling=None, impl="triton"
    )


def test_decoding_refuses_forward_mode():
    query, key, value = (tensor.detach() for tensor in inputs(1, 2, 2, 1, 40, 16, 16, 2))
    halves = torch.cat([value, value], dim=1)
    with pytest.raises(ValueError, match="Triton implementation has no forward-mode derivatives"):
        torch.func.jvp(lambda tensor: step(tensor, key, halves, torch.rand(2, 1)), (query,), (query,))


def test_decoding_under_autocast_runs_in_its_dtype():
    query, key, _ = (tensor.detach() for tensor in inputs(1, 2, 2, 1, 40, 16, 32, 2))
    expected = step(query.bfloat16(), key.bfloat16(), key.bfloat16(), torch.rand(2, 1).fill_(0.5))
    with torch.autocast(query.device.type, torch.bfloat16):
        found = step(query, key.bfloat16(), key, torch.rand(2, 1).fill_(0.5))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="must share dtype and device"):
        step(query, key.bfloat16(), key.bfloat16(), torch.rand(2, 1))


def test_kernels_compile_without_a_graph_break():
    """Forward, backward and a decoding step."""
    query, key, value = inputs(2, 2, 1, 30, 30, 16, 32, 2)
    lam = torch.rand(2, 1, requires_grad=True)

    def call(*tensors):
        return differential_attention(*tensors, is_causal=True, impl="triton")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    outputs = compiled(query, key, value, lam), call(query, key, value, lam)
    slopes = [torch.autograd.grad(out.square().sum(), (query, key, value, lam)) for out in outputs]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*slopes)
    query, key, lam = query.detach()[:, :, :1], key.detach(), lam.detach()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, key, key, lam), step(query, key, key, lam))


@pytest.mark.parametrize("lam_strides", [(4, 1, 2), pytest.param((0, 0, 0), marks=pytest.mark.slow)])
def test_both_operators_say_what_they_give(lam_strides):
    """Shapes, strides and dtypes under torch.compile are those of the call itself; λ may lie in any order."""
    query, key, value = inputs(2, 2, 1, 9, 12, 16, 16, 2)
    lam = torch.rand(40).as_strided((2, 2, 9), lam_strides) if any(lam_strides) else torch.rand(1, 1, 1)
    common = query, key, value, lam.requires_grad_(), None, None, None, 9, 12, True, 0, 0.25
    torch.library.opcheck(torch.ops.antiphase.triton_attention, (*common, True))
    saved = [tensor.detach() for tensor in launch.triton_attention(*common, True)]
    plain = [t.detach() if isinstance(t, torch.Tensor) else t for t in common]
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.antiphase.triton_attention_backward, (saved[0], *saved, *plain), test_utils=tests)


@pytest.mark.parametrize("is_masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_operator_of_a_few_queries_says_what_it_gives(is_masked):
    query, key, value = (tensor.detach() for tensor in inputs(2, 4, 2, 3, 70, 16, 16, 2))
    halves = torch.cat([value, value], dim=1)
    mask = torch.rand(2, 1, 1, 70) > 0.3 if is_masked else None
    common = torch.rand(4, 1), mask, 2, True, 20, 0.25
    for held in (value, halves):
        torch.library.opcheck(torch.ops.antiphase.triton_attend_few, (query, key, held, *common))


def test_values_in_halves():
    """As a cache of V1 holds them."""
    query, key, value = (t.detach() for t in inputs(2, 4, 2, 2, 200, 16, 32, 2))
    halves = value.unflatten(-1, (2, 16)).transpose(2, 3).flatten(1, 2).contiguous()  # (B, 2G, M, dv / 2)
    lam = torch.rand(4, 1)
    whole, parts = (few.triton_attend_few(query, key, v, lam, None, 2, True, 0, 0.25) for v in (value, halves))
    assert torch.equal(whole, parts)


@pytest.mark.slow
@pytest.mark.parametrize("attention_type", ["differential", "differential_v2"])
@pytest.mark.parametrize("window", [None, 5])
def test_a_model_runs_on_the_kernels(attention_type, window, monkeypatch):
    """Logits, gradients, and decoding with a cache and padding are those of the model's own function."""
    called = []
    for module, name in ((launch, "triton_attention"), (few, "triton_attend_few"), (few, "triton_v1_step")):
        operator = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, operator=operator: called.append(name) or operator(*a))
    config = AntiphaseConfig(
        attention_type=attention_type, vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
        **({} if window is None else {"sliding_window": window, "layer_types": ["sliding_attention"] * 2}),
    )  # fmt: skip
    model = AntiphaseForCausalLM(config).to(torch.get_default_device())  # transformers decides where models begin
    ids = torch.randint(1, 20, (2, 40))  # more than a step of decoding takes
    seen = torch.ones_like(ids)
    seen[0, :4] = 0
    outputs, slopes, texts = [], [], []
    for implementation in ("eager", "antiphase_triton"):
        model.set_attn_implementation(implementation)
        model.train()
        loss = model(input_ids=ids, attention_mask=seen, labels=ids).loss
        slopes.append(torch.autograd.grad(loss, list(model.parameters())))
        outputs.append(loss)
        model.eval()
        texts.append(model.generate(ids, attention_mask=seen, max_new_tokens=6, do_sample=False))
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)
    assert torch.equal(*texts)
    assert called.count("triton_v1_step" if attention_type == "differential" else "triton_attend_few") == 2 * 5
    assert called.count("triton_attention") == 2 * 2


def test_devices_that_the_kernels_do_not_cover(monkeypatch):
    here = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launch, "_why_not", launch._why_not.__wrapped__)  # it remembers what a device is
    cases = (
        (7, 200_000, False), (8, 101_376, False), (8, 166_912, True), (9, 232_448, True), (9, 166_912, False),
        (9, None, False), (12, 101_376, False),
    )  # fmt: skip
    for major, shared, is_covered in cases:
        has = {} if shared is None else {"shared_memory_per_block_optin": shared}  # AMD's say nothing of it
        gpu = SimpleNamespace(name="This GPU", major=major, **has)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, gpu=gpu: gpu)
        reason = launch.why_not_on(here)
        assert (reason is None) is is_covered
        assert is_covered or ("This GPU is not one of them" in reason and 'impl="blockwise"' in reason)
    assert "need a CUDA device, got xpu" in launch.why_not_on(torch.device("xpu"))


def test_sequences_longer_than_a_grid(monkeypatch):
    monkeypatch.setattr(launch, "MOST_BLOCKS", 2)
    query, key, value = inputs(1, 1, 1, 65, 65, 16, 16, 2)  # blocks of 32
    with pytest.raises(ValueError, match='at most 64 tokens in this dtype and width, got 65; use impl="blockwise"'):
        differential_attention(query, key, value, 0.5, impl="triton")


def test_refusals():
    query, key, value = inputs(1, 1, 1, 4, 4, 8, 8, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r'float16, bfloat16 and float32, got torch\.float64; use impl="blockwise"'):
        differential_attention(query, key, value, 0.5, impl="triton")
    query, key, value = inputs(1, 1, 1, 4, 4, 129, 8, 2)
    with pytest.raises(ValueError, match="up to width 128 and values up to 256, got 129 and 8"):
        differential_attention(query, key, value, 0.5, impl="triton")
    query, key, value = inputs(1, 1, 1, 4, 4, 8, 257, 2)
    with pytest.raises(ValueError, match="values up to 256, got 8 and 257"):
        differential_attention(query, key, value, 0.5, impl="triton")
    query, key, value = inputs(1, 1, 1, 4, 4, 8, 8, 2)
    with pytest.raises(ValueError, match="triton implementation never forms the complete map"):
        differential_attention(query, key, value, 0.5, impl="triton", return_weights=True)
    out = differential_attention(query, key, value, 0.5, impl="triton")
    (slope,) = torch.autograd.grad(out.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="the Triton implementation has no second derivatives"):
        torch.autograd.grad(slope.sum(), query)


@pytest.mark.slow
def test_combinations_drawn_at_random():
    random = Random(1)

    def draw(*choices):
        return random.choice(choices)

    for _ in range(8):
        groups, repeats, key_maps = draw(1, 2), draw(1, 3), draw(1, 2)
        queries, keys = draw(1, 17, 65), draw(1, 33, 70)
        query, key, value = inputs(
            draw(1, 2), groups * repeats, groups, queries, keys, draw(5, 16), draw(7, 32), key_maps
        )
        lam = torch.rand(draw((), (groups * repeats, 1), (1, 1, queries)), requires_grad=True)
        mask = draw(None, torch.rand(keys) > 0.2)
        options = {"is_causal": draw(False, True), "sliding_window": draw(None, 5, 50), "attn_mask": mask}
        check(query, key, value, lam, scale=draw(None, 0.7), **options)
