"""Operations of a layer by PyTorch, where the package's own kernels stand aside."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, GPT2Config

import antiphase
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.functions import triton_attention
from antiphase.layers.norm import RMSNorm
from antiphase.ops.layer import exponential_lambda, rms_norm


@pytest.mark.parametrize("name", ["norm", "lambda"])
def test_operations_on_a_gpu_compile_as_one_graph(name, monkeypatch):
    """A compiler sees PyTorch's operations, which it can fuse. The tensors only have shapes, so no GPU is needed."""
    # as on a GPU, with tensors that are not of a class of their own
    monkeypatch.setattr("antiphase.ops.layer.why_no_kernels", lambda device: None)
    monkeypatch.setattr("antiphase.ops.layer.are_plain", lambda tensors: True)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with FakeTensorMode():
        tensor, *vectors = torch.randn(2, 3, 8, device="cuda"), *torch.randn(4, 8, device="cuda").unbind()
        call = (lambda: rms_norm(tensor, vectors[0], 1e-5, 0.5)) if name == "norm" else (
            lambda: exponential_lambda(vectors, 0.2)
        )  # fmt: skip
        found = torch.compile(call, backend=keep, fullgraph=True)()
    assert found.shape == ((2, 3, 8) if name == "norm" else ())
    called = {node.target for node in graphs[0].graph.nodes if node.op == "call_function"}
    assert (torch.rms_norm if name == "norm" else torch.dot) in called


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_of_heads_is_rounded_under_autocast(dtype):
    """Once, to autocast's dtype, as the projection behind it would; fp64 stays, and so do other norms."""
    tensor, cotangent = torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    for is_rounded in (False, True):
        norm = RMSNorm(8, 1e-5, 0.4, is_rounded=is_rounded).to(dtype)
        exact = norm(tensor.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            found = norm(tensor.bfloat16().to(dtype))
        rounds = is_rounded and dtype == torch.float32
        assert found.dtype == (torch.bfloat16 if rounds else dtype)
        torch.testing.assert_close(found.to(dtype), exact, rtol=2e-2, atol=1e-2)
        (slope,) = torch.autograd.grad(found, norm.weight, cotangent.to(found.dtype))
        (expected,) = torch.autograd.grad(exact, norm.weight, cotangent.to(dtype))
        assert slope.dtype == dtype
        torch.testing.assert_close(slope, expected, rtol=3e-2, atol=3e-2)


def test_a_layer_and_a_model_tell_shapes_on_meta():
    layer = DifferentialAttentionV1(64, 4, layer_idx=0).to("meta")
    assert layer(torch.empty(2, 5, 64, device="meta"))[0].shape == (2, 5, 64)
    config = GPT2Config(vocab_size=61, n_embd=48, n_layer=2, n_head=8, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(antiphase.differential_config(config)).to("meta")
    assert model(torch.empty(2, 5, dtype=torch.int64, device="meta")).logits.shape == (2, 5, 61)


def test_a_compiled_layer_takes_a_decoding_step_in_one_graph(monkeypatch):
    launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)
    monkeypatch.setattr(launch, "why_not_on", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda tensor, *args, **kwargs: tensor)  # it asks for a generator
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():  # the tensors only have shapes
        made = DifferentialAttentionV1(64, 8, layer_idx=0, attention=triton_attention)
        query, key, hidden = torch.randn(2, 8, 1, 8), torch.randn(2, 8, 90, 8), torch.randn(2, 1, 64)
        found, _ = torch.compile(made._attend, backend=keep, fullgraph=True)(query, key, key, None, hidden)
    assert (found.shape, found.device.type) == ((2, 1, 4, 16), "cuda")
    assert torch.ops.antiphase.triton_v1_step.default in {node.target for node in graphs[0].graph.nodes}
