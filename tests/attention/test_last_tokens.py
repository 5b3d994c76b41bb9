"""What spans add to a layer's output, and what is likely without them, against whole eager passes in fp64."""

from contextlib import contextmanager

import pytest
import torch
import transformers as hf

from antiphase.attention.last_tokens import LastTokens
from antiphase.attention.rows import attention_rows
from antiphase.attention.second_map import has_second_map, second_map
from support.models import FOREIGN, SIZES, foreign_model

LENGTH, SPANS = 13, 3
POSITIONS = torch.tensor([[10, 11], [9, 10]])
OWN = {
    "softmax": {"attention_type": "softmax"},
    "softmax with head norm": {"attention_type": "softmax", "head_norm": True},
    "gate": {"attention_type": "softmax", "output_gate": True},
    "sink logits": {"attention_type": "softmax", "sink_logits": True},
    "dex": {"attention_type": "softmax", "dex_heads": [[0, 3], [1], []]}, "V1": {},
    "V1 without head norm": {"head_norm": False},
    "V1 with a window": {"layer_types": ["sliding_attention"] * 3, "sliding_window": 5},
    "V1 with shared noise": {"num_key_value_heads": 4, "num_noise_heads": 2}, "V1 and gate": {"output_gate": True},
    "V2": {"attention_type": "differential_v2"}, "V2 across": {"attention_type": "differential_v2_across"},
    "V1 with norms of queries and keys, and biases": {"use_qk_norm": True, "attention_bias": True},
    "parallel blocks": {"attention_type": "softmax", "attention_bias": True, "mlp_bias": True, "gated_mlp": False,
                        "norm_type": "layer_norm", "use_parallel_residual": True},
}  # fmt: skip
EVERY = [*OWN, *FOREIGN]


@pytest.fixture
def build(tiny_model):
    def make(name, implementation=None):
        if name in OWN:
            fields = {"attention_type": "differential", **OWN[name]}
            kind = fields.pop("attention_type")
            return tiny_model(kind, **fields, attn_implementation=implementation or "antiphase").double()
        return foreign_model(name, implementation or "sdpa").double()

    return make


@pytest.fixture
def ids():
    return torch.randint(3, 61, (2, LENGTH))


@pytest.fixture
def spans():
    """Three spans that make up the text, in pieces."""
    kinds = torch.randint(0, SPANS, (2, LENGTH))
    return torch.stack([kinds == index for index in range(SPANS)], dim=1)


def attention_of(model):
    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    return [layer.attn if hasattr(layer, "attn") else layer.self_attn for layer in layers]


@contextmanager
def hooked(handles):
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def norms_of(attention):
    return [getattr(attention, name) for name in ("head_norm", "groupnorm") if hasattr(attention, name)]


def scales_of(model, ids):
    """What each norm of heads multiplies its input by, everywhere."""
    scales = {}
    handles = [
        norm.register_forward_hook(lambda norm, args, out: scales.update({norm: out / args[0]}))
        for attention in attention_of(model)
        for norm in norms_of(attention)
    ]
    with hooked(handles), torch.no_grad():
        model(ids)
    return scales


def output_with_values_of(model, ids, index, kept, scales):
    """Output (B, N, hidden) of attention layer ``index`` with its values cleared outside the keys ``kept`` (B, N)."""
    attention = attention_of(model)[index]
    seen = {}

    def clear(module, args, out):
        if module is getattr(attention, "v_proj", None):
            return out * kept[..., None]
        query_and_key, value = out.split([2 * out.shape[-1] // 3, out.shape[-1] // 3], dim=-1)  # GPT-2
        return torch.cat([query_and_key, value * kept[..., None]], dim=-1)

    handles = [getattr(attention, "v_proj", getattr(attention, "c_attn", None)).register_forward_hook(clear)]
    handles += [norm.register_forward_hook(lambda norm, args, out: args[0] * scales[norm]) for norm in
                norms_of(attention)]  # fmt: skip
    handles.append(attention.register_forward_hook(lambda module, args, out: seen.update(out=out[0])))
    with hooked(handles), torch.no_grad():
        model(ids)
    return seen["out"]


@pytest.mark.parametrize("name", EVERY)
def test_contributions_are_those_of_the_values_alone_with_the_norm_of_the_whole(build, name, ids, spans):
    model, eager = build(name), build(name, "eager")
    found = LastTokens(model, ids, POSITIONS).contributions(spans)
    scales = scales_of(eager, ids)
    rows, first = torch.arange(2), POSITIONS[:, 0]
    assert len(found) == len(attention_of(model))
    for index, layer in enumerate(found):
        nothing, whole, *parts = (
            output_with_values_of(eager, ids, index, kept, scales)[rows, first]
            for kept in (torch.zeros(2, LENGTH), torch.ones(2, LENGTH), *spans.unbind(1))
        )
        expected = torch.stack([part - nothing for part in parts], dim=1)
        torch.testing.assert_close(layer.whole, whole - nothing, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.spans, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.shares().sum(1), torch.ones(2, dtype=torch.float64), rtol=1e-6, atol=1e-6)
        along = (expected * layer.whole[:, None]).sum(-1) / layer.whole.square().sum(-1, keepdim=True)
        torch.testing.assert_close(layer.shares(), along, rtol=1e-5, atol=1e-6)
        size = expected.norm(dim=-1) / (whole - nothing).norm(dim=-1, keepdim=True)
        torch.testing.assert_close(layer.norms(), size, rtol=1e-5, atol=1e-6)
        assert (layer.first is not None) == has_second_map(model)
        if layer.first is None:
            continue
        with second_map(eager, "removed", [index]):
            alone = [output_with_values_of(eager, ids, index, kept, scales)[rows, first] for kept in spans.unbind(1)]
        expected = torch.stack(alone, dim=1) - nothing.unsqueeze(1)
        torch.testing.assert_close(layer.by_map()["first"].spans, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.by_map()["second"].spans, layer.spans - layer.first, rtol=1e-9, atol=1e-9)


def hidden_mask(hide, window):
    """Causal within a window, and the last tokens do not see the keys (B, N): bool (B, 1, N, N)."""
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(1 - window).repeat(2, 1, 1)
    for row in range(2):
        mask[row, POSITIONS[row]] &= ~hide[row]
    return mask[:, None]


@pytest.mark.parametrize("layer", [None, pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("name", EVERY)
def test_a_knocked_out_span_is_a_mask_of_the_whole_pass(build, name, layer, ids, spans):
    model, eager = build(name), build(name, "eager")
    hide = spans[:, 1] & (torch.arange(LENGTH) < 9)
    targets = torch.tensor([[4, 7], [9, -1]])

    def mask_of(attention, args, kwargs):
        mask = hidden_mask(hide, {"V1 with a window": 5, "mistral": 4}.get(name, LENGTH))
        if name in FOREIGN:
            mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)
        return args, {**kwargs, "attention_mask": mask}

    chosen = attention_of(eager) if layer is None else [attention_of(eager)[layer]]
    for hooks in ([], chosen):
        handles = [attention.register_forward_pre_hook(mask_of, with_kwargs=True) for attention in hooks]
        with hooked(handles), torch.no_grad():
            logs = eager(ids).logits.log_softmax(-1)
        expected = torch.stack([
            sum(logs[row, place, word] for place, word in zip(POSITIONS[row], targets[row], strict=True) if word >= 0)
            for row in range(2)
        ])  # fmt: skip
        last = LastTokens(model, ids, POSITIONS)
        found = last.without(hide, targets, [layer])[0] if hooks else last.log_probabilities(targets)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_layers_knocked_out_at_once_are_those_knocked_out_one_by_one(build, name, ids, spans, monkeypatch):
    """A position may be repeated, which pads shorter answers; batches of two copies change nothing."""
    last = LastTokens(build(name), ids, torch.tensor([[9, 10, 11], [10, 11, 10]]))
    targets = torch.tensor([[4, 7, 5], [9, 8, -1]])
    layers = [None, *range(last.layers)]
    expected = torch.cat([last.without(spans[:, 1], targets, [layer]) for layer in layers])
    torch.testing.assert_close(last.without(spans[:, 1], targets, layers), expected, rtol=1e-9, atol=1e-9)
    assert len(set(expected[:, 0].tolist())) == len(layers)
    unpadded = LastTokens(last.model, ids[1:], torch.tensor([[10, 11]])).without(spans[1:, 1], targets[1:, :2], layers)
    torch.testing.assert_close(expected[:, 1:], unpadded, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr("antiphase.attention.last_tokens.NUMBERS_AT_ONCE", 2 * 6 * max(61, 8 * LENGTH))
    torch.testing.assert_close(last.without(spans[:, 1], targets, layers), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_the_rows_of_the_first_of_the_last_tokens_are_those_of_attention_rows(build, name, ids):
    model = build(name)
    found_rows = attention_rows(model, ids, POSITIONS[:, :1])
    for own, found in zip(LastTokens(model, ids, POSITIONS).rows, found_rows, strict=True):
        assert own.layer == found.layer
        torch.testing.assert_close(own.weights(), found.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "V1", "V2", "llama", "diffllama"])
def test_models_of_lower_precision_are_read(build, name, dtype, ids, spans):
    exact = LastTokens(build(name), ids, POSITIONS).contributions(spans)
    found = LastTokens(build(name).to(dtype), ids, POSITIONS).contributions(spans)
    for near, true in zip(found[:1], exact[:1], strict=True):  # later layers get what earlier ones have rounded
        torch.testing.assert_close(near.shares(), true.shares(), rtol=0, atol=1e-4 if dtype == torch.float32 else 0.1)


def test_a_model_is_the_same_afterwards(build, ids, spans):
    model = build("V1")
    before = model(ids).logits
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    last = LastTokens(model, ids, POSITIONS)
    last.contributions(spans)
    last.without(spans[:, 0], torch.tensor([[4, 7], [9, 9]]))
    assert torch.equal(model(ids).logits, before)
    assert model.config._attn_implementation == "antiphase"
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks


def test_attention_that_is_not_read_is_refused_by_name(build, ids):
    """A soft cap on the scores is not what queries and keys give."""
    gemma = hf.Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=0.05, attn_implementation="eager")
    with pytest.raises(ValueError, match="softcap"):
        LastTokens(hf.Gemma2ForCausalLM(gemma).eval(), ids, POSITIONS)


def test_a_layer_that_is_not_linear_after_its_heads_is_refused_by_name(build, ids, spans):
    model = build("llama")
    attention = model.model.layers[1].self_attn
    attention.o_proj = torch.nn.Sequential(attention.o_proj, torch.nn.Tanh())
    last = LastTokens(model, ids, POSITIONS)
    with pytest.raises(ValueError, match="LlamaAttention of LlamaForCausalLM processes its heads' outputs nonlinearly"):
        last.contributions(spans)


def test_positions_that_a_model_does_not_take_are_refused_by_name(build, ids, monkeypatch):
    model = build("llama")
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda input_ids, use_cache=None: forward(input_ids))
    with pytest.raises(ValueError, match="LlamaForCausalLM takes no position_ids"):
        LastTokens(model, ids, POSITIONS)
    monkeypatch.setattr(
        model, "forward", lambda input_ids, position_ids=None, use_cache=None: forward(input_ids, use_cache=False)
    )
    with pytest.raises(ValueError, match="LlamaForCausalLM computes a text's last tokens differently alone"):
        LastTokens(model, ids, POSITIONS)
