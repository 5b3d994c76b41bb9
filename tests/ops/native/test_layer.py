"""Norm, λ and a V1 layer's step on the native kernels equal PyTorch's own, in values and gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, StaticCache

from antiphase import AntiphaseConfig, AntiphaseForCausalLM, differential_attention
from antiphase.layers.functions import differential_output, softmax_attention
from antiphase.layers.norm import RMSNorm
from antiphase.ops.layer import exponential_lambda, rms_norm, v1_step
from antiphase.ops.native import layer, steps
from antiphase.ops.plain import plain_rms_norm
from antiphase.ops.reference import reference_attention
from antiphase.ops.shapes import check_tensors

EPS, FACTOR = 1e-5, 0.3


def formula(tensor, weight, eps=EPS, factor=FACTOR):
    return factor * tensor * torch.rsqrt(tensor.square().mean(-1, keepdim=True) + eps) * weight


def with_gradients(function, tensor, weight):
    out = function(tensor, weight, EPS, FACTOR)
    cotangent = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(out.dtype)
    return out, *torch.autograd.grad(out, (tensor, weight), cotangent)


def drawn(*shape, dtype=torch.float64):
    return (
        torch.randn(shape, dtype=dtype, requires_grad=True), torch.randn(shape[-1], dtype=dtype, requires_grad=True),
    )  # fmt: skip


@pytest.mark.usefixtures("kernels")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.sampled_from([1, 2, 127, 128, 129, 300]), width=st.integers(1, 70), heads=st.integers(1, 3))
def test_the_norm_and_its_gradients(rows, width, heads):
    tensor, weight = drawn(rows, heads, width)
    torch.testing.assert_close(
        with_gradients(rms_norm, tensor, weight), with_gradients(formula, tensor, weight), rtol=1e-11, atol=1e-11
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 9, 4, 64), (700, 33), (3, 1000)])
def test_the_norm_errs_no_more_than_twice_pytorchs(dtype, shape):
    """Root mean squares over each tensor, against fp64."""
    tensor, weight = drawn(*shape, dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in (tensor, weight)]
    for fast, eager, true in zip(
        with_gradients(rms_norm, tensor, weight),
        with_gradients(lambda t, w, eps, factor: torch.rms_norm(t, w.shape, w, eps) * factor, tensor, weight),
        with_gradients(formula, *exact),
        strict=True,
    ):
        errors = [(t.double() - true).square().mean().sqrt() for t in (fast, eager, true.to(dtype))]
        assert errors[0] <= 2 * (errors[1] + errors[2])


@pytest.mark.usefixtures("kernels")
def test_gradcheck_of_the_norm():
    tensor, weight = drawn(5, 7)
    assert torch.autograd.gradcheck(lambda t, w: rms_norm(t, w, EPS, FACTOR), (tensor, weight))
    assert torch.autograd.gradgradcheck(lambda t, w: rms_norm(t, w, EPS, FACTOR), (tensor, weight))
    row, _ = drawn(7, 7)
    assert torch.autograd.gradgradcheck(
        lambda t: rms_norm(t, weight.detach(), EPS, FACTOR), (row[0].detach().requires_grad_(),)
    )


@pytest.mark.usefixtures("kernels")
def test_derivatives_of_the_norm_beyond_the_second_are_right():
    """A Hessian times a vector differentiates the first derivative by its cotangent."""
    tensor, weight = drawn(5, 7)
    vectors = tuple(torch.randn_like(t) for t in (tensor, weight))

    def cubes(norm):
        return lambda t, w: (norm(t * w.sum(), w, EPS, FACTOR) ** 3).sum()

    def third(norm):
        (first,) = torch.autograd.grad(cubes(norm)(tensor, weight), tensor, create_graph=True)
        (second,) = torch.autograd.grad((first * vectors[0]).sum(), tensor, create_graph=True)
        return torch.autograd.grad(second.square().sum(), (tensor, weight))

    products = [
        torch.autograd.functional.hvp(cubes(n), (tensor, weight), vectors)[1] for n in (rms_norm, plain_rms_norm)
    ]
    for own, true in (*zip(*products, strict=True), *zip(third(rms_norm), third(plain_rms_norm), strict=True)):
        torch.testing.assert_close(own, true)


@pytest.mark.usefixtures("built")
def test_operators_are_what_pytorch_expects():
    tensor, weight = drawn(4, 6, dtype=torch.float32)
    plain = tensor.detach(), weight.detach()
    vectors = [torch.randn(8) for _ in range(4)]
    torch.library.opcheck(layer.native_norm_with_derivatives, (tensor, weight, EPS, FACTOR))
    torch.library.opcheck(layer.native_norm, (*plain, EPS, FACTOR))
    torch.library.opcheck(layer.native_norm_backward, (plain[0], *plain, EPS, FACTOR))
    torch.library.opcheck(layer.native_lambda, (*vectors, 0.4))
    query, key, value = (torch.randn(2, 4, n, 8) for n in (1, 9, 9))
    step = (query, key, value, *vectors, torch.rand(16), None, 2, False, 0, 0.3, 0.2, EPS, FACTOR)
    torch.library.opcheck(steps.native_v1_step, step)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_threads_gives_the_same_bits(dtype):
    tensor, weight = drawn(3000, 96, dtype=dtype)
    found = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        found.append(with_gradients(rms_norm, tensor, weight))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.usefixtures("kernels")
def test_memory_beside_a_row_is_neither_read_nor_written():
    room = torch.full((40, 50), float("nan"), dtype=torch.float64)
    room[3:7, 10:33] = torch.randn(4, 23, dtype=torch.float64)
    tensor, weight = room[3:7, 10:33].requires_grad_(), torch.randn(23, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        with_gradients(rms_norm, tensor, weight), with_gradients(formula, tensor, weight), rtol=1e-11, atol=1e-11
    )


@pytest.mark.usefixtures("built")
def test_nan_stays_nan():
    tensor, weight = torch.randn(3, 20), torch.ones(20)
    tensor[1, 4] = float("nan")
    found = rms_norm(tensor, weight, EPS)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()
    torch.testing.assert_close(rms_norm(torch.zeros(2, 5), torch.ones(5), EPS), torch.zeros(2, 5))


@pytest.mark.usefixtures("built")
def test_defaults_of_pytorch_change_neither_dtype_nor_device_of_lambda():
    vectors = [torch.randn(8) for _ in range(4)]
    expected = exponential_lambda(vectors, 0.4)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            found = exponential_lambda(vectors, 0.4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found.dtype, found.device.type) == (torch.float32, "cpu")
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("built")
def test_packed_texts_under_another_default_device():
    query, key, value = torch.randn(1, 4, 9, 8), torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 16)
    edges = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = {"cu_seqlens_q": edges, "cu_seqlens_k": edges, "is_causal": True, "impl": "native"}
    expected = differential_attention(query, key, value, 0.4, **packed)
    with torch.device("meta"):
        assert torch.equal(
            differential_attention(query, key, value, torch.tensor(0.4, device="cpu"), **packed), expected
        )


@pytest.mark.usefixtures("built")
def test_a_weight_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"a norm of \(3, 8\) needs a width, and a weight of \(8,\), got \(7,\)"):
        layer.native_norm(torch.randn(3, 8), torch.ones(7), EPS, 1.0)
    with pytest.raises(ValueError, match=r"needs a weight of the same dtype, got torch\.bfloat16"):
        layer.native_norm(torch.randn(3, 8), torch.ones(8, dtype=torch.bfloat16), EPS, 1.0)


@pytest.mark.usefixtures("built")
def test_the_norm_is_in_the_weights_dtype_under_autocast():
    norm = RMSNorm(16, EPS, FACTOR)
    tensor = torch.randn(5, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = norm(tensor)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, formula(tensor.float(), norm.weight))


@pytest.mark.usefixtures("built")
def test_torch_func_goes_through_the_norm():
    tensor, weight = torch.randn(3, 8), torch.rand(8)
    found, expected = (
        torch.func.grad(lambda t, norm=norm: norm(t, weight, EPS, FACTOR).square().sum())(tensor)
        for norm in (rms_norm, formula)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("built")
def test_forward_mode_goes_through_the_norm():
    tensor, tangent, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    with forward_ad.dual_level():
        out = rms_norm(forward_ad.make_dual(tensor, tangent), weight, EPS, FACTOR)
        found = forward_ad.unpack_dual(out).tangent
    _, expected = torch.func.jvp(lambda t: formula(t, weight), (tensor,), (tangent,))
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("built")
def test_lambda_is_that_of_the_formula():
    vectors = [torch.randn(32) * 0.3 for _ in range(4)]
    q1, k1, q2, k2 = (vector.double() for vector in vectors)
    expected = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + 0.2
    found = exponential_lambda(vectors, 0.2)
    assert (found.dtype, found.shape) == (torch.float32, ())
    torch.testing.assert_close(found.double(), expected, rtol=1e-7, atol=0)
    leaves = [vector.requires_grad_() for vector in vectors]
    torch.testing.assert_close(exponential_lambda(leaves, 0.2), found)
    (grad,) = torch.autograd.grad(exponential_lambda(leaves, 0.2), leaves[2])
    torch.testing.assert_close(grad, -(torch.exp(q2 @ k2) * k2).float())


def step_inputs(batch, heads, groups, queries, keys, width, dtype=torch.float64):
    query = torch.randn(batch, 2 * heads, queries, width, dtype=dtype)
    key, value = (torch.randn(batch, 2 * groups, keys, width, dtype=dtype) for _ in range(2))
    return query, key, value, [torch.randn(width) * 0.2 for _ in range(4)], torch.rand(2 * width, dtype=dtype)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("heads", "groups", "queries", "keys", "width"), [(4, 2, 1, 9, 5), (2, 2, 3, 700, 16)])
@pytest.mark.parametrize("window", [None, 4])
def test_a_step_is_attention_and_norm(heads, groups, queries, keys, width, window):
    query, key, value, vectors, weight = step_inputs(2, heads, groups, queries, keys, width)
    mask = torch.rand(2, 1, 1, keys) > 0.3
    found = v1_step(
        query, key, value, vectors, weight, mask,
        is_causal=True, sliding_window=window, scale=0.3, initial=0.2, eps=EPS, factor=FACTOR,
    )  # fmt: skip
    whole = value.view(2, groups, 2, keys, width).transpose(2, 3).flatten(3)
    expected, _ = reference_attention(
        query, key, whole, exponential_lambda(vectors, 0.2).double().view(1, 1, 1), mask,
        is_causal=True, sliding_window=window, scale=0.3, shapes=check_tensors(query, key, whole),
    )  # fmt: skip
    torch.testing.assert_close(found, formula(expected, weight), rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("built")
def test_the_fused_step_is_used_only_where_it_applies():
    query, key, value, vectors, weight = step_inputs(1, 2, 2, 1, 9, 4, torch.float32)
    rest = {"is_causal": False, "sliding_window": None, "scale": 0.3, "initial": 0.2, "eps": EPS, "factor": 1.0}
    assert v1_step(query, key, value, vectors, weight, None, **rest) is not None
    assert v1_step(query, key, value, vectors, weight.double(), None, **rest) is None
    assert v1_step(query, key, value, [v.double() for v in vectors], weight, None, **rest) is None
    assert v1_step(query, key, value, vectors, weight.clone().requires_grad_(), None, **rest) is None
    assert v1_step(query.expand(-1, -1, 99, -1), key, value, vectors, weight, None, **rest) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert v1_step(query, key, value, vectors, weight, None, **rest) is None
    with pytest.raises(ValueError, match="norm"):
        v1_step(query, key, value, vectors, weight[1:], None, **rest)


SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "attention_type": "differential",
}  # fmt: skip


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
def test_a_model_uses_the_fused_step(cache, window, monkeypatch):
    """With a cache of either kind, padding and a window, as the reference does."""
    sliding = {} if window is None else {"sliding_window": window, "layer_types": ["sliding_attention"] * 2}
    config = AntiphaseConfig(**SIZES, **sliding)
    model = AntiphaseForCausalLM(config).eval()
    taken = []
    step = steps.native_v1_step
    monkeypatch.setattr(steps, "native_v1_step", lambda *args: taken.append(1) or step(*args))
    ids = torch.randint(0, 61, (2, 12))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    results = {}
    for implementation in ("antiphase", "eager"):
        model.set_attn_implementation(implementation)
        known = cache(config=config) if cache is DynamicCache else cache(config=config, max_cache_len=16)
        with torch.no_grad():
            model(ids[:, :9], attention_mask=mask[:, :9], past_key_values=known)
            results[implementation] = torch.cat([
                model(ids[:, n : n + 1], attention_mask=mask[:, : n + 1], past_key_values=known).logits
                for n in range(9, 12)
            ], dim=1)  # fmt: skip
        assert len(taken) == 6  # three steps of two layers, and none in eager attention
    torch.testing.assert_close(results["antiphase"], results["eager"], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("built")
def test_hooks_on_the_norm_are_called():
    model = AntiphaseForCausalLM(AntiphaseConfig(**SIZES)).eval()
    heard = []
    norm = model.model.layers[0].self_attn.head_norm
    handle = norm.register_forward_hook(lambda module, args, output: heard.append(args[0].shape))
    with torch.no_grad():
        model(torch.tensor([[3]]))
    assert heard == [(1, 1, 2, 16)]
    handle.remove()
    replaced = torch.nn.Identity()
    model.model.layers[0].self_attn.head_norm = replaced
    replaced.register_forward_hook(lambda module, args, output: heard.append("replaced"))
    with torch.no_grad():
        model(torch.tensor([[3]]))
    assert heard[-1] == "replaced"


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.found.append(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("built")
def test_dispatch_modes_see_every_operator():
    """Small calls pass it by where nobody does."""
    vectors = [torch.randn(8) for _ in range(4)]
    query, key, value = (torch.randn(1, 4, n, 8) for n in (1, 9, 9))

    def everything():
        rms_norm(query, torch.ones(8), EPS)
        differential_output(
            query, key, value, exponential_lambda(vectors, 0.2), None,
            halves=2, is_causal=False, sliding_window=None, scaling=None,
        )  # fmt: skip

    names = {"antiphase::native_norm", "antiphase::native_lambda", "antiphase::native_attention_of_few"}
    with Names() as mode:
        everything()
    assert names <= set(mode.found)
    with torch.profiler.profile() as profile:
        everything()
    assert names <= {event.key for event in profile.key_averages()}
    with FakeTensorMode() as fake:
        out = rms_norm(fake.from_tensor(query), fake.from_tensor(torch.ones(8)), EPS)
    assert out.shape == query.shape
    by_row = torch.vmap(lambda row: rms_norm(row, torch.ones(8), EPS))(query[0])
    torch.testing.assert_close(by_row, rms_norm(query[0], torch.ones(8), EPS))


def test_norm_and_lambda_compile_without_a_graph_break():
    weight, vectors = torch.rand(8), [torch.randn(8) for _ in range(4)]

    def both(tensor):
        return rms_norm(tensor, weight, EPS, 0.8) + exponential_lambda(vectors, 0.2)

    torch._dynamo.reset()
    tensor = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(both, backend="eager", fullgraph=True)(tensor), both(tensor))


@pytest.mark.usefixtures("built")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of sizes, which are those of the example
@torch.no_grad()
def test_a_trace_has_the_calls_and_not_their_results():
    vectors = [torch.randn(8) for _ in range(4)]

    def everything(query, key, value):
        lam = exponential_lambda(vectors, 0.2)
        out = differential_output(
            rms_norm(query, torch.ones(8), EPS), key, value, lam, None,
            halves=2, is_causal=False, sliding_window=None, scaling=None,
        )  # fmt: skip
        return out, exponential_lambda([query[0, 0, 0], *vectors[1:]], 0.2)

    traced = torch.jit.trace(everything, [torch.randn(1, 4, n, 8) for n in (1, 300, 300)], check_trace=False)
    others = [torch.randn(1, 4, n, 8) for n in (1, 300, 300)]
    torch.testing.assert_close(traced(*others), everything(*others))


@pytest.mark.usefixtures("built")
@torch.no_grad()
def test_tensors_that_are_negated_when_they_are_read():
    """As the imaginary part of a conjugate is."""
    query, key, value = (torch.randn(1, 4, n, 8) for n in (1, 300, 300))
    weight, vectors = torch.rand(16), [torch.randn(8) for _ in range(4)]

    def everything(view):
        return (
            differential_output(view(query), view(key), view(value), view(torch.tensor(0.3)), None,
                                halves=2, is_causal=False, sliding_window=None, scaling=None),
            softmax_attention(view(query), view(key), view(value), None, is_causal=False, sliding_window=None,
                              scale=0.3),
            rms_norm(view(key), view(weight[:8]), EPS), exponential_lambda([view(vector) for vector in vectors], 0.2),
        )  # fmt: skip

    negated = torch._neg_view(query)
    assert negated.is_neg()
    torch.testing.assert_close(everything(torch._neg_view), everything(torch.neg))
    step = {"is_causal": False, "sliding_window": None, "scale": 0.3, "initial": 0.2, "eps": EPS, "factor": 0.8}
    assert v1_step(negated, key, value, vectors, weight, None, **step) is None
    assert v1_step(query, key, value, [*vectors[:3], torch._neg_view(vectors[3])], weight, None, **step) is None


@pytest.mark.usefixtures("built")
def test_tensors_of_another_device_are_refused():
    """Their addresses mean nothing to a processor."""
    query, key, value = (torch.randn(1, 4, n, 8) for n in (1, 9, 9))
    options = {"halves": 2, "is_causal": False, "sliding_window": None, "scaling": None}
    lam, mask = torch.tensor(0.3), torch.ones(1, 1, 1, 9, dtype=torch.bool)
    for name in ("key", "value", "lam", "mask"):
        given = {"query": query, "key": key, "value": value, "lam": lam, "mask": mask}
        given[name] = given[name].to("meta")
        with pytest.raises(ValueError, match=r"must share a device, got cpu.*meta"):
            differential_output(*given.values(), **options)
    with pytest.raises(ValueError, match="must share a device"):
        softmax_attention(query, key.to("meta"), value, None, is_causal=False, sliding_window=None, scale=None)
    with pytest.raises((ValueError, RuntimeError)):
        rms_norm(query, torch.ones(8, device="meta"), EPS).sum().item()
    with pytest.raises(ValueError, match=r"takes fp32, bf16 and fp64, not torch\.float16"):
        layer.native_norm(query.half(), torch.ones(8).half(), EPS, 1.0)
