"""What layers ask of the native kernels (values in halves, sink logits, autocast), and what is refused."""

import pytest
import torch

from antiphase import differential_attention
from antiphase.layers.functions import differential_output, join_halves, softmax_attention, softmax_weights
from antiphase.ops.native import operators, steps
from support.attention import assert_errs_at_most_twice


@pytest.mark.usefixtures("built")
def test_a_layer_under_fp16_autocast_uses_another_implementation():
    query, key, value = (torch.randn(1, 4, 5, 8) for _ in range(3))
    options = {"halves": 2, "is_causal": True, "sliding_window": None, "scaling": None}
    with torch.autocast("cpu", dtype=torch.float16):
        found = differential_output(query, key, value, torch.tensor(0.3), None, **options)
    expected = differential_output(query, key, value, torch.tensor(0.3), None, **options)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, atol=5e-3, rtol=5e-3)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("window", [None, 4])
def test_sink_logits_in_the_middle_of_a_cache(window):
    """Three queries at the end of ten keys, without padding: the mask of positions is (N, M)."""
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8)
    options = {"is_causal": True, "sliding_window": window, "scale": 0.3, "s_aux": torch.randn(4)}
    weights = softmax_weights(query, key, None, **options)
    expected = (weights @ value.repeat_interleave(2, dim=1)).transpose(1, 2)
    torch.testing.assert_close(softmax_attention(query, key, value, None, **options), expected)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("change", "message"), [
    ({"query": torch.zeros(1, 3, 4, 8)}, "do not fit together"),
    ({"key": torch.zeros(1, 4, 5, 6)}, "do not fit together"),
    ({"value": torch.zeros(1, 2, 4, 8)}, "do not fit together"), ({"lam": torch.zeros(1, 2, 3)}, "do not fit together"),
    ({"mask": torch.ones(1, 1, 1, 1, dtype=torch.bool)}, "do not fit together"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused_before_anything_is_read(change, message):
    given_ = {"query": torch.zeros(1, 4, 4, 8), "key": torch.zeros(1, 4, 5, 8), "value": torch.zeros(1, 2, 5, 8),
              "lam": torch.zeros(1, 2, 4), "mask": None} | change  # fmt: skip
    with pytest.raises(ValueError, match=message):
        operators.attend(**given_, query_edges=None, key_edges=None, groups=2, is_causal=False, sliding_window=0,
                         scale=1.0, save=False)  # fmt: skip


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("tensor", "scale", "message"), [
    (torch.zeros(1, 2, 3, 4, dtype=torch.float16), None, "fp32, bf16 and fp64"),
    (torch.zeros(1, 2, 3, 4), -1.0, "scale above 0"),
    (torch.zeros(1, 2, 3, 4, device="meta"), None, "for processors, not for meta"),
])  # fmt: skip
def test_an_explicit_choice_that_cannot_serve_is_refused_and_auto_uses_another(tensor, scale, message):
    value = tensor[:, :1]
    with pytest.raises(ValueError, match=message):
        differential_attention(tensor, tensor, value, 0.5, scale=scale, impl="native")
    assert differential_attention(tensor, tensor, value, 0.5, scale=scale).shape == (1, 1, 3, 4)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("width", [5, 8, 16, 24, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halves_of_values_and_their_gradients(dtype, width):
    """Where a half fills whole vectors, its gradients are summed up in place."""
    query = torch.randn(2, 8, 130, width, dtype=torch.float64)
    key, value = (torch.randn(2, 4, 130, width, dtype=torch.float64) for _ in range(2))
    lam = torch.rand(4, 1, dtype=torch.float64)
    cotangent = torch.randn(2, 130, 4, 2 * width, dtype=torch.float64)

    def run(dtype, attend):
        leaves = [t.to(dtype).requires_grad_() for t in (query, key, value, lam)]
        out = attend(*leaves)
        return out, *torch.autograd.grad(out, leaves, cotangent.to(dtype))

    found = run(dtype, lambda q, k, v, lam: differential_output(
        q, k, v, lam, None, halves=2, is_causal=True, sliding_window=70, scaling=None
    ))  # fmt: skip
    expected = run(torch.float64, lambda q, k, v, lam: differential_attention(
        q, k, join_halves(v), lam, is_causal=True, sliding_window=70, impl="reference"
    ).transpose(1, 2))  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        tolerance = 1e-11 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("width", [9, 16])
def test_halves_of_values_in_half_precision(width):
    """As a cache holds them, gradients too: at most twice the eager error and a rounding."""
    tensors = [torch.randn(2, 4, 61, width).bfloat16().requires_grad_() for _ in range(3)]
    out = differential_output(
        *tensors, torch.tensor(0.4), None, halves=2, is_causal=True, sliding_window=None, scaling=None
    )
    cotangent = torch.randn(out.shape).bfloat16()
    found = out, *torch.autograd.grad(out, tensors, cotangent)

    def reference(dtype):
        query, key, value = (tensor.detach().to(dtype).requires_grad_() for tensor in tensors)
        whole = join_halves(value)
        out = differential_attention(query, key, whole, 0.4, is_causal=True, impl="reference").transpose(1, 2)
        return out, *torch.autograd.grad(out, (query, key, value), cotangent.to(dtype))

    for one, eager, true in zip(found, reference(torch.bfloat16), reference(torch.float64), strict=True):
        assert_errs_at_most_twice(one, eager, true)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("options", [
    {"query_edges": torch.tensor([0, 4]).int(), "key_edges": torch.tensor([0, 6]).int()},
    {"query_edges": torch.tensor([0, 4]), "key_edges": torch.tensor([0, 5])},
    {"query_edges": torch.tensor([0, 2, 4]).int(), "key_edges": torch.tensor([0, 5]).int()},
    {"key": torch.zeros(1, 4, 5, 8, dtype=torch.float64)}, {"lam": torch.zeros(1, 2, 4, dtype=torch.float64)},
    {"lam": torch.zeros(1, 2, 4, 2)}, {"mask": torch.ones(1, dtype=torch.bool)},
    {"query_edges": torch.tensor([0, 4]).int()}, {"groups": 0}, {"sliding_window": -1},
])  # fmt: skip
def test_edges_and_dtypes_are_checked_where_memory_is_read(options):
    given_ = {"query": torch.zeros(1, 4, 4, 8), "key": torch.zeros(1, 4, 5, 8), "value": torch.zeros(1, 2, 5, 8),
              "lam": torch.zeros(1, 2, 4), "mask": None, "query_edges": None, "key_edges": None, "groups": 2,
              "sliding_window": 0} | options  # fmt: skip
    message = r"edges .*must be|must share a dtype|lam must be|do not fit together|groups must be at least 1"
    with pytest.raises(ValueError, match=message):
        operators.attend(**given_, is_causal=False, scale=1.0, save=False)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("options", [
    {"statistics": torch.zeros(0)}, {"statistics": torch.zeros(2)},
    {"statistics": torch.zeros(1, 4, 2, 50).transpose(2, 3)},
    {"statistics": torch.zeros(1, 4, 50, 2, dtype=torch.float64)}, {"grad": torch.zeros(1, 1, 1, 16)},
    {"grad": torch.zeros(1, 2, 50, 3)},
])  # fmt: skip
def test_the_backward_operator_reads_nothing_that_is_too_small(options):
    given_ = {"grad": torch.zeros(1, 2, 50, 16), "statistics": torch.zeros(1, 4, 50, 2)} | options
    tensor = torch.zeros(1, 4, 50, 8)
    with pytest.raises(ValueError, match="do not fit together"):
        operators.native_attention_backward(
            given_["grad"], tensor, tensor, torch.zeros(1, 2, 50, 16), torch.zeros(1, 1, 1), None, None, None,
            given_["statistics"], 2, False, 0, 1.0,
        )  # fmt: skip


@pytest.mark.usefixtures("built")
def test_a_few_queries_of_no_sequence_at_all():
    query, key = torch.zeros(0, 4, 1, 8), torch.zeros(0, 4, 9, 8)
    out = steps.native_attention_of_few(query, key, key, torch.tensor(0.3), None, 2, False, 0, 1.0)
    assert out.shape == (0, 2, 1, 16)
