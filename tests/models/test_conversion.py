"""Converted models compute what their sources compute, in every layout and both ways; what cannot be is refused."""

import math
from functools import partial

import pytest
import torch
import transformers as hf

from antiphase.base.errors import InputError
from antiphase.models.attention import attention_layer
from antiphase.models.conversion import attention_from_unilm, convert_model, plan_conversion
from support.models import randomize

SIZES = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3}
IDS = torch.randint(3, 61, (2, 17), generator=torch.Generator().manual_seed(1))


def randomized(model):
    return randomize(model, 0.15, **{"lambda": 0.1})


def theirs_of(model, config, heads=8, key_heads=None, **fields):
    sizes = {**SIZES, "num_attention_heads": heads, "num_key_value_heads": key_heads, "rms_norm_eps": 1e-4}
    return randomized(model(config(**{**sizes, **fields})))


llama = partial(theirs_of, hf.LlamaForCausalLM, hf.LlamaConfig)
diffllama = partial(theirs_of, hf.DiffLlamaForCausalLM, hf.DiffLlamaConfig)


def assert_same_function(found, expected, *, tolerance=1e-5):
    with torch.no_grad():
        one, other = found(input_ids=IDS).logits, expected(input_ids=IDS).logits
    assert (one - other).abs().max() <= tolerance * max(1.0, float(other.abs().max()))


def assert_same_tensors(found, expected):
    one, other = found.state_dict(), expected.state_dict()
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        torch.testing.assert_close(one[name], tensor, rtol=1e-6, atol=1e-7, msg=name)


LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0] * 3, "long_factor": [2.0] * 3,
    "original_max_position_embeddings": 9,
}  # fmt: skip
STRETCHED = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LAYOUTS = {
    "mha": {"heads": 8}, "gqa": {"heads": 8, "key_heads": 4},
    "odd-number-of-differential-heads": {"heads": 6, "key_heads": 2},
    "odd-number-of-differential-heads-mha": {"heads": 6},
    "own-head-width": {"heads": 8, "key_heads": 4, "head_dim": 10}, "tied": {"heads": 8, "tie_word_embeddings": True},
    "biases": {"heads": 6, "key_heads": 2, "attention_bias": True, "hidden_act": "gelu_pytorch_tanh"},
    "rope": {"heads": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    "rope-that-stretches": {"heads": 8, "rope_parameters": STRETCHED, "max_position_embeddings": 9},
    "rope-of-two-lengths": {"heads": 8, "rope_parameters": LONG, "max_position_embeddings": 32},
}  # fmt: skip


@pytest.mark.parametrize(("source", "kind", "layout"), [
    *(pytest.param(llama, "softmax", layout, id=f"llama-{name}") for name, layout in LAYOUTS.items()),
    pytest.param(llama, "softmax", {"heads": 3, "key_heads": 1}, id="llama-odd-number-of-heads"),
    pytest.param(llama, "softmax", {"mlp_bias": True}, id="llama-biases-of-the-mlp"),
    *(pytest.param(diffllama, "differential", layout, id=f"diffllama-{name}") for name, layout in LAYOUTS.items()),
])  # fmt: skip
def test_a_model_becomes_ours_and_itself_again(source, kind, layout):
    theirs = source(**layout)
    ours = convert_model(theirs)
    assert ours.config.attention_type == kind
    assert kind == "softmax" or ours.config.head_norm_eps == theirs.config.rms_norm_eps
    assert_same_function(ours, theirs)
    back = convert_model(ours, to=theirs.config.model_type)
    assert type(back) is type(theirs)
    assert_same_tensors(back, theirs)


@pytest.mark.parametrize("key_maps", [8, 4])
def test_a_head_norm_with_weights_goes_into_the_output_projection(tiny_model, key_maps):
    ours = tiny_model(num_key_value_heads=key_maps, rms_norm_eps=1e-4, head_norm_eps=1e-4)
    assert (ours.model.layers[0].self_attn.head_norm.weight - 1).abs().max() > 0.1
    assert_same_function(convert_model(ours, to="diffllama"), ours)


def test_mistral_comes_with_its_window():
    sizes = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 5}
    theirs = randomized(hf.MistralForCausalLM(hf.MistralConfig(**sizes)))
    ours = convert_model(theirs)
    assert ours.config.sliding_window == 5
    assert_same_function(ours, theirs)
    with pytest.raises(InputError, match=r"sliding_window \(5\), which llama cannot express"):
        convert_model(ours, to="llama")


def test_a_window_that_llama_ignores_is_ignored_here():
    theirs = llama(8, sliding_window=4)
    assert_same_function(convert_model(theirs), theirs)


def test_generation_settings_travel_and_other_heads_are_refused():
    theirs = llama()
    theirs.generation_config.max_new_tokens = 7
    assert convert_model(theirs).generation_config.max_new_tokens == 7
    classifier = hf.LlamaForSequenceClassification(hf.LlamaConfig(**SIZES, num_attention_heads=8, pad_token_id=0))
    with pytest.raises(InputError, match=r"^LlamaForSequenceClassification is .* no weights for lm_head\.weight"):
        convert_model(classifier)


def test_lambda_vectors_are_kept_in_fp32():
    ours = convert_model(diffllama().to(torch.bfloat16))
    assert ours.model.layers[0].self_attn.lambda_q1.dtype == torch.float32
    assert ours.model.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16


# ------------------------------------------------------------------------------------------ upcycling


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize(("heads", "key_heads", "fields"), [
    (8, 8, {}), (8, 2, {}), (3, 3, {}), (3, 1, {"head_dim": 10}), (8, 4, {"tie_word_embeddings": True}),
])  # fmt: skip
def test_upcycling_preserves_the_function_and_splits_the_gradient(heads, key_heads, fields, control):
    theirs = convert_model(llama(heads, key_heads, **fields).double())  # Llama's own norms round to fp32
    ours = convert_model(theirs, attention_type="differential_v2", control=control)
    assert ours.config.attention_type == ("softmax" if control else "differential_v2")
    assert ours.config.num_attention_heads == 2 * heads
    assert ours.config.num_key_value_heads == key_heads
    assert_same_function(ours, theirs, tolerance=1e-12)
    for model in (ours, theirs):
        model(input_ids=IDS, labels=IDS).loss.backward()
    width = theirs.config.head_dim
    for one, other in zip(ours.model.layers, theirs.model.layers, strict=True):
        old = other.self_attn.q_proj.weight.grad.unflatten(0, (heads, width))
        pair = one.self_attn.q_proj.weight.grad.unflatten(0, (heads, 2, width))
        scale = float(old.abs().max())
        torch.testing.assert_close(pair[:, 0], 2 * old, rtol=1e-5, atol=1e-6 * scale)  # the loss is in fp32
        torch.testing.assert_close(pair[:, 1], -old, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize(("heads", "key_heads", "fields"), [
    (8, 8, {}), (8, 2, {"attention_bias": True}), (3, 1, {"head_dim": 10}), (8, 4, {"tie_word_embeddings": True}),
])  # fmt: skip
def test_a_softmax_model_becomes_v1_with_the_same_function(heads, key_heads, fields):
    theirs = convert_model(llama(heads, key_heads, **fields).double())
    ours = convert_model(theirs, attention_type="differential")
    config = ours.config
    assert (config.attention_type, config.head_norm, config.head_scale) == ("differential", False, False)
    assert (config.num_attention_heads, config.num_key_value_heads) == (2 * heads, 2 * key_heads)
    assert_same_function(ours, theirs, tolerance=1e-7)  # λ is in fp32
    ours(input_ids=IDS, labels=IDS).loss.backward()
    for index, layer in enumerate(ours.model.layers):
        assert layer.self_attn.lam().item() == pytest.approx(0.8 - 0.6 * math.exp(-0.3 * index), abs=1e-6)
        for name, parameter in layer.self_attn.named_parameters():
            rows = parameter.grad.flatten(1) if parameter.dim() > 1 else parameter.grad[:, None]
            whole = name not in ("k_proj.bias", "lambda_k1")  # a shift of all keys changes no weight
            assert not whole or (rows.abs().amax(1) > 0).all(), name


@pytest.mark.parametrize("size", [0.5, 2.0])
def test_a_head_norm_gives_each_head_a_mean_size(size):
    theirs = convert_model(llama(4, 2).double())
    sizes = [[size * (head + 1) for head in range(4)] for _ in theirs.model.layers]
    ours = convert_model(theirs, attention_type="differential", head_sizes=sizes)
    assert isinstance(ours.model.layers[1].self_attn.head_norm, torch.nn.RMSNorm)
    x = torch.randn(2, 9, theirs.config.hidden_size, dtype=torch.float64)
    old, new = (model.model.layers[1].self_attn for model in (theirs, ours))
    given = []
    old.o_proj.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0]))
    cos, sin = theirs.model.rotary_emb(x, torch.arange(9)[None])
    old(x, (cos, sin))
    heads = given[0].unflatten(-1, (4, -1))
    expected = heads / heads.square().mean(-1, keepdim=True).sqrt() * torch.tensor(sizes[1])[:, None]
    found, _ = new(x, (cos, sin))
    assert (found - expected.flatten(2) @ old.o_proj.weight.T).abs().max() < 1e-2 * found.abs().max()  # ε of the norm


@pytest.mark.parametrize("control", [False, True])
def test_windows_by_layer_are_kept_when_upcycling(tiny_model, control):
    layers = ["full_attention", "sliding_attention", "full_attention"]
    ours = tiny_model("softmax", sliding_window=3, layer_types=layers)
    found = convert_model(ours, attention_type="differential_v2", control=control)
    assert (found.config.sliding_window, found.config.layer_types) == (3, layers)
    assert_same_function(found, ours)


def test_weights_that_overflow_when_doubled_are_refused(tiny_model):
    model = tiny_model("softmax").half()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[2, 3] = 60000.0
    for control in (False, True):
        with pytest.raises(InputError, match=r"output weights .o_proj. too large for torch\.float16 when doubled"):
            convert_model(model, attention_type="differential_v2", control=control)
    with pytest.raises(InputError, match=r"too large for torch\.float16 when multiplied"):
        convert_model(model, attention_type="differential")


def test_a_head_of_its_own_in_a_tied_model_is_refused(tiny_model):
    model = tiny_model("softmax", tie_word_embeddings=True)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 2)
    with pytest.raises(InputError, match=r"lm_head\.weight differs"):
        convert_model(model, attention_type="differential_v2")


def test_only_v2_separates_the_pair():
    theirs = llama(4, 2)
    for control, separates in ((False, True), (True, False)):
        ours = convert_model(theirs, attention_type="differential_v2", control=control)
        ours(input_ids=IDS, labels=IDS).loss.backward()
        found = [name for name, p in ours.named_parameters() if "lambda_proj" in name and p.grad.abs().max() > 0]
        assert bool(found) == separates


# ------------------------------------------------------------------------------------------ microsoft/unilm


@pytest.mark.parametrize("name", ["unilm_diffattn_mha", "unilm_diffattn_gqa"])
def test_a_layer_of_unilm_loads(tiny_config, golden, name):
    golden, settings = golden(name)
    depth, embed = int(settings["depth"]), int(settings["embed_dim"])
    state = {key.removeprefix("param."): tensor for key, tensor in golden.items() if key.startswith("param.")}
    width = len(state["lambda_q1"])
    maps, key_maps = len(state["q_proj.weight"]) // width, len(state["k_proj.weight"]) // width
    config = tiny_config(
        hidden_size=embed, num_attention_heads=maps, num_key_value_heads=key_maps, num_hidden_layers=depth + 1
    )
    config._attn_implementation = "antiphase"
    layer = attention_layer(config, depth).double()
    layer.load_state_dict(attention_from_unilm(state))
    position = tuple(torch.cat([golden[which]] * 2, dim=-1)[None] for which in ("cos", "sin"))
    out, _ = layer(golden["x"], position)
    assert (out - golden["out"]).abs().max() < 2e-6 * golden["out"].abs().max()


def unilm_state():
    projections = {f"{name}_proj.weight": torch.randn(48, 48) for name in ("q", "k", "v", "out")}
    vectors = {f"lambda_{n}": torch.randn(6) for n in ("q1", "k1", "q2", "k2")}
    return {**projections, "subln.weight": torch.ones(12), **vectors}


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda state: state.pop("lambda_k2"), "is no whole layer: it has no weights for lambda_k2"),
        (lambda state: state.update(extra=torch.ones(1)), "is no whole layer: .* no place for extra"),
        (
            lambda state: state.update({"subln.weight": torch.ones(6)}),
            r"subln.weight has the shape \(6,\), expected \(12,\)",
        ),
        (lambda state: state.update({"v_proj.weight": torch.ones(36, 48)}), r"k_proj.weight has the shape"),
        (
            lambda state: state.update({n: torch.ones(18, 48) for n in ("k_proj.weight", "v_proj.weight")}),
            "k_proj.weight has 18 rows",
        ),
    ],
)
def test_other_state_dicts_are_refused_by_the_tensors_name(change, pattern):
    state = unilm_state()
    attention_from_unilm(state)
    change(state)
    with pytest.raises(InputError, match=pattern):
        attention_from_unilm(state)


@pytest.mark.parametrize(("way", "to"), [
    ({"attention_type": "differential_v2", "control": True}, "llama"),
    ({"attention_type": "differential", "head_sizes": [[0.5] * 8] * 3}, "diffllama"),
])  # fmt: skip
def test_what_a_step_makes_goes_on_to_a_format_that_takes_it(way, to):
    theirs = theirs_of(hf.LlamaForCausalLM, hf.LlamaConfig, rms_norm_eps=1e-5)
    assert_same_function(convert_model(theirs, to=to, **way), convert_model(theirs, **way))


# ------------------------------------------------------------------------------------------ what cannot be


LLAMA = hf.LlamaConfig(**SIZES, num_attention_heads=8, rms_norm_eps=1e-5)


@pytest.mark.parametrize(
    ("config", "options", "pattern"),
    [
        (hf.LlamaConfig(**SIZES, num_attention_heads=8, attention_dropout=0.1), {}, "attention_dropout=0.1"),
        (hf.LlamaConfig(**SIZES, num_attention_heads=8, hidden_act="mish"), {}, "hidden_act='mish'"),
        (hf.DiffLlamaConfig(**SIZES, num_attention_heads=8, hidden_act="tanh"), {}, "hidden_act='tanh'"),
        (
            hf.LlamaConfig(**SIZES, num_attention_heads=8, quantization_config={"quant_method": "gptq", "bits": 4}),
            {},
            "source is quantized",
        ),
        (hf.Olmo3Config(**SIZES, num_attention_heads=8), {}, "model of type 'olmo3'"),
        (hf.LlamaConfig(**SIZES, num_attention_heads=8), {"to": "diffllama"}, "to diffllama takes differential V1"),
        (hf.DiffLlamaConfig(**SIZES, num_attention_heads=8), {"to": "llama"}, "to llama takes softmax models"),
        (hf.DiffLlamaConfig(**SIZES, num_attention_heads=8), {"attention_type": "differential_v2"}, "upcycles softmax"),
        (hf.LlamaConfig(**SIZES, num_attention_heads=8), {"attention_type": "differential_v3"}, "must be one of"),
        (hf.LlamaConfig(**SIZES, num_attention_heads=8), {"control": True}, "control needs attention_type"),
        (LLAMA, {"attention_type": "differential", "to": "diffllama"}, "the model has in head_norm, head_scale$"),
        (LLAMA, {"attention_type": "dex", "to": "llama"}, "to llama has no place for what the model has in dex_heads$"),
        (LLAMA, {"attention_type": "differential_v2", "to": "llama"}, "softmax models, not differential_v2$"),
    ],
)  # fmt: skip
def test_unsupported_conversions_are_refused_by_name(config, options, pattern):
    with pytest.raises(InputError, match=pattern):
        plan_conversion(config, **options)


def test_unequal_norms_and_widths_are_refused(tiny_config):
    with pytest.raises(InputError, match=r"head_norm_eps \(1e-05\) and rms_norm_eps \(0.0001\) differ"):
        plan_conversion(tiny_config(rms_norm_eps=1e-4), to="diffllama")
    with pytest.raises(InputError, match=r"num_attention_heads \(5\) must divide hidden_size"):
        plan_conversion(tiny_config("softmax", num_attention_heads=5, num_key_value_heads=5, head_dim=8), to="llama")
