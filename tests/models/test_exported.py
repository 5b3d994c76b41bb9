"""Exported programs compute what the models compute, without this package; onnxruntime runs them.

Where onnxruntime is not installed its tests are skipped; ``python -m tools.served`` runs them.
"""

from functools import partial

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import antiphase
from antiphase.layers import differential
from antiphase.models.architectures import attention_inside
from antiphase.ops.layer import v1_step
from support.models import ids_of, padded, randomize


def exported(model):
    """A program for texts of other numbers and lengths."""
    shape = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=2, max=64)}
    shapes = {"input_ids": shape, "attention_mask": shape, "use_cache": None}
    given = (ids_of(3, 7), torch.ones(3, 7, dtype=torch.int64))
    return torch.export.export(model, given, {"use_cache": False}, dynamic_shapes=shapes)


def namespaces_of(program):
    """Of its operators."""
    return {node.target.namespace for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


class Inside(nn.Module):
    """Attention of another architecture's layer, after its projections."""

    def __init__(self):
        super().__init__()
        self.differential, self.is_causal = differential.DifferentialHeads(16, 0, 1e-5), False

    def forward(self, query, key, value):
        return attention_inside(self, query, key, value, None)[0]


LAYER = partial(differential.DifferentialAttentionV1, 64, 4, is_causal=False, context_size=64)
TOKEN, CONTEXT = torch.randn(2, 1, 64), torch.randn(2, 9, 64)
SPLIT = [one.unflatten(2, (4, 16)).transpose(1, 2) for one in (TOKEN, CONTEXT, CONTEXT)]


@pytest.mark.parametrize(
    ("make", "given", "named"), [(LAYER, [TOKEN], {"context": CONTEXT}), (Inside, SPLIT, {})], ids=["layer", "inside"]
)
def test_a_single_query_too_is_exported_without_our_kernels(monkeypatch, make, given, named):
    """On a device that the GPU kernels support, as all others are once their conditions are met."""
    launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)
    monkeypatch.setattr(launch, "_find_why_not", lambda device: None)
    monkeypatch.setattr(differential, "v1_step", partial(v1_step, impl="triton"))
    with torch.no_grad():
        program = torch.export.export(make().eval().requires_grad_(False), tuple(given), named)
    assert "antiphase" not in namespaces_of(program)


@pytest.mark.parametrize(
    "kind", ["differential", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("softmax", "differential_v2"))]
)
def test_an_exported_program_serves_other_texts_and_has_operators_of_pytorch_alone(tiny_model, kind):
    model, (ids, mask) = tiny_model(kind).double(), padded([ids_of(11), ids_of(6)], left=True)
    program = exported(model)
    found = program.module()(ids, mask, use_cache=False).logits
    torch.testing.assert_close(found[mask > 0], model(ids, attention_mask=mask).logits[mask > 0], rtol=1e-9, atol=1e-9)
    assert namespaces_of(program) == {"aten"}


def test_a_differential_llama_is_exported_with_operators_of_pytorch_alone():
    sizes = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 8}
    config = antiphase.differential_config(LlamaConfig(**sizes, num_hidden_layers=2))
    model, (ids, mask) = randomize(AutoModelForCausalLM.from_config(config)), padded([ids_of(11), ids_of(6)], left=True)
    program = exported(model)
    found = program.module()(ids, mask, use_cache=False).logits
    torch.testing.assert_close(found[mask > 0], model(ids, attention_mask=mask).logits[mask > 0], rtol=0, atol=1e-4)
    assert namespaces_of(program) == {"aten"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "as Motif"])
def test_onnxruntime_computes_the_same_logits(tiny_model, kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    as_motif = {"num_noise_heads": 2, "hidden_act": "poly_norm", "lambda_init": [0.3, 0.5, 0.7], "sliding_window": 5}
    model = tiny_model("differential", **as_motif) if kind == "as Motif" else tiny_model(kind)
    torch.onnx.export(exported(model), f=tmp_path / "model.onnx", dynamo=True)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for ids, mask in (padded([ids_of(11), ids_of(6)], left=True), padded([ids_of(40)], left=False)):
        (logits,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        expected = model(ids, attention_mask=mask).logits[mask > 0]
        torch.testing.assert_close(torch.from_numpy(logits)[mask > 0], expected, rtol=0, atol=1e-4)
