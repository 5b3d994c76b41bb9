"""Whole maps equal the weights that each model's own eager attention returns, which are read another way."""

import pytest
import torch
import transformers as hf
from transformers.models.gpt_oss import modeling_gpt_oss

import antiphase
from antiphase.attention.calls import SOFTMAX, AttentionCall
from antiphase.attention.maps import attention_maps, layer_maps, visible_pairs
from antiphase.base.errors import InputError
from support.models import small_llama
from zoo.architectures import built, texts

BASE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3}
SIZES = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
BART = {
    "vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 24, "decoder_attention_heads": 4, "decoder_ffn_dim": 24, "max_position_embeddings": 64,
}  # fmt: skip
N = 13

FOREIGN = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=4)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**SIZES, head_dim=8, sliding_window=5, attn_logit_softcapping=0.3)
    ),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**SIZES, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1)
    ),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64)),
    "bert": lambda: hf.BertModel(hf.BertConfig(**BASE, num_attention_heads=4)),
    "modernbert": lambda: hf.ModernBertModel(
        hf.ModernBertConfig(
            **BASE, num_attention_heads=4, local_attention=6, global_attn_every_n_layers=2, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        )
    ),
}  # fmt: skip
CAUSAL = {"llama", "mistral", "gemma2", "gpt_oss", "gpt2"}


@pytest.fixture
def ids():
    return torch.randint(3, 61, (1, N), generator=torch.Generator().manual_seed(2))


def enlarged(model):
    """Weights so large that maps are far from uniform."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name or "c_attn.weight" in name or "Wqkv" in name:
                parameter *= 15
            if "query.weight" in name or "key.weight" in name:
                parameter *= 15
            if "sinks" in name:
                parameter.fill_(1.0)
    return model.eval()


@pytest.mark.parametrize("name", FOREIGN)
def test_maps_are_the_weights_of_the_models_own_eager_attention(name, ids):
    model = enlarged(FOREIGN[name]())
    before = model.config._attn_implementation
    found = attention_maps(model, ids)
    assert model.config._attn_implementation == before
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
    assert [one.layer for one in found] == [0, 1, 2]
    for one, whole in zip(found, expected, strict=True):
        assert one.lam is None
        assert one.maps.shape == (4, 1, N, N)
        torch.testing.assert_close(one.weights(), whole[0], rtol=1e-5, atol=1e-6)
        assert bool((one.maps[:, :, one.visible] > 0).all()), "what the mask shows has weight"
        assert not one.maps[:, :, ~one.visible].any()
        assert bool(one.visible.tril().equal(one.visible)) == (name in CAUSAL)
    spread = torch.stack([one.maps.amax(-1) for one in found])[..., -1]
    assert spread.max() > 0.15, "a test of uniform maps would show little"


def test_windows_are_in_the_masks_of_their_layers(ids):
    layers = attention_maps(FOREIGN["gemma2"](), ids)
    distance = torch.arange(N)[:, None] - torch.arange(N)
    near = (distance >= 0) & (distance < 5)
    assert [bool(one.visible.equal(near)) for one in layers] == [True, False, True]
    assert layers[1].visible.equal(distance >= 0)


def test_soft_caps_and_sinks_without_a_key_are_in_the_weights(ids):
    capped = attention_maps(enlarged(FOREIGN["gemma2"]()), ids)
    for one in capped:  # scores lie between -0.3 and 0.3
        seen = one.visible.sum(-1, keepdim=True)
        assert bool((one.maps.amax(-1, keepdim=True) <= torch.exp(torch.tensor(0.6)) / seen + 1e-6).all())
    sums = torch.stack([one.maps.sum(-1) for one in attention_maps(enlarged(FOREIGN["gpt_oss"]()), ids)])
    assert bool((sums < 1 + 1e-6).all())
    assert sums.mean() < 0.9


def test_weights_without_the_sink_that_they_were_multiplied_with_are_refused(ids, monkeypatch):
    """As Granite's, which scales the output instead."""
    own = modeling_gpt_oss.eager_attention_forward

    def scaling_afterwards(*args, **kwargs):
        output, weights = own(*args, **kwargs)
        return output, weights / weights.sum(-1, keepdim=True)

    monkeypatch.setattr(modeling_gpt_oss, "eager_attention_forward", scaling_afterwards)
    with pytest.raises(ValueError, match="GptOssAttention leaves its sink logits out of the weights it shows"):
        attention_maps(enlarged(FOREIGN["gpt_oss"]()), ids)


@pytest.mark.parametrize("says_so", [True, False])
def test_parts_of_an_encoder_and_decoder_are_distinguished(ids, says_so):
    model = hf.BartModel(hf.BartConfig(**BART)).eval()
    for layer in model.decoder.layers:
        layer.self_attn.is_causal = says_so  # NLLB's are not, and are given a mask that hides what comes after
    found = attention_maps(model, ids, ids[:, :7])
    assert [one.part for one in found] == ["encoder"] * 2 + ["decoder", "cross"] * 2
    assert [tuple(one.visible.shape) for one in found] == [(N, N)] * 2 + [(7, 7), (7, N)] * 2


def test_the_decoders_text_is_needed_by_pairs_alone(ids):
    pair = hf.BartModel(hf.BartConfig(**BART))  # makes up a decoder's input if none is given
    with pytest.raises(ValueError, match="BartModel is an encoder–decoder, so decoder_input_ids must be given"):
        attention_maps(pair, ids)
    with pytest.raises(
        ValueError, match="LlamaForCausalLM is no encoder–decoder, so decoder_input_ids must be left out"
    ):
        attention_maps(FOREIGN["llama"](), ids, ids)
    assert [one.part for one in attention_maps(pair.encoder, ids)] == [None] * 2


def test_an_encoder_without_the_interface_is_not_left_out(ids):
    """The decoder of LongT5 uses the interface, its encoder of local attention does not."""
    small = hf.LongT5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=24, num_layers=2, num_heads=4, local_radius=3)
    with pytest.raises(ValueError, match="the encoder of LongT5Model does not use transformers' attention interface"):
        attention_maps(hf.LongT5Model(small), ids, ids)


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
def test_models_of_this_package_show_both_maps(tiny_model, kind, implementation, ids):
    fields = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    eager = tiny_model(kind, attn_implementation="eager", **fields).double()
    expected = eager(ids, output_attentions=True).attentions
    found = attention_maps(tiny_model(kind, attn_implementation=implementation, **fields).double(), ids)
    heads, maps = (8, 1) if kind == "softmax" else (4, 2)
    for one, whole in zip(found, expected, strict=True):
        assert one.maps.shape == (heads, maps, N, N)
        torch.testing.assert_close(one.weights(), whole[0].detach().float(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.maps.sum(-1), torch.ones(heads, maps, N))
        assert (one.lam is None) == (kind == "softmax")
        if one.lam is not None:
            assert one.lam.shape == (heads, N)
            assert bool((one.lam == one.lam[:, :1]).all()) == (kind == "differential"), "in V2 λ is a token's own"
    assert [int(one.visible[-1].sum()) for one in found] == [N, 5, N]


def test_a_decoder_that_attends_to_both_texts_at_once_is_refused():
    """Its keys are the source's tokens behind the target's own."""
    model = built("encoder-decoder", "t5gemma2", "eager", torch.float32)
    with pytest.raises(ValueError, match=r"^T5Gemma2MergedAttention attends to 48 keys with 24 queries"):
        attention_maps(model, texts(1), texts(1))


def test_the_model_is_unchanged_after_an_error(ids):
    model = FOREIGN["llama"]()
    with pytest.raises(IndexError):
        attention_maps(model, ids + 1000)
    assert model.config._attn_implementation == "sdpa"


def test_one_text_at_a_time(ids):
    with pytest.raises(ValueError, match=r"one text, \(1, N\), got shape \(2, 13\)"):
        attention_maps(FOREIGN["llama"](), ids.expand(2, -1))


@pytest.mark.parametrize(("causal", "expected"), [(True, [1, 2, 2, 2, 2]), (False, [2, 3, 3, 3, 2])])
def test_without_a_mask_by_query_the_function_applies_the_window(causal, expected):
    """As flash attention does: a window ends behind the query where attention is causal, and else reaches as far on."""
    layer = torch.nn.Linear(1, 1)
    layer.is_causal = causal
    tensor = torch.zeros(1, 1, 5, 1)
    call = AttentionCall(
        layer, 0, SOFTMAX, tensor, tensor, tensor, None, {"sliding_window": 2}, own=lambda: (tensor, None)
    )
    assert visible_pairs(call).sum(-1).tolist() == expected


@pytest.mark.parametrize("kind", [antiphase.DifferentialAttention, antiphase.DifferentialAttentionV2])
def test_a_layer_in_a_model_of_ones_own_shows_its_two_maps(kind):
    torch.manual_seed(0)
    layer, x = kind(32, 8, layer_idx=0), torch.randn(1, 6, 32)
    found = layer_maps(layer, x)
    assert found.maps.shape == (4, 2, 6, 6)
    torch.testing.assert_close(found.maps.sum(-1), torch.ones(4, 2, 6))
    torch.testing.assert_close(found.weights(), layer(x, return_weights=True)[1][0])
    with pytest.raises(ValueError, match="needs an attention layer of antiphase, got Linear"):
        layer_maps(torch.nn.Linear(2, 2), x)


def test_a_model_that_is_none_of_transformers_is_told_what_shows_its_maps(text_tokenizer):
    with pytest.raises(InputError, match="a tokenizer of transformers is needed, got NoneType"):
        antiphase.look(small_llama(text_tokenizer), None, "a")
    with pytest.raises(InputError, match="LlamaForCausalLM is on the meta device, without weights"):
        antiphase.look(small_llama(text_tokenizer).to("meta"), text_tokenizer, "a")
    with pytest.raises(InputError, match=r"a model of transformers is needed, got Linear; .*layer_maps"):
        antiphase.look(torch.nn.Linear(2, 2), text_tokenizer, "a text")


def test_a_model_with_adapters_is_looked_at(text_tokenizer):
    import peft

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(text_tokenizer), **sizes))
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    maps = antiphase.look(adapted, text_tokenizer, "a text of words")
    torch.testing.assert_close(maps[1], antiphase.look(model, text_tokenizer, "a text of words")[1])
