"""The Transformer of 2017: torch.nn's layers, this project's decoder, positions, norms, caches and measurement."""

import math

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import antiphase
from antiphase.lab.lineage.models.vanilla import Norm, VanillaForCausalLM, VanillaForMaskedLM, VanillaModel
from antiphase.layers.positions import sinusoidal_positions
from antiphase.models import lengths
from antiphase.models.configuration import ATTENTION_TYPES
from support.models import assert_near, logits_in_pieces, padded, randomize

SIZES = {
    "vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "mlp_ratio": 1.5,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BARE = {"positions": "none", "scale_embeddings": False}
"""Nothing happens before the first layer."""

every_type = pytest.mark.parametrize("attention_type", ATTENTION_TYPES)


def config(**fields):
    return antiphase.VanillaConfig(**{**SIZES, **fields})


def model_of(kind=VanillaModel, **fields):
    """In evaluation mode and fp64, every parameter random and large enough to matter."""
    model = randomize(kind(config(**fields)).double())
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    return model


def ids_of(*shape):
    return torch.randint(3, 31, shape)


@torch.no_grad()
def copy_layer(ours, theirs):
    """Weights of a layer of torch.nn from one of ours."""
    attentions = [(ours.self_attn, theirs.self_attn)]
    norms = [ours.self_attn_norm, ours.mlp_norm]
    if ours.cross_attn is not None:
        attentions.append((ours.cross_attn, theirs.multihead_attn))
        norms.insert(1, ours.cross_attn_norm)
    for source, target in attentions:
        projections = (source.q_proj, source.k_proj, source.v_proj)
        target.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
        target.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
        target.out_proj.load_state_dict(source.o_proj.state_dict())
    theirs.linear1.load_state_dict(ours.mlp.up_proj.state_dict())
    theirs.linear2.load_state_dict(ours.mlp.down_proj.state_dict())
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.inner.state_dict())


def torch_layer(kind, place, activation):
    layer = kind(24, 4, 36, 0.0, activation, batch_first=True, norm_first=place == "pre", dtype=torch.float64)
    return layer.train()  # its evaluation mode takes another path, which zeroes the outputs at padding


# ------------------------------------------------------------------------------------------ parity


@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_encoder_and_decoder_are_torchs_with_the_same_weights(place, is_causal, activation, implementation):
    """Outputs and gradients, of a batch with padding."""
    ours = model_of(
        norm_position=place, is_causal=is_causal, activation=activation, attn_implementation=implementation, **BARE
    )
    layers = [torch_layer(nn.TransformerEncoderLayer, place, activation) for _ in range(3)]
    for one, other in zip(ours.layers, layers, strict=True):
        copy_layer(one, other)
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[0, 6:], mask[2, 2:] = 0, 0
    seen = mask.bool()
    given = torch.randn(3, 9, 24, dtype=torch.float64, requires_grad=True)
    found = ours(inputs_embeds=given, attention_mask=mask).last_hidden_state[seen]
    expected = given
    causal = torch.ones(9, 9, dtype=torch.bool).triu(1) if is_causal else None
    for layer in layers:
        expected = layer(expected, src_mask=causal, src_key_padding_mask=mask == 0)
    if place == "pre":
        expected = nn.functional.layer_norm(expected, (24,), ours.norm.inner.weight, ours.norm.inner.bias)
    expected = expected[seen]
    assert_near(found, expected)
    direction = torch.randn_like(found)
    inner = ours.layers[0]
    mine = given, inner.mlp.up_proj.weight, inner.self_attn.o_proj.bias, inner.mlp_norm.inner.weight
    theirs = given, layers[0].linear1.weight, layers[0].self_attn.out_proj.bias, layers[0].norm2.weight
    one, other = (
        torch.autograd.grad((found * direction).sum(), mine), torch.autograd.grad((expected * direction).sum(), theirs),
    )  # fmt: skip
    assert_near(one, other)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_a_decoder_layer_with_context_is_torchs_with_the_same_weights(place):
    ours = VanillaModel(config(norm_position=place, num_hidden_layers=1, is_causal=True, **BARE), has_context=True)
    ours = ours.double().eval()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs = torch_layer(nn.TransformerDecoderLayer, place, "relu")
    copy_layer(ours.layers[0], theirs)
    target = torch.randn(3, 5, 24, dtype=torch.float64, requires_grad=True)
    source = torch.randn(3, 7, 24, dtype=torch.float64, requires_grad=True)
    target_mask, source_mask = torch.ones(3, 5, dtype=torch.int64), torch.ones(3, 7, dtype=torch.int64)
    target_mask[1, 3:], source_mask[0, 4:], source_mask[1, 6:] = 0, 0, 0
    found = ours(
        inputs_embeds=target, attention_mask=target_mask, encoder_hidden_states=source,
        encoder_attention_mask=source_mask,
    ).last_hidden_state  # fmt: skip
    expected = theirs(
        target, source, tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1), tgt_key_padding_mask=target_mask == 0,
        memory_key_padding_mask=source_mask == 0,
    )  # fmt: skip
    if place == "pre":
        expected = nn.functional.layer_norm(expected, (24,), ours.norm.inner.weight, ours.norm.inner.bias)
    seen = target_mask.bool()
    assert_near(found[seen], expected[seen])
    for given in (target, source):
        one, other = (torch.autograd.grad(out[seen].square().sum(), given, retain_graph=True)[0]
                      for out in (found, expected))  # fmt: skip
        assert_near(one, other)


@every_type
def test_with_everything_changed_it_is_this_projects_decoder(attention_type):
    """Pre-RMSNorm, SwiGLU, rotary positions, no biases: the block of LLaMA, softmax or differential."""
    ours = model_of(
        VanillaForCausalLM, attention_type=attention_type, is_causal=True, norm="rms_norm", norm_position="pre",
        activation="swiglu", mlp_bias=False, attention_bias=False, positions="rotary", scale_embeddings=False,
    )  # fmt: skip
    sizes = {key: value for key, value in SIZES.items() if key != "mlp_ratio"}
    theirs = antiphase.AntiphaseForCausalLM(
        antiphase.AntiphaseConfig(attention_type=attention_type, intermediate_size=36, rms_norm_eps=1e-5, **sizes)
    ).double().eval()  # fmt: skip
    words = {
        "self_attn_norm.inner": "input_layernorm", "mlp_norm.inner": "post_attention_layernorm",
        "model.norm.inner": "model.norm",
    }  # fmt: skip
    weights = {}
    for name, value in ours.state_dict().items():
        for mine, other in words.items():
            name = name.replace(mine, other)
        weights[name] = value
    theirs.load_state_dict(weights)
    ids, mask = ids_of(3, 11), torch.ones(3, 11, dtype=torch.int64)
    mask[0, 7:], mask[1, :4] = 0, 0
    seen = mask.bool()
    found, expected = ours(ids, attention_mask=mask).logits, theirs(ids, attention_mask=mask).logits
    assert_near(found[seen], expected[seen], 1e-5)  # rotary angles are fp32, and positions count from another token


# ------------------------------------------------------------------------------------------ what sees what


@every_type
@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_implementations_agree(is_causal, implementation, attention_type):
    ids, mask = ids_of(3, 9), torch.ones(3, 9, dtype=torch.int64)
    mask[0, 5:], mask[1, :4] = 0, 0
    model = model_of(is_causal=is_causal, attention_type=attention_type)
    expected = model(ids, attention_mask=mask).pooler_output
    model.set_attn_implementation(implementation)
    assert_near(model(ids, attention_mask=mask).pooler_output, expected)


def test_the_vector_of_a_text_is_the_mean_of_an_encoder_and_the_last_of_a_decoder():
    ids, mask = ids_of(2, 8), torch.ones(2, 8, dtype=torch.int64)
    mask[0, 5:], mask[1, :3] = 0, 0
    out = model_of()(ids, attention_mask=mask)
    assert_near(out.pooler_output[0], out.last_hidden_state[0, :5].mean(0))
    assert_near(out.pooler_output[1], out.last_hidden_state[1, 3:].mean(0))
    out = model_of(is_causal=True)(ids, attention_mask=mask)
    assert_near(out.pooler_output, torch.stack([out.last_hidden_state[0, 4], out.last_hidden_state[1, 7]]))
    for is_causal in (False, True):
        assert not model_of(is_causal=is_causal)(ids, attention_mask=torch.zeros_like(mask)).pooler_output.any()


# ------------------------------------------------------------------------------------------ positions


def test_sinusoids_are_the_papers():
    found = sinusoidal_positions(torch.arange(50), 128)
    assert found.shape == (50, 128)
    for position, pair in ((0, 0), (1, 0), (7, 5), (49, 63)):
        angle = position / 10000 ** (2 * pair / 128)
        assert found[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-12)
        assert found[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    odd = sinusoidal_positions(torch.arange(50), 7)
    assert odd.shape == (50, 7)
    assert odd[9, 6].item() == pytest.approx(math.sin(9 / 10000 ** (6 / 7)), abs=1e-12)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_without_positions_the_order_of_words_is_lost_and_only_then(positions):
    model = model_of(positions=positions)
    ids = ids_of(2, 7)
    one, other = model(ids).pooler_output, model(ids.flip(1)).pooler_output
    assert ((one - other).abs().max() < 1e-9) == (positions == "none")


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_text_longer_than_the_positions_is_refused_or_told(positions, is_causal, monkeypatch):
    """A table has no further positions; rotations and sinusoids go on."""
    warnings = []
    monkeypatch.setattr(lengths.logger, "warning_once", warnings.append)
    model = model_of(positions=positions, is_causal=is_causal)
    model(ids_of(1, 40))
    assert warnings == []
    if positions == "learned":
        with pytest.raises(ValueError, match=r"a text of 41 tokens is longer than .*max_position_embeddings \(40"):
            model(ids_of(1, 41))
    else:
        model(ids_of(1, 41))
        assert len(warnings) == 1
        warnings.clear()
    padding = torch.cat([torch.zeros(1, 9), torch.ones(1, 40)], dim=1).long()
    model(ids_of(1, 49), attention_mask=padding)  # padding takes no positions
    assert warnings == []


def test_embeddings_are_scaled_by_the_root_of_the_width():
    model, bare = model_of(**{**BARE, "scale_embeddings": True}), model_of(**BARE)
    bare.load_state_dict(model.state_dict())
    ids = ids_of(2, 5)
    assert_near(model(ids).last_hidden_state, bare(inputs_embeds=bare.embed_tokens(ids) * 24**0.5).last_hidden_state)


def test_one_hot_vectors_are_not_scaled():
    model = model_of(embeddings="one_hot", hidden_size=32, positions="none")
    seen = []
    model.layers[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    ids = ids_of(2, 5)
    model(ids)
    assert torch.equal(seen[0], nn.functional.one_hot(ids, 32).double())


# ------------------------------------------------------------------------------------------ norms


def test_batch_norm_is_torchs_over_the_real_tokens():
    norm, theirs = Norm(config(norm="batch_norm")).double(), nn.BatchNorm1d(24).double()
    rows = [torch.randn(length, 24, dtype=torch.float64) * 2 + 1 for length in (5, 1, 8)]
    for training in (True, True, False):
        norm.train(training)
        theirs.train(training)
        hidden, real = torch.full((3, 10, 24), 1e6, dtype=torch.float64), torch.zeros(3, 10, dtype=torch.bool)
        for index, row in enumerate(rows):
            hidden[index, index : index + len(row)], real[index, index : index + len(row)] = row, True
        assert_near(norm(hidden, real)[real], theirs(torch.cat(rows)))
        assert_near(norm.inner.running_mean, theirs.running_mean)
        assert_near(norm.inner.running_var, theirs.running_var)
        rows = [row + 0.5 for row in rows]


@pytest.mark.parametrize("place", ["pre", "post"])
def test_batch_norm_in_a_model_is_trained_by_real_tokens_alone(place):
    rows, states = [ids_of(length) for length in (6, 3)], []
    for width in (6, 11):
        torch.manual_seed(3)
        model = model_of(norm="batch_norm", norm_position=place).train()
        ids, mask = padded(rows, left=False, more=width - 6)
        out = model(ids, attention_mask=mask).pooler_output
        out.square().sum().backward()
        states.append((out, model.layers[2].mlp_norm.inner.running_var, model.layers[0].mlp.up_proj.weight.grad))
    assert_near(*states)
    everything = torch.ones(2, 1, 11, 11, dtype=torch.bool)
    with pytest.raises(ValueError, match="norm=batch_norm needs attention_mask as"):
        model(ids, attention_mask=everything)
    model.eval()  # no statistics are taken any more
    found = model(ids, attention_mask=everything, position_ids=torch.arange(11)[None]).last_hidden_state
    assert_near(found, model(ids).last_hidden_state)


@pytest.mark.parametrize(("norm", "kind"), [("layer_norm", nn.LayerNorm), ("rms_norm", nn.RMSNorm)])
def test_the_norms_are_torchs_with_the_epsilon_asked_for(norm, kind):
    hidden = torch.randn(2, 3, 24)
    assert torch.equal(Norm(config(norm=norm, norm_eps=0.3))(hidden, None), kind(24, eps=0.3)(hidden))


# ------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(("ratio", "width"), [(4.0, 96), (8 / 3, 64), (0.5, 12)])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("mlp_bias", [False, True])
@pytest.mark.parametrize("attention_bias", [False, True])
def test_parameters_are_those_the_configuration_asks_for(ratio, width, activation, mlp_bias, attention_bias):
    model = VanillaModel(
        config(mlp_ratio=ratio, activation=activation, mlp_bias=mlp_bias, attention_bias=attention_bias)
    )
    wide = 2 if activation == "swiglu" else 1
    mlp = (wide + 1) * 24 * width + mlp_bias * (wide * width + 24)
    attention = 4 * 24 * 24 + attention_bias * 4 * 24
    norms = 2 * 2 * 24
    assert model.num_parameters() == 31 * 24 + 3 * (mlp + attention + norms)


@pytest.mark.parametrize("embeddings", ["learned", "one_hot"])
def test_softmax_and_differential_encoders_differ_by_lambda_vectors_and_head_norms_only(embeddings):
    sizes = {"embeddings": embeddings, "hidden_size": 32}
    softmax, differential = (VanillaModel(config(attention_type=kind, **sizes)) for kind in ATTENTION_TYPES[:2])
    shared = {name: parameter.shape for name, parameter in softmax.named_parameters()}
    assert shared.items() <= {name: parameter.shape for name, parameter in differential.named_parameters()}.items()
    assert differential.num_parameters() - softmax.num_parameters() == 3 * (4 * 8 + 2 * 8)


# ------------------------------------------------------------------------------------------ caches


@every_type
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
def test_decoding_with_a_cache_equals_one_forward(norm, positions, attention_type):
    model = model_of(VanillaForCausalLM, is_causal=True, norm=norm, positions=positions, attention_type=attention_type)
    ids, mask = ids_of(3, 14), torch.ones(3, 14, dtype=torch.int64)
    mask[0, :6], mask[2, :1] = 0, 0
    expected = model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    found = logits_in_pieces(model, ids, mask, DynamicCache(config=model.config), (8, 3, 1, 2))
    assert_near(found[mask.bool()], expected)


@every_type
def test_generation_is_the_same_with_and_without_a_cache_and_padding(attention_type):
    model = model_of(VanillaForCausalLM, is_causal=True, attention_type=attention_type)
    rows = [ids_of(7), ids_of(3)]
    ids, mask = padded(rows, left=True)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    both = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(both, model.generate(ids, attention_mask=mask, use_cache=False, **options))
    for row, said in zip(rows, both, strict=True):
        alone = model.generate(row[None], attention_mask=torch.ones_like(row)[None], **options)
        assert torch.equal(said[-8:], alone[0, -8:])


@every_type
@pytest.mark.parametrize("is_padded", [False, True])
def test_generation_with_a_static_cache_is_that_with_a_growing_one(attention_type, is_padded):
    model = model_of(VanillaForCausalLM, attention_type=attention_type, is_causal=True)
    ids = ids_of(2, 7)
    mask = torch.ones_like(ids)
    if is_padded:
        mask[0, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(ids, **options, **static), model.generate(ids, **options))


@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
def test_unknown_arguments_and_another_direction_are_refused(implementation):
    model = model_of(VanillaForCausalLM, is_causal=True)
    model.set_attn_implementation(implementation)
    with pytest.raises(ValueError, match="does not support the arguments nosuch"):
        model(ids_of(1, 5), nosuch=1)
    with pytest.raises(ValueError, match="is_causal is a field of the configuration"):
        model(ids_of(1, 5), is_causal=False)


# ------------------------------------------------------------------------------------------ measurement


@every_type
def test_weights_and_hidden_states_are_recorded_on_request(attention_type):
    model = model_of(VanillaForMaskedLM, attention_type=attention_type, attn_implementation="eager")
    out = model(ids_of(2, 6), output_attentions=True, output_hidden_states=True)
    heads = 4 if attention_type == "softmax" else 2
    assert [tuple(weights.shape) for weights in out.attentions] == [(2, heads, 6, 6)] * 3
    assert [tuple(states.shape) for states in out.hidden_states] == [(2, 6, 24)] * 4
    if attention_type == "softmax":
        assert_near(out.attentions[2].sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
