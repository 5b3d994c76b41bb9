"""RMSNorm, λ and the decoding step of a V1 layer on the kernels are those of PyTorch's own operations."""

import pytest
import torch
from torch.autograd import forward_ad

from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.functions import antiphase_attention, eager_attention, triton_attention
from antiphase.ops.api import differential_attention
from antiphase.ops.plain import plain_lambda, plain_rms_norm

layer = pytest.importorskip("antiphase.ops.triton.layer", reason="Triton is not installed", exc_type=ImportError)
launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)
few = pytest.importorskip("antiphase.ops.triton.few", reason="Triton is not installed", exc_type=ImportError)


def errors(function, tensors, cotangent, expected):
    """Largest errors of a function's output and gradients, each divided by the largest expected number."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = function(*leaves)
    found = [out, *torch.autograd.grad(out, leaves, cotangent.to(out.dtype))]
    return [
        float((one.double() - true).detach().abs().max() / true.detach().abs().max())
        for one, true in zip(found, expected, strict=True)
    ]


@pytest.mark.parametrize(
    ("shape", "dtype", "weight_dtype", "result"),
    [
        ((2, 3, 5, 128), torch.float32, torch.float32, torch.float32),
        ((700, 33), torch.float32, torch.float32, torch.float32),  # more rows than all programs take at once
        ((3, 7, 128), torch.bfloat16, torch.float32, torch.bfloat16),  # a head under autocast
        ((3, 7, 20), torch.bfloat16, torch.bfloat16, torch.bfloat16),
        ((5, 64), torch.float16, torch.float32, torch.float32),
        ((1, 3), torch.float32, torch.float32, torch.float32),
        ((2, 5000), torch.float32, torch.float32, torch.float32),
    ],
)
def test_the_norm_and_its_gradients(shape, dtype, weight_dtype, result):
    """At most twice the error of PyTorch's operations in the same dtypes and one rounding, both against fp64."""
    tensor, weight = torch.randn(shape).to(dtype), (1 + 0.3 * torch.randn(shape[-1])).to(weight_dtype)
    cotangent, eps, factor = torch.randn(shape).to(result), 1e-5, 0.36
    exact = [t.double().requires_grad_() for t in (tensor, weight)]
    expected = plain_rms_norm(*exact, eps, factor)
    expected = [expected, *torch.autograd.grad(expected, exact, cotangent.double())]
    eager = errors(lambda x, w: plain_rms_norm(x, w, eps, factor, result), (tensor, weight), cotangent, expected)
    found = errors(
        lambda x, w: layer.norm_with_derivatives(x, w, eps, factor, result), (tensor, weight), cotangent, expected
    )
    roundings = [torch.finfo(dtype).eps for dtype in (result, dtype, weight_dtype)]
    for own, theirs, rounding in zip(found, eager, roundings, strict=True):
        assert own <= 2 * (theirs + rounding)


def test_rows_in_any_order_of_memory():
    tensor = torch.randn(4, 6, 3, 16).transpose(1, 2)
    assert not tensor.is_contiguous()
    found = layer.normalize(tensor, torch.ones(16), 1e-6, 1.0, torch.float32)
    torch.testing.assert_close(found, plain_rms_norm(tensor, torch.ones(16), 1e-6))
    slopes, _ = layer.normalize_backward(found, tensor, torch.ones(16), 1e-6, 1.0)
    again = tensor.detach().requires_grad_()
    (expected,) = torch.autograd.grad(plain_rms_norm(again, torch.ones(16), 1e-6), again, found)
    torch.testing.assert_close(slopes, expected)


def test_no_row_divides_by_zero():
    """ε = 0, and fewer rows than a program takes."""
    tensor, weight = torch.randn(3, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    found, expected = (
        torch.autograd.grad(function(tensor, weight, 0.0, 0.5, torch.float32).sum(), (tensor, weight))
        for function in (layer.norm_with_derivatives, plain_rms_norm)
    )
    torch.testing.assert_close(found, expected)


def test_gradients_for_a_batch_of_cotangents():
    tensor, weight = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    vectors = [(0.3 * torch.randn(8)).requires_grad_() for _ in range(4)]
    query, key, value = (torch.randn(1, maps, 9, 16, requires_grad=True) for maps in (4, 4, 2))

    def attend(impl):
        return differential_attention(query, key, value, 0.4, impl=impl)

    for found, expected, leaves in (
        (layer.norm_with_derivatives(tensor, weight, 1e-5, 0.5, torch.float32),
         plain_rms_norm(tensor, weight, 1e-5, 0.5), (tensor, weight)),
        (layer.lambda_with_derivatives(*vectors, 0.2), plain_lambda(vectors, 0.2), vectors),
        (attend("triton"), attend("reference"), (query, key, value)),
    ):  # fmt: skip
        cotangents = torch.randn(2, *found.shape)
        slopes = [torch.autograd.grad(out, leaves, cotangents, is_grads_batched=True) for out in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_what_the_small_kernels_take():
    tensor, weight = torch.randn(2, 3, 8), torch.ones(8)
    assert layer.supports_norm(tensor, weight)
    assert layer.supports_norm(tensor.transpose(0, 1), weight)
    wrong = (
        (tensor, torch.ones(5)), (tensor, torch.ones(1, 8)), (tensor, torch.ones(16)[::2]), (tensor.double(), weight),
        (tensor[:0], weight), (torch.ones(()), weight), (torch.ones(1, 8193), torch.ones(8193)),
    )  # fmt: skip
    assert not any(layer.supports_norm(*pair) for pair in wrong)
    vectors = torch.randn(4, 8).unbind()
    assert layer.supports_lambda(*vectors)
    for place in range(4):
        for one in (torch.ones(7), torch.ones(16)[::2], torch.ones(1, 8), torch.ones(8, dtype=torch.float64)):
            assert not layer.supports_lambda(*vectors[:place], one, *vectors[place + 1 :])


def test_second_derivatives_are_those_of_pytorch():
    tensor, weight = torch.randn(3, 8, requires_grad=True), torch.randn(8)
    vectors = [(0.3 * torch.randn(8)).requires_grad_() for _ in range(4)]
    for run, plain, leaf in (
        (lambda: layer.norm_with_derivatives(tensor, weight, 1e-5, 0.5, torch.float32),
         lambda: plain_rms_norm(tensor, weight, 1e-5, 0.5), tensor),
        (lambda: layer.lambda_with_derivatives(*vectors, 0.2), lambda: plain_lambda(vectors, 0.2), vectors[2]),
    ):  # fmt: skip
        seconds = []
        for function in (run, plain):
            (slope,) = torch.autograd.grad(function().square().sum(), leaf, create_graph=True)
            seconds.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
        torch.testing.assert_close(*seconds)


def test_a_weight_that_its_input_depends_on_has_its_gradient_once():
    weight, tensor = torch.randn(16, requires_grad=True), torch.randn(4, 16, requires_grad=True)

    def twice(norm):
        once = norm(tensor, weight, 1e-5, 0.7, torch.float32)
        again = norm(once.sin() + tensor, weight, 1e-5, 0.7, torch.float32)
        return torch.autograd.grad((again**3).sum(), (tensor, weight), create_graph=True)

    for own, true in zip(twice(layer.norm_with_derivatives), twice(plain_rms_norm), strict=True):
        torch.testing.assert_close(own, true, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [5, 64])
def test_lambda_and_its_gradients(width):
    vectors = [(0.3 * torch.randn(width)).requires_grad_() for _ in range(4)]
    exact = [v.detach().double().requires_grad_() for v in vectors]
    found, expected = layer.lambda_with_derivatives(*vectors, 0.35), plain_lambda(exact, 0.35)
    assert found.shape == ()
    torch.testing.assert_close(found.double(), expected)
    slopes = torch.autograd.grad(3 * found, vectors), torch.autograd.grad(3 * expected, exact)
    for own, true in zip(*slopes, strict=True):
        torch.testing.assert_close(own.double(), true)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("groups", "is_masked"), [(4, False), (2, True)])
def test_a_decoding_step_of_a_layer_is_one_call(groups, is_masked, dtype, monkeypatch):
    """λ, attention and norm of the step equal those of the layer one after the other."""
    made = DifferentialAttentionV1(
        64, 8, num_key_value_heads=2 * groups, layer_idx=3, attention=triton_attention
    ).to(dtype).eval()  # fmt: skip
    with torch.no_grad():
        for vector in made._vectors():
            vector.mul_(3.0)
        made.head_norm.weight.normal_(1.0, 0.2)
    query, key = torch.randn(2, 8, 1, 8, dtype=dtype), torch.randn(2, 2 * groups, 90, 8, dtype=dtype)
    value, hidden = torch.randn_like(key), torch.randn(2, 1, 64, dtype=dtype)
    mask = torch.rand(2, 1, 1, 90) > 0.4 if is_masked else None
    calls, step = [], few.triton_v1_step
    monkeypatch.setattr(few, "triton_v1_step", lambda *args: calls.append(args) or step(*args))
    with torch.no_grad():
        found, _ = made._attend(query, key, value, mask, hidden)
        assert len(calls) == 1
        made._is_published = False  # as with other forms of λ, which have no such step
        expected, _ = made._attend(query, key, value, mask, hidden)
        assert len(calls) == 1
        made.double().attention = antiphase_attention
        exact, _ = made._attend(query.double(), key.double(), value.double(), mask, hidden.double())
    rounding = torch.finfo(dtype).eps * exact.abs().max()
    own, theirs = ((out.double() - exact).abs().max() for out in (found, expected))
    assert found.dtype == dtype
    assert own <= 2 * (theirs + rounding)


def test_the_operator_of_a_step_says_what_it_gives():
    query, key = torch.randn(2, 8, 1, 8), torch.randn(2, 4, 40, 8)
    vectors = [0.3 * torch.randn(8) for _ in range(4)]
    torch.library.opcheck(
        torch.ops.antiphase.triton_v1_step,
        (query, key, key, *vectors, torch.randn(16), None, 2, False, 0, 0.25, 0.2, 1e-5, 0.8),
    )


def test_calls_that_the_step_does_not_take():
    """Gradients, autocast and weights in another dtype go through the separate operations."""
    made = DifferentialAttentionV1(64, 8, layer_idx=0, attention=triton_attention)
    query, key = torch.randn(1, 8, 1, 8), torch.randn(1, 8, 20, 8)
    options = {"is_causal": False, "sliding_window": None, "scale": 0.3, "impl": "triton"}
    assert made.step(query, key, key, None, **options) is None
    with torch.no_grad():
        assert made.step(query, key, key, None, **options) is not None
        assert made.step(query.bfloat16(), key.bfloat16(), key.bfloat16(), None, **options) is None
        with torch.autocast(query.device.type, torch.bfloat16):
            assert made.step(query, key, key, None, **options) is None


@pytest.mark.skipif(launch.INTERPRETED, reason="on a CPU, models never take these kernels")
def test_a_model_under_autocast_takes_the_kernels(monkeypatch):
    """The norm of heads and λ of a V1 layer in training, with gradients near those of PyTorch's operations."""
    made = DifferentialAttentionV1(128, 8, layer_idx=0, attention=triton_attention)
    hidden, cotangent = torch.randn(2, 40, 128), torch.randn(2, 40, 128)
    calls = []
    for name in ("norm_with_derivatives", "lambda_with_derivatives"):
        function = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda *a, name=name, function=function: calls.append(name) or function(*a))

    def slopes():
        with torch.autocast("cuda", torch.bfloat16):
            out, _ = made(hidden)
        return [out, *torch.autograd.grad(out.float(), list(made.parameters()), cotangent)]

    found = slopes()
    assert sorted(calls) == ["lambda_with_derivatives", "norm_with_derivatives"]
    monkeypatch.setattr("antiphase.ops.layer._is_on_gpu", lambda *tensors: False)
    expected = slopes()
    assert len(calls) == 2
    for own, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(own.float(), theirs.float(), rtol=3e-2, atol=3e-2 * float(theirs.abs().max()))


def test_forward_mode_does_not_take_the_step():
    """Its tangents of the norm's weight and of λ would be lost."""
    made = DifferentialAttentionV1(64, 8, layer_idx=0, attention=triton_attention)
    query, key = torch.randn(1, 8, 1, 8), torch.randn(1, 8, 20, 8)
    options = {"is_causal": False, "sliding_window": None, "scale": 0.3, "impl": "triton"}
    for name in ("head_norm.weight", "lambda_q1"):
        value = made.get_parameter(name).detach()
        with torch.no_grad(), forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(value, torch.ones_like(value))}
            with torch.nn.utils.stateless._reparametrize_module(made, dual):
                assert made.step(query, key, key, None, **options) is None


@pytest.mark.parametrize("place", ["query", "key", "weight", "vector"])
def test_views_that_negate_their_memory(place):
    made = DifferentialAttentionV1(64, 8, layer_idx=0, attention=triton_attention)
    query, key, hidden = torch.randn(1, 8, 1, 8), torch.randn(1, 8, 20, 8), torch.randn(1, 1, 64)
    with torch.no_grad():
        if place == "weight":
            made.head_norm.weight = torch.nn.Parameter(torch._neg_view(torch.randn(16)))
        elif place == "vector":
            made.lambda_k2 = torch.nn.Parameter(torch._neg_view(made.lambda_k2.clone()))
        query, key = (torch._neg_view(t) if place == name else t for name, t in (("query", query), ("key", key)))
        found, _ = made._attend(query, key, key, None, hidden)
        made.attention = eager_attention
        expected, _ = made._attend(query, key, key, None, hidden)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 1, 80), (2, 1, 1, 100), (3, 1, 1, 90)])
@pytest.mark.parametrize("of_layer", [False, True])
def test_masks_that_do_not_fit_are_refused(shape, of_layer):
    made = DifferentialAttentionV1(64, 8, layer_idx=0, attention=triton_attention)
    made._is_published = of_layer
    query, key, hidden = torch.randn(2, 8, 1, 8), torch.randn(2, 8, 90, 8), torch.randn(2, 1, 64)
    with torch.no_grad(), pytest.raises((ValueError, RuntimeError), match=r"mask must|must match the existing size"):
        made._attend(query, key, key, torch.ones(shape, dtype=torch.bool), hidden)


@pytest.mark.parametrize("shape", [(3, 1), (7,), (1, 2, 4, 1)])
def test_lambdas_and_weights_that_do_not_fit_are_refused(shape):
    query, key = torch.randn(2, 8, 1, 8), torch.randn(2, 8, 90, 8)
    with pytest.raises(ValueError, match=r"lam must broadcast to \(2, 4, 1\), got"):
        few.triton_attend_few(query, key, key, torch.rand(shape), None, 4, False, 0, 0.3)
    vectors = [torch.randn(8) for _ in range(4)]
    with pytest.raises(ValueError, match="must have 8 numbers each and the norm's weight 16"):
        few.triton_v1_step(query, key, key, *vectors, torch.ones(5), None, 4, False, 0, 0.3, 0.2, 1e-5, 0.8)
