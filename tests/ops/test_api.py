"""The contract of ``differential_attention``: what it refuses, packed sequences, autocast."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from antiphase import differential_attention
from antiphase.ops import implementations


def tensors(heads=2, groups=2, queries=4, keys=6, width=4, value_width=8, key_maps=2, batch=1):
    query = torch.randn(batch, 2 * heads, queries, width)
    key = torch.randn(batch, key_maps * groups, keys, width)
    return query, key, torch.randn(batch, groups, keys, value_width)


def edges(queries, keys):
    return {"cu_seqlens_q": torch.tensor(queries).int(), "cu_seqlens_k": torch.tensor(keys).int()}


QUERY, KEY, VALUE = (torch.zeros(1, 4, 4, 4), torch.zeros(1, 4, 6, 4), torch.zeros(1, 2, 6, 8))
BAD = {
    "rank": ((QUERY[0], KEY, VALUE, 0.5), {}, r"query must have 4 dimensions"),
    "odd maps": ((QUERY[:, :3], KEY, VALUE, 0.5), {}, r"even number of maps.*got 3"),
    "key heads": ((QUERY, KEY[:, :3], VALUE, 0.5), {}, r"key must have 4 heads.*or 2.*got 3"),
    "value heads": ((torch.zeros(1, 6, 4, 4), KEY, VALUE, 0.5), {}, r"3 heads of query must be a multiple of the 2"),
    "lengths": ((QUERY, KEY, VALUE[:, :, :5], 0.5), {}, r"same length, got 6 and 5"),
    "widths": ((QUERY, KEY[..., :3], VALUE, 0.5), {}, r"same width, got 4 and 3"),
    "no width": ((QUERY[..., :0], KEY[..., :0], VALUE, torch.tensor(0.5)), {}, r"must have a width, got 0 and 8"),
    "batch": ((QUERY, KEY.repeat(2, 1, 1, 1), VALUE, 0.5), {}, r"batch size, got 1, 2 and 1"),
    "dtype": ((QUERY, KEY.double(), VALUE, 0.5), {}, r"share dtype and device.*float64"),
    "integers": ((QUERY.long(), KEY.long(), VALUE.long(), 0.5), {}, r"query must be float16, .* got torch.int64"),
    "eight bits": ((QUERY.to(torch.float8_e4m3fn), KEY, VALUE, 0.5), {}, r"query must be float16, .* got torch.float8"),
    "device": ((QUERY, KEY.to("meta"), VALUE, 0.5), {}, r"share dtype and device.*meta"),
    "lam 1-D": ((QUERY, KEY, VALUE, torch.zeros(2)), {}, r"per head is \(heads, 1\).*\(2,\)"),
    "lam shape": ((QUERY, KEY, VALUE, torch.zeros(3, 1)), {}, r"does not broadcast.*\(1, 2, 4\)"),
    "lam nan": ((QUERY, KEY, VALUE, float("nan")), {}, r"finite, got nan"),
    "lam words": ((QUERY, KEY, VALUE, "x"), {}, r"lam must be a number or a tensor, got 'x'"),
    "lam none": ((QUERY, KEY, VALUE, None), {}, r"lam must be a number or a tensor, got None"),
    "scale": ((QUERY, KEY, VALUE, 0.5), {"scale": float("inf")}, r"scale must be finite, got inf"),
    "mask dtype": ((QUERY, KEY, VALUE, 0.5), {"attn_mask": torch.zeros(4, 6)}, r"boolean.*float32.*additive"),
    "mask shape": ((QUERY, KEY, VALUE, 0.5), {"attn_mask": torch.ones(5, 6, dtype=torch.bool)}, r"\(1, 2, 4, 6\)"),
    "window": ((QUERY, KEY, VALUE, 0.5), {"sliding_window": 0}, r"at least 1, got 0"),
    "impl": ((QUERY, KEY, VALUE, 0.5), {"impl": "fast"}, r"reference, blockwise, native, triton, got 'fast'"),
    "weights": ((QUERY, KEY, VALUE, 0.5), {"impl": "blockwise", "return_weights": True}, r'impl="reference"'),
    "cu_seqlens and mask": (
        (QUERY, KEY, VALUE, 0.5),
        {**edges([0, 4], [0, 6]), "attn_mask": torch.ones(4, 6, dtype=torch.bool)},
        r"cannot be combined with attn_mask",
    ),
    "cu_seqlens of other counts": (
        (QUERY, KEY, VALUE, 0.5),
        edges([0, 2, 4], [0, 6]),
        r"equally many sequences, got 2 and 1",
    ),
    "cu_seqlens and rows": (
        (*(tensor.repeat(2, 1, 1, 1) for tensor in (QUERY, KEY, VALUE)), 0.5),
        edges([0, 4], [0, 6]),
        r"needs batch size 1 \(sequences end to end\), got 2",
    ),
    "cu_seqlens of other dtype": (
        (QUERY, KEY, VALUE, 0.5),
        {name: edge.long() for name, edge in edges([0, 4], [0, 6]).items()},
        r"must be int32 of shape \(sequences \+ 1,\), got torch.int64",
    ),
    "one cu_seqlens": ((QUERY, KEY, VALUE, 0.5), {"cu_seqlens_q": torch.tensor([0, 4]).int()}, r"given together"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_expected_and_got(name):
    arguments, options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        differential_attention(*arguments, **options)


@pytest.mark.parametrize("impl", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize("window", [11, 2**31, 2**63, 2**70])
def test_a_window_longer_than_the_sequence_hides_nothing_but_the_future(impl, window):
    query, key, value = tensors(queries=4, keys=7)
    found = differential_attention(query, key, value, 0.5, sliding_window=window, impl=impl)
    torch.testing.assert_close(found, differential_attention(query, key, value, 0.5, is_causal=True, impl=impl))


@pytest.mark.parametrize("wrong", [[0, 5, 3, 9], [1, 9], [0, 8]])
def test_bad_edges_are_refused(wrong):
    query, key, value = tensors(queries=9, keys=9)
    good = [0, 4, 9][: len(wrong)] if len(wrong) < 4 else [0, 4, 6, 9]
    with pytest.raises(ValueError, match="cu_seqlens_q must rise from 0 to the length 9"):
        differential_attention(query, key, value, 0.5, **edges(wrong, good))


def test_autocast_lowers_the_operands_and_keeps_lambda():
    query, key, value = tensors()
    lam = torch.tensor(0.4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = differential_attention(query, key, value, lam, is_causal=True)
        out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert lam.grad.dtype == torch.float32
    assert torch.equal(
        out, differential_attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), lam, is_causal=True)
    )


def test_autocast_leaves_fp64_alone():
    query, key, value = (tensor.double() for tensor in tensors())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = differential_attention(query, key, value, 0.4, is_causal=True)
    assert torch.equal(out, differential_attention(query, key, value, 0.4, is_causal=True))
    assert out.dtype == torch.float64


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the kernels run here, under the interpreter")
def test_the_kernels_for_gpus_say_what_they_need(monkeypatch):
    query, key, value = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 1, 4, 8)
    if implementations.HAS_TRITON:
        with pytest.raises(ValueError, match='need a CUDA device, got cpu; use impl="blockwise"'):
            differential_attention(query, key, value, 0.5, impl="triton")
    monkeypatch.setattr(implementations, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"needs Triton, which is for Linux: pip install 'antiphase\[triton\]'"):
        differential_attention(query, key, value, 0.5, impl="triton")


@pytest.mark.parametrize("impl", ["reference", "blockwise", "auto"])
def test_sequences_without_tokens_are_served_with_a_window_too(impl):
    query, key, value = torch.zeros(1, 4, 0, 8), torch.zeros(1, 4, 0, 8), torch.zeros(1, 2, 0, 16)
    edges = torch.tensor([0, 0, 0], dtype=torch.int32)
    for packed in ({}, {"cu_seqlens_q": edges, "cu_seqlens_k": edges}):
        found = differential_attention(query, key, value, 0.5, sliding_window=3, impl=impl, **packed)
        assert found.shape == (1, 2, 0, 16)


@pytest.mark.parametrize(("has_triton", "reason", "chosen"), [
    (True, None, "triton"), (True, "too wide", "auto"), (False, None, "auto"),
])  # fmt: skip
def test_auto_takes_the_gpu_kernels_where_they_run(monkeypatch, has_triton, reason, chosen):
    asked = []
    kernels = SimpleNamespace(why_not=lambda query, value_width: asked.append(value_width) or reason, LONGEST=100)
    monkeypatch.setattr(implementations, "HAS_TRITON", has_triton)
    monkeypatch.setattr(implementations, "launch_module", lambda: kernels)
    with FakeTensorMode():  # CUDA tensors without a GPU
        query, long = (torch.empty(1, 4, n, 16, device="cuda", dtype=torch.bfloat16) for n in (8, 101))
    assert implementations.resolve_implementation("auto", query, query, query, 32, 0.25) == chosen
    assert implementations.resolve_implementation("auto", query, long, long, 32, 0.25) == "auto"
    assert implementations.resolve_implementation("blockwise", query, query, query, 32, 0.25) == "blockwise"
    assert asked == [32, 32] * has_triton
    with pytest.raises(ValueError, match="native kernels"):
        implementations.resolve_implementation("native", query, query, query, 32, 0.25)
    monkeypatch.setattr(implementations, "transforms_of", lambda *tensors: "forward-mode derivatives")
    assert implementations.resolve_implementation("auto", query, query, query, 32, 0.25) == "auto"
