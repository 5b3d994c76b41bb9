"""Every start gives the spread it states, keeps both arms equal, and survives or refuses conversion by name."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

import antiphase
from antiphase.base.errors import InputError
from antiphase.models.conversion import convert_model
from antiphase.models.initialization import initialize

KINDS = ("softmax", "differential", "differential_v2")
SIZES = {
    "vocab_size": 301, "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 32,
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)
either_way = pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "transformers"])


def build(kind="differential", *, keyed=True, **fields):
    config = antiphase.AntiphaseConfig(attention_type=kind, **{**SIZES, **fields})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    if keyed:
        initialize(model, 0)
    return model


def spread(tensor):
    return tensor.float().pow(2).mean().sqrt().item()


def has_spread(tensor, expected):
    """Within five standard errors of a normal sample's spread."""
    return spread(tensor) == pytest.approx(expected, rel=5 / math.sqrt(2 * tensor.numel()))


@every_kind
@either_way
def test_the_default_start_has_one_spread_and_no_multiplier(kind, keyed):
    model = build(kind, keyed=keyed)
    assert model.config.embedding_multiplier == 1.0
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert has_spread(parameter, 0.02), name


@every_kind
@either_way
@pytest.mark.parametrize("norm", ["layer_norm", "zero_centered_rms_norm"])
def test_biases_start_at_zero_and_norms_at_one(kind, keyed, norm):
    model = build(
        kind, keyed=keyed, norm_type=norm, attention_bias=True, mlp_bias=True, gated_mlp=False, use_qk_norm=True
    )
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 and "lambda" not in name:
            (value,) = set(parameter.tolist())
            found.setdefault(name.removeprefix("model.").removeprefix("layers.1."), value)
    zero_centered = norm.startswith("zero")
    assert found["self_attn.o_proj.bias"] == found["mlp.up_proj.bias"] == 0.0
    assert found["self_attn.q_norm.weight"] == found["self_attn.k_norm.weight"] == 1.0
    for name in ("norm", "input_layernorm", "post_attention_layernorm"):
        assert found[f"{name}.weight"] == (0.0 if zero_centered else 1.0)
        assert found.get(f"{name}.bias", 0.0) == 0.0
    assert has_spread(model.model.layers[0].mlp.down_proj.weight, 0.02)


@every_kind
@either_way
def test_fan_in_starts_the_residual_stream_at_rms_one_and_matrices_by_their_inputs(kind, keyed):
    model = build(kind, keyed=keyed, initializer="fan_in")
    hidden = model(torch.arange(30)[None], output_hidden_states=True).hidden_states[0]
    assert has_spread(hidden, 1.0)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed_tokens" not in name:
            bound = parameter.shape[1] ** -0.5
            assert has_spread(parameter, bound / math.sqrt(3)), name
            assert 0.95 * bound < parameter.abs().max() <= bound, name


@either_way
def test_outputs_into_the_residual_stream_are_scaled_and_nothing_else_is(keyed):
    plain = dict(build(keyed=keyed, initializer="fan_in").named_parameters())
    scaled = build(keyed=keyed, initializer="fan_in", residual_init_scale="depth")
    for name, parameter in scaled.named_parameters():
        writes = name.endswith(("o_proj.weight", "down_proj.weight"))
        expected = plain[name] / math.sqrt(6) if writes else plain[name]
        if keyed:
            torch.testing.assert_close(parameter, expected)
        elif parameter.dim() == 2:
            assert has_spread(parameter, spread(expected)), name


@every_kind
def test_blocks_whose_outputs_start_at_zero_are_the_identity(kind):
    model = build(kind, residual_init_scale=0.0)
    states = model(torch.arange(20)[None], output_hidden_states=True).hidden_states
    assert torch.equal(states[0], states[2])


@either_way
def test_head_norms_start_at_their_own_weight(keyed):
    for model in (
        build(head_norm_init=0.05, keyed=keyed),
        build("softmax", head_norm=True, head_norm_init=0.05, keyed=keyed),
    ):
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "lambda" not in name:
                expected = 0.05 if "head_norm" in name else 1.0
                assert torch.equal(parameter, torch.full_like(parameter, expected)), name


def test_both_arms_start_equal_wherever_they_share_a_parameter():
    softmax, differential = (
        dict(build(kind, initializer="fan_in", residual_init_scale="depth").named_parameters()) for kind in KINDS[:2]
    )
    assert softmax.keys() < differential.keys()
    assert all(torch.equal(softmax[name], differential[name]) for name in softmax)


def test_embeddings_given_as_vectors_are_multiplied_as_those_of_ids():
    model, ids = build(initializer="fan_in"), torch.arange(17)[None]
    expected = model(ids).logits
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, expected)
    cache = DynamicCache(config=model.config)
    steps = [model(ids[:, [place]], past_key_values=cache).logits for place in range(17)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=1e-5)


def test_the_multiplier_is_part_of_a_checkpoint(tmp_path):
    model, ids = build(initializer="fan_in"), torch.arange(17)[None]
    assert model.config.embedding_multiplier == pytest.approx(math.sqrt(96))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.config.embedding_multiplier == model.config.embedding_multiplier


@pytest.mark.parametrize(("kind", "to"), [("softmax", "llama"), ("differential", "diffllama")])
def test_conversion_folds_the_multiplier_into_embeddings_of_their_own(kind, to):
    model, ids = build(kind, initializer="fan_in", head_norm_eps=1e-6), torch.arange(17)[None]
    converted = convert_model(model, to=to)
    torch.testing.assert_close(converted(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(convert_model(converted)(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "to"), [("softmax", "llama"), ("differential", "diffllama")])
def test_conversion_refuses_a_multiplier_that_the_head_would_share(kind, to):
    model = build(kind, initializer="fan_in", tie_word_embeddings=True, head_norm_eps=1e-6)
    with pytest.raises(InputError, match=r"embedding_multiplier \(9\.8\), which \w+ cannot express"):
        convert_model(model, to=to)
    tied = build(kind, initializer="fan_in", embedding_multiplier=1.0, tie_word_embeddings=True, head_norm_eps=1e-6)
    convert_model(tied, to=to)


@pytest.mark.parametrize("attention_type", ["differential_v2", "dex"])
@pytest.mark.parametrize("tied", [True, False])
def test_upcycling_keeps_the_start(attention_type, tied):
    fields = {"initializer": "fan_in", "residual_init_scale": "depth", "tie_word_embeddings": tied}
    model, ids = build("softmax", **fields), torch.arange(17)[None]
    upcycled = convert_model(model, attention_type=attention_type)
    torch.testing.assert_close(upcycled(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    assert all(getattr(upcycled.config, name) == getattr(model.config, name) for name in fields)


@pytest.mark.parametrize(("fields", "message"), [
    ({"initializer": "fan-in"}, "initializer must be normal or fan_in, got 'fan-in'"),
    ({"embedding_range": 0.0}, "embedding_range must be a number above 0"),
    ({"embedding_multiplier": float("inf")}, "embedding_multiplier must be a number above 0"),
    ({"embedding_multiplier": True}, "embedding_multiplier must be a number above 0"),
    ({"residual_init_scale": -1.0}, "residual_init_scale must be a number of at least 0"),
    ({"residual_init_scale": "deep"}, "residual_init_scale must be a number of at least 0, or 'depth'"),
    ({"head_norm_init": float("nan")}, "head_norm_init must be a number"),
    ({"head_norm": False, "head_norm_init": 0.05}, r"head_norm_init \(0\.05\) cannot be used without head_norm"),
])  # fmt: skip
def test_impossible_starts_are_refused_by_name(fields, message):
    with pytest.raises(InputError, match=message):
        antiphase.AntiphaseConfig(**SIZES, **fields)


def first_ratio(kind, width, **fields):
    """RMS of what the first layer's attention adds over that of what it is added to, on 128 random tokens."""
    sizes = {"hidden_size": width, "num_attention_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 128}
    model = build(kind, **{**SIZES, **sizes, "vocab_size": 2048}, **fields)
    seen = {}
    layer = model.model.layers[0]
    layer.input_layernorm.register_forward_hook(lambda norm, inputs, output: seen.update(before=inputs[0]))
    layer.self_attn.register_forward_hook(lambda attention, inputs, output: seen.update(added=output[0]))
    model(torch.randint(0, 2048, (2, 128), generator=torch.Generator().manual_seed(0)))
    return spread(seen["added"]) / spread(seen["before"])


@pytest.mark.parametrize("width", [64, 256])
def test_the_norm_of_heads_drowns_the_token_unless_matrices_start_by_their_inputs(width):
    """docs/why.md: 0.8·√d with one standard deviation for all, 0.8/√3 from the authors' start."""
    assert first_ratio("differential", width) == pytest.approx(0.8 * math.sqrt(width), rel=0.06)
    assert first_ratio("differential", width, initializer="fan_in") == pytest.approx(0.8 / math.sqrt(3), rel=0.06)


def test_softmax_attention_starts_small_where_the_model_is_narrow():
    """docs/why.md: 0.25 at width 64 and 3.3 at width 768."""
    assert first_ratio("softmax", 64) == pytest.approx(0.25, abs=0.05)
    assert first_ratio("softmax", 768) == pytest.approx(3.3, abs=0.3)
