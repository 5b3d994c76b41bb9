"""Ablations and rivals compute their formulas, decode as they read, and are measured or refused in words."""

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

import antiphase
from antiphase.attention.maps import attention_maps
from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.training.run_model import attention_only, lambdas
from antiphase.layers.lambdas import lambda_init
from antiphase.layers.registry import set_training_step, variant_fields
from antiphase.layers.rivals import ExclusiveAttention
from antiphase.layers.weightings import WEIGHTINGS
from antiphase.models.attention import attention_layer
from antiphase.models.conversion import convert_model
from antiphase.models.initialization import initialize
from antiphase.models.serving import PagedAttention, paged_sizes, refuse_unserved
from antiphase.models.variants import needs, own_fields
from support.layers import formula, random_layer, rotary
from support.models import assert_near, logits_in_pieces

VARIANTS = {
    "softmax": ("softmax", {}), "V1": ("differential", {}), "V2": ("differential_v2", {}),
    "norm of softmax heads": ("softmax", {"head_norm": True}), "gate": ("softmax", {"output_gate": True}),
    "gate on differential heads": ("differential", {"output_gate": True}),
    "gate on V2": ("differential_v2", {"output_gate": True}), "sink logits": ("softmax", {"sink_logits": True}),
    "DEX": ("softmax", {"dex_heads": [[0, 3], [], [1, 2, 7]], "dex_steps": 4}),
    "no head norm": ("differential", {"head_norm": False}), "no factor": ("differential", {"head_scale": False}),
    "neither": ("differential", {"head_norm": False, "head_scale": False}),
    "constant": ("differential", {"lambda_init": 0.5}),
    "by layer": ("differential", {"lambda_init": [-0.01, 0.2, 0.4]}),
    "fixed": ("differential", {"lambda_form": "fixed", "lambda_init": 0.8}),
    "scalar": ("differential", {"lambda_form": "scalar"}), "head": ("differential", {"lambda_form": "head"}),
    "added": ("differential", {"second_map": "added"}), "first map alone": ("differential", {"second_map": "none"}),
    "added, by head": ("differential", {"second_map": "added", "lambda_form": "head"}),
    "grouped": ("differential", {"num_noise_heads": 2}),
    "grouped, one noise head": ("differential", {"num_noise_heads": 1, "num_key_value_heads": 2}),
    "linear": ("differential_v2", {"lambda_form": "linear"}),
    "no lambda": ("differential_v2", {"lambda_form": "fixed"}), "across": ("differential_v2_across", {}),
    "V2, grouped": ("differential_v2", {"num_noise_heads": 2, "num_key_value_heads": 2, "output_gate": True}),
    "softmax-1": ("softmax_one", {}), "softpick": ("softpick", {}), "Cog attention": ("cog", {"head_norm": True}),
    "exclusive": ("exclusive", {"output_gate": True, "num_key_value_heads": 2}),
    "across, linear": ("differential_v2_across", {"lambda_form": "linear", "num_key_value_heads": 2}),
}  # fmt: skip
every_variant = pytest.mark.parametrize("name", VARIANTS)


# ------------------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize("implementation", [pytest.param("eager", marks=pytest.mark.slow), "antiphase"])
@every_variant
def test_a_variant_computes_its_formula_and_every_gradient(tiny_config, name, implementation):
    kind, fields = VARIANTS[name]
    config = tiny_config(kind, **{"head_norm_eps": 0.05, **fields})
    x = torch.randn(7, 48, dtype=torch.float64, requires_grad=True)
    for index in (0, 2):
        layer = random_layer(config, index, implementation)
        (out, _), expected = layer(x[None], rotary(layer.head_dim, 7)), formula(layer, x)
        torch.testing.assert_close(out[0], expected, rtol=1e-5, atol=1e-5)  # λ is fp32
        names, given = zip(("x", x), *layer.named_parameters(), strict=True)
        gradients = (torch.autograd.grad(one.sin().sum(), given) for one in (out[0], expected))
        for field, one, other in zip(names, *gradients, strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-4, atol=1e-5, msg=lambda text, field=field: f"{field}: {text}"
            )


def ordinary_attention(layer):
    """As a server has it: causal, grouped, of rows (N, heads · width), with keys and values of earlier calls."""
    sizes, kept = paged_sizes(layer), []

    def attend(query, key, value):
        kept.append([row.unflatten(-1, (sizes.groups, sizes.width)) for row in (key, value)])
        keys, values = (
            torch.cat(rows).repeat_interleave(sizes.queries // sizes.groups, 1) for rows in zip(*kept, strict=True)
        )
        query = query.unflatten(-1, (sizes.queries, sizes.width))
        scores = torch.einsum("nhd,mhd->hnm", query, keys) * layer.scaling
        later = torch.ones_like(scores, dtype=torch.bool).triu(len(keys) - len(query) + 1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return torch.einsum("hnm,mhd->nhd", weights, values).flatten(1)

    return attend


@every_variant
def test_a_variant_is_one_call_of_a_servers_attention_or_refused_by_name(tiny_config, name):
    kind, fields = VARIANTS[name]
    config = tiny_config(kind, **fields)
    if needs(config):
        with pytest.raises(InputError, match=f"^{next(iter(needs(config).values()))} cannot be served"):
            refuse_unserved(config)
        return
    refuse_unserved(config)
    layer, x = random_layer(config, 1, "antiphase"), torch.randn(7, 48, dtype=torch.float64)
    paged = PagedAttention(ordinary_attention(layer), paged_sizes(layer).width)
    expected = formula(layer, x)
    layer.attention_function = lambda: paged
    positions = rotary(layer.head_dim, 7)
    found = [layer(x[None, part], [one[:, part] for one in positions])[0][0] for part in (slice(5), slice(5, 7))]
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)  # λ is fp32


@pytest.mark.parametrize(("kind", "fields", "processes", "named"), [
    ("softmax", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 1, "rope_type dynamic"),
    ("softmax", {"dex_heads": [[0], [], []]}, 2, "heads of this softmax model"),
    ("differential", {"num_noise_heads": 2}, 2, "heads of this differential model"),
    ("differential", {}, 4, "divide 2 heads of values"),
])  # fmt: skip
def test_what_a_server_would_compute_wrongly_is_refused(tiny_config, kind, fields, processes, named):
    with pytest.raises(InputError, match=named):
        refuse_unserved(tiny_config(kind, **fields), processes=processes)
    refuse_unserved(tiny_config(kind), processes=2)


def test_the_cache_of_a_server_is_as_large_as_that_of_softmax(tiny_config):
    def floats(kind, **fields):
        sizes = paged_sizes(attention_layer(tiny_config(kind, head_dim=64, **fields), 0))
        return 2 * sizes.groups * sizes.width

    assert floats("differential") == floats("softmax") == floats("differential", num_noise_heads=2)
    assert floats("differential_v2", num_key_value_heads=2) == floats("softmax") / 2
    widths = [paged_sizes(attention_layer(tiny_config(head_dim=width), 0)).width for width in (6, 16, 20, 24)]
    assert widths == [32, 32, 48, 48]  # a width of 40 has no kernel in vLLM


def test_constants_and_schedule_of_lambda_init(tiny_config):
    found = [attention_layer(tiny_config(lambda_init=0.5), index).lambda_init for index in (0, 2)]
    assert found == [0.5, 0.5]
    assert attention_layer(tiny_config(lambda_init=[-0.01, 0.2, 0.4]), 0).lambda_init == -0.01
    assert attention_layer(tiny_config(), 2).lambda_init == lambda_init(2)


# ------------------------------------------------------------------------------------------ sink logits


@pytest.mark.parametrize("implementation", ["eager", "antiphase"])
def test_sink_logits_are_those_of_gpt_oss(tiny_config, implementation):
    config = tiny_config("softmax", sink_logits=True)
    layer = random_layer(config, 0, implementation)
    theirs = GptOssAttention(
        GptOssConfig(
            hidden_size=48, num_attention_heads=8, num_key_value_heads=4, head_dim=6, num_hidden_layers=1,
            attention_bias=False, attn_implementation="eager",
        ),
        0,
    ).double()  # fmt: skip
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(2, 9, 48, dtype=torch.float64)
    cos, sin = rotary(6, 9)
    hidden = torch.full((1, 1, 9, 9), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    wanted = theirs(x, (cos[..., :3], sin[..., :3]), hidden)[0]
    found = layer(x, (cos, sin))[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(found.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(
        gradients,
        torch.autograd.grad(
            wanted.square().sum(), [dict(theirs.named_parameters())[name] for name, _ in layer.named_parameters()]
        ),
        rtol=1e-8, atol=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("length", [1, 5])
def test_a_sink_logit_takes_its_share_and_none_takes_nothing(tiny_config, length):
    layer = random_layer(tiny_config("softmax", sink_logits=True), 0, "eager")
    plain = random_layer(tiny_config("softmax"), 0, "antiphase")
    plain.load_state_dict({name: tensor for name, tensor in layer.state_dict().items() if name != "sinks"})
    x, position = torch.randn(1, length, 48, dtype=torch.float64), rotary(6, length)
    with torch.no_grad():
        layer.sinks.fill_(-60.0)
        torch.testing.assert_close(layer(x, position)[0], plain(x, position)[0], rtol=1e-9, atol=1e-9)
        layer.sinks.fill_(60.0)
        assert layer(x, position)[1].sum() < 1e-9


@pytest.mark.parametrize(("variant", "named"), [
    ("sink logits", "sink_logits"), ("softmax-1", "softmax-1"), ("softpick", "softpick"),
    ("Cog attention", "Cog attention"),
])  # fmt: skip
def test_what_would_drop_the_logits_or_the_weighting_is_refused(tiny_model, variant, named):
    kind, fields = VARIANTS[variant]
    model = tiny_model(kind, **fields)
    for name in ("sdpa", "flex_attention"):
        with pytest.raises(ValueError, match=f"{named} cannot run with attn_implementation='{name}'"):
            model.set_attn_implementation(name)
    plan = antiphase.CalibrationPlan(heads={0: [1]})
    with (
        antiphase.calibrated(model, plan), pytest.raises(ValueError, match=r"the arguments (s_aux|weighting)"),
    ):  # fmt: skip
        model(torch.tensor([[5, 9, 7]]))


@pytest.mark.parametrize("variant", ["softmax", "sink logits", "softmax-1", "softpick", "exclusive"])
def test_rivals_are_measured_by_the_maps_that_they_have(tiny_model, variant):
    """And weight that goes to no token has a number of its own."""
    kind, fields = VARIANTS[variant]
    model, ids = tiny_model(kind, attn_implementation="eager", **fields), torch.tensor([[5, 9, 7, 11, 3]])
    maps = torch.stack(model(ids, output_attentions=True).attentions)
    found = antiphase.attention_statistics(model, input_ids=ids)
    unspent = 1 - maps.sum(-1).mean(-1)
    assert (unspent.abs().max() > 0.1) == (variant in ("sink logits", "softmax-1", "softpick"))
    torch.testing.assert_close(found.unspent, unspent, rtol=1e-4, atol=1e-6)
    received = found.received
    counts = torch.arange(5, 0, -1)  # queries that see a key
    torch.testing.assert_close(received * counts, maps.sum(-2) * 1.0, rtol=1e-4, atol=1e-5)


def test_negative_weights_of_one_map_are_shown_and_not_measured(tiny_model):
    model, ids = tiny_model("cog"), torch.tensor([[5, 9, 7, 11, 3]])
    with pytest.raises(ValueError, match="CogAttention has negative weights, which are no shares of attention"):
        antiphase.attention_statistics(model, input_ids=ids)
    shown = attention_maps(model, ids)
    assert (shown[0].maps < 0).any()


@pytest.mark.parametrize("kind", ["softmax_one", "softpick", "cog", "exclusive"])
def test_a_rival_is_no_other_model_and_none_turns_into_v2(tiny_model, kind):
    for to, said in (("llama", "to llama takes softmax models"), ("diffllama", "to diffllama takes differential")):
        with pytest.raises(InputError, match=f"{said}.*, not {kind}$"):
            convert_model(tiny_model(kind), to=to)
    with pytest.raises(InputError, match=f", not {kind}$"):
        convert_model(tiny_model(kind), attention_type="differential_v2")


def test_exclusive_attention_has_nothing_along_the_tokens_own_value(tiny_config):
    layer = random_layer(tiny_config("exclusive"), 0, "eager")
    out, own = torch.randn(1, 5, 8, 6, dtype=torch.float64), torch.randn(1, 5, 48, dtype=torch.float64)
    found = layer._finish(out, own)
    values = layer.v_proj(own).view(1, 5, -1, 6).repeat_interleave(8 // layer.config.num_key_value_heads, dim=2)
    assert (found * values).sum(-1).abs().max() < 1e-12
    assert not torch.allclose(found, out)
    with pytest.raises(InputError, match="exclusive attention is self-attention; leave out context_size"):
        ExclusiveAttention(48, 8, context_size=24)


@pytest.mark.parametrize("name", WEIGHTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_large_and_of_equal_scores_are_finite_and_hidden_keys_have_none(name, dtype):
    scores = torch.tensor([[800.0, -900.0, 3.0], [0.0, 0.0, 0.0], [-5.0, -7.0, -800.0]], dtype=dtype)[None, None]
    scores.requires_grad_()
    visible = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])[None, None]
    weights = WEIGHTINGS[name](scores, visible)
    assert weights.isfinite().all()
    assert (weights[~visible] == 0).all()
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert gradient.isfinite().all()


# ------------------------------------------------------------------------------------------ caches, padding, saving


@pytest.mark.parametrize("implementation", [pytest.param("eager", marks=pytest.mark.slow), "antiphase"])
@every_variant
def test_decoding_padding_and_windows_equal_one_forward(tiny_model, name, implementation):
    kind, fields = VARIANTS[name]
    model = tiny_model(kind, attn_implementation=implementation, **fields).double()
    ids, mask = torch.randint(3, 61, (3, 13)), torch.ones(3, 13, dtype=torch.int64)
    mask[0, :5], mask[2, :1] = 0, 0
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    alone = model(ids[:1, 5:], position_ids=torch.arange(5, 13)[None], use_cache=False).logits
    torch.testing.assert_close(whole[:1, 5:], alone, rtol=1e-6, atol=1e-6)
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=16)):
        found = logits_in_pieces(model, ids, mask, cache, (7, 4, 1, 1))
        assert_near(found[mask.bool()], whole[mask.bool()], 1e-6)
    narrow = tiny_model(kind, attn_implementation=implementation, sliding_window=4, **fields).double()
    ids = ids[:, :9]
    steps = logits_in_pieces(narrow, ids, torch.ones_like(ids), DynamicCache(config=narrow.config), [1] * 9)
    assert_near(steps, narrow(ids, use_cache=False).logits, 1e-6)


@every_variant
def test_a_variant_generates_with_every_cache_and_comes_back_from_its_folder(tiny_model, tmp_path, name):
    kind, fields = VARIANTS[name]
    model = tiny_model(kind, **fields)
    ids = torch.randint(3, 61, (2, 6))
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids), "eos_token_id": None}
    texts = [model.generate(ids, cache_implementation=cache, **options) for cache in (None, "static")]
    slow = model.generate(ids, use_cache=False, **options)
    assert all(torch.equal(text, slow) for text in texts)
    model.save_pretrained(tmp_path)
    again = antiphase.AntiphaseForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, again.state_dict()[n]) for n, tensor in model.state_dict().items())
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert own_fields(again.config) == own_fields(model.config)
    assert bool(own_fields(again.config)) == bool(fields)


@every_variant
def test_a_variant_in_fp64_is_loaded_as_it_was_saved(tiny_model, tmp_path, name):
    kind, fields = VARIANTS[name]
    model = tiny_model(kind, **fields).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-10 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    again = antiphase.AntiphaseForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in model.state_dict().items())
    ids = torch.randint(3, 61, (2, 6))
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-11)


@every_variant
def test_a_variant_begins_where_its_published_form_does(tiny_config, name):
    """Equal seeds give equal shared weights, and what is added begins at zero, however the weights are made."""
    kind, fields = VARIANTS[name]
    model, plain = (
        antiphase.AntiphaseForCausalLM(tiny_config(kind, **fields)),
        antiphase.AntiphaseForCausalLM(tiny_config("softmax")),
    )
    fresh = dict(model.named_parameters())
    for added in ("sinks", "lambda_offset", "dex_weight", "dex_lambda"):
        assert not any(bool(value.any()) for n, value in fresh.items() if n.endswith(added))
    initialize(model, 3)
    initialize(plain, 3)
    shared = dict(plain.named_parameters())
    for n, value in model.named_parameters():
        if n in shared and shared[n].shape == value.shape:
            assert torch.equal(value, shared[n]), n
        if n.rpartition(".")[2] in ("sinks", "lambda_offset", "dex_weight", "dex_lambda"):
            assert not value.any(), n
    assert attention_only(model) == sum(
        value.numel() for n, value in model.named_parameters() if "self_attn" in n and not n.endswith(
            ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"))
    )  # fmt: skip
    found = lambdas(model)
    assert found is None if kind != "differential" else len(found) == 3


@pytest.mark.parametrize(
    ("name", "added"), [("sink logits", "sinks"), ("DEX", "dex_weight"), ("head", "lambda_offset")]
)
def test_tensors_missing_from_a_checkpoint_begin_at_zero(tiny_model, name, added):
    """Transformers calls ``_init_weights`` for parameters that a checkpoint does not hold, in memory of any content."""
    kind, fields = VARIANTS[name]
    model = tiny_model(kind, **fields)
    layer = model.model.layers[0].self_attn
    assert getattr(layer, added).abs().max() > 0
    model._init_weights(layer)
    assert not getattr(layer, added).any()


def test_the_model_card_names_the_variant(tiny_model, tmp_path):
    kind, fields = VARIANTS["gate"]
    tiny_model(kind, **fields).save_pretrained(tmp_path)
    assert "with softmax (output_gate true) attention" in " ".join((tmp_path / "README.md").read_text().split())


def test_lambda_stays_in_fp32_when_the_model_is_loaded_in_half_precision(tiny_model, tmp_path):
    for name, parameter in (("head", "lambda_offset"), ("DEX", "dex_lambda")):
        kind, fields = VARIANTS[name]
        folder = tmp_path / name
        tiny_model(kind, **fields).save_pretrained(folder)
        model = antiphase.AntiphaseForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        found = {n: value.dtype for n, value in model.named_parameters()}
        assert {dtype for n, dtype in found.items() if n.endswith(parameter)} == {torch.float32}
        assert found["model.layers.0.self_attn.q_proj.weight"] == torch.bfloat16
        assert model(torch.randint(3, 61, (1, 5))).logits.isfinite().all()


# ------------------------------------------------------------------------------------------ grouped heads, DEX


def test_as_many_noise_heads_as_heads_is_the_published_form(tiny_model):
    plain, grouped = (
        tiny_model("differential", num_key_value_heads=8),
        tiny_model("differential", num_key_value_heads=8, num_noise_heads=4),
    )
    grouped.load_state_dict(plain.state_dict())
    ids = torch.randint(3, 61, (2, 9))
    assert torch.equal(plain(ids).logits, grouped(ids).logits)


def test_dex_anneals_from_the_schedule_to_what_is_learned(tiny_model):
    model = tiny_model("softmax", dex_heads=[[0], [1], [2]], dex_steps=10)
    layer = model.model.layers[1].self_attn
    learned = layer.dex_lambda.item()
    assert layer.extension_lambda().item() == learned  # at rest
    for step, alpha in ((0, 0.0), (4, 0.4), (10, 1.0), (25, 1.0)):
        set_training_step(model, step)
        wanted = (1 - alpha) * alpha * lambda_init(1) + alpha * learned
        assert layer.extension_lambda().item() == pytest.approx(wanted, rel=1e-6)
    set_training_step(model, 0)
    plain = tiny_model("softmax")
    plain.load_state_dict(model.state_dict(), strict=False)
    ids = torch.randint(3, 61, (1, 7))
    assert torch.equal(model(ids).logits, plain(ids).logits)


def test_dex_on_a_pretrained_model_begins_as_that_model_and_learns(tiny_model):
    plain = tiny_model("softmax")
    model = convert_model(plain, attention_type="dex")
    assert model.config.dex_heads == [list(range(8))] * 3
    assert set(own_fields(model.config)) <= set(variant_fields())
    ids = torch.randint(3, 61, (2, 9))
    assert torch.equal(model(ids).logits, plain(ids).logits)
    for layer in model.model.layers:
        layer.self_attn.dex_progress = 0.5
    model.train()(ids, labels=ids).loss.backward()
    assert all(layer.self_attn.dex_weight.grad.abs().max() > 0 for layer in model.model.layers)


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(("kind", "fields", "said"), [
    ("differential", {"lambda_form": "sigmoid"}, "lambda_form must be one of exponential, scalar, head, fixed"),
    ("differential_v2", {"lambda_form": "linar"}, "did you mean 'linear'"),
    ("differential_v2", {"lambda_init": 0.5}, "lambda_init needs attention_type=differential, got differential_v2"),
    ("differential", {"lambda_init": 1.0}, "lambda_init must be a number above -1 and below 1"),
    ("differential", {"lambda_init": [0.2, 0.3]}, "lambda_init must list a number for each of the 3 layers"),
    ("differential", {"lambda_init": [0.2, -1, 0.4]}, "lambda_init must be a number above -1 and below 1, got -1"),
    ("differential", {"head_norm": 1}, "head_norm must be true or false"),
    ("softmax", {"head_scale": True}, "head_scale needs attention_type=differential"),
    ("differential", {"sink_logits": True}, "sink_logits needs attention_type=softmax"),
    ("softmax", {"num_noise_heads": 2}, "num_noise_heads must be left out in softmax, got 2"),
    ("differential_v2", {"num_noise_heads": 2}, r"num_noise_heads \(2\) must be a multiple of the 4 value heads"),
    ("differential_v2_across", {"num_noise_heads": 2, "num_key_value_heads": 2}, "num_noise_heads cannot be used"),
    ("softpick", {"sink_logits": True}, "sink_logits needs attention_type=softmax"),
    ("differential", {"second_map": "add"}, "second_map must be one of subtracted, added, none, got 'add'"),
    ("softmax", {"second_map": "added"}, "second_map needs attention_type=differential, got softmax"),
    ("differential_v2", {"second_map": "none"}, "second_map needs attention_type=differential, got differential_v2"),
    ("differential", {"num_noise_heads": 3}, "num_noise_heads must divide the 4 heads"),
    ("differential", {"num_noise_heads": 1}, r"num_noise_heads \(1\) must be a multiple of the 2 value heads"),
    ("differential", {"dex_heads": [[0]] * 3}, "dex_heads needs attention_type=softmax"),
    ("softmax", {"dex_heads": [[0]]}, "dex_heads must list heads for each of the 3 layers"),
    ("softmax", {"dex_heads": [[0], [8], []]}, "dex_heads must name different heads from 0 to 7"),
    ("softmax", {"dex_heads": [0, 1, 2]}, "dex_heads must name different heads from 0 to 7 in a list, got 0"),
    ("softmax", {"dex_heads": 1}, "dex_heads must name different heads from 0 to 7 in a list, got 1"),
    ("softmax", {"layer_types": 5}, "layer_types must name full_attention or sliding_attention .*, got 5"),
    ("softmax", {"layer_types": [["full_attention"]] * 3}, "layer_types must name full_attention or sliding"),
    ("softmax", {"dex_steps": 3}, "dex_steps cannot be used without dex_heads"),
    ("softmax", {"dex_steps": -1}, "dex_steps must be a whole number from 0"),
    ("differential_v2_across", {"num_key_value_heads": 1}, "num_key_value_heads must be at least 2"),
])  # fmt: skip
def test_fields_that_do_not_fit_are_named(tiny_config, kind, fields, said):
    with pytest.raises(InputError, match=said):
        tiny_config(kind, **fields)


def test_annealing_must_end_within_the_run(tiny_preset):
    with pytest.raises(InputError, match=r"model.dex_steps \(30\) must be at most training.steps \(20\)"):
        load_preset(
            str(tiny_preset), ["model.dex_steps=30", "model.dex_heads=[[0],[1]]", "model.attention_type=softmax"]
        )


@pytest.mark.parametrize("name", ["gate", "sink logits", "no head norm", "grouped"])
@pytest.mark.parametrize("to", ["llama", "diffllama"])
def test_formats_without_a_place_for_a_variant_refuse_it(tiny_model, name, to):
    kind, fields = VARIANTS[name]
    takes = {"llama": "softmax", "diffllama": "differential"}[to]
    lacks = f"has no place for what the model has in {next(iter(fields))}"
    with pytest.raises(InputError, match=f"to {to} {lacks if kind == takes else f'takes {takes}'}"):
        convert_model(tiny_model(kind, **fields), to=to)
