"""Statistics of models that change their scores: equal to the maps that their own eager attention returns, in fp64."""

import copy

import pytest
import torch
import transformers as hf

from antiphase.attention import own_maps
from antiphase.attention.maps import attention_maps
from antiphase.attention.rows import attention_rows
from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import InputError
from support.models import randomize
from zoo.architectures import config_of

N = 21
TEXT = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 7}
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 24, "decoder_attention_heads": 4, "decoder_ffn_dim": 24, "max_position_embeddings": 64,
}  # fmt: skip
WHISPER = {
    **{name: size for name, size in BART.items() if name != "max_position_embeddings"}, "num_mel_bins": 8,
    "max_source_positions": N, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
BLOOM = {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}
MEASURED = {
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GEMMA, attn_logit_softcapping=0.5)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GEMMA)),
    "t5's encoder": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)).get_encoder(),
    "t5's decoder": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)).get_decoder(),
    "t5 as an encoder": lambda: hf.T5EncoderModel(hf.T5Config(**T5)),
    "umt5 as an encoder": lambda: hf.UMT5EncoderModel(hf.UMT5Config(**T5)),
    "bart's encoder": lambda: hf.BartModel(hf.BartConfig(**BART)).get_encoder(),
    "bart's decoder": lambda: hf.BartModel(hf.BartConfig(**BART)).get_decoder(),
    "whisper's encoder": lambda: hf.WhisperModel(hf.WhisperConfig(**WHISPER)).get_encoder(),
    "vit without a pooler": lambda: hf.ViTModel(hf.ViTConfig(**IMAGE), add_pooling_layer=False),
    "vit as a classifier": lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGE)),
    "beit": lambda: hf.BeitModel(hf.BeitConfig(**IMAGE, use_relative_position_bias=True)),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**IMAGE)),
    "clip's text model": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**TEXT)),
    "clip's vision model": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**IMAGE)),
}
REFUSED = {
    "falcon": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True)
    ),
    "mpt": lambda: hf.MptForCausalLM(
        hf.MptConfig(vocab_size=61, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
    ),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**BLOOM)),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["local"], 2]])
    ),
    "deberta-v2": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**TEXT)),
    "mamba": lambda: hf.MambaModel(hf.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2)),
    "swin": lambda: hf.SwinModel(
        hf.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    ),
    "clip": lambda: hf.CLIPModel(hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "whisper": lambda: hf.WhisperModel(hf.WhisperConfig(**WHISPER)),
}  # fmt: skip


def built(make, dtype=torch.float64):
    """With biases of positions as large as scores; a text that needs no padding token."""
    torch.manual_seed(3)
    return randomize(make().to(dtype), relative=1.0)


def inputs_of(name):
    generator = torch.Generator().manual_seed(1)
    if "whisper" in name:
        return {"input_features": torch.randn(2, 8, 2 * N, generator=generator, dtype=torch.float64)}
    if any(word in name for word in ("vit", "beit", "dino", "vision", "swin")):
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64)}
    ids = {"input_ids": torch.randint(3, 61, (2, N), generator=generator)}
    if name == "clip":
        ids |= inputs_of("vision")
    if "decoder" in name:  # as long as the decoder's own text, so that lengths cannot tell them apart
        ids["encoder_hidden_states"] = torch.randn(2, N, 32, generator=generator, dtype=torch.float64)
    return ids


@torch.no_grad()
def eager(model, **inputs):
    """(layers, B, heads, N, N), of the model's own eager attention."""
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    return torch.stack(other(**inputs, output_attentions=True).attentions)


@pytest.mark.parametrize("name", MEASURED)
def test_statistics_are_those_of_the_maps_that_the_model_returns(name):
    model, inputs = built(MEASURED[name]), inputs_of(name)
    maps = eager(model, **inputs)
    found = attention_statistics(model, alpha=2.0, **inputs)
    queries = (maps > 0).any(2).sum(-2)  # in any head: a small weight may be rounded to 0
    received = maps.sum(-2) / queries.unsqueeze(2)
    first = maps[..., 0].mean(-1)
    keys = (maps > 0).any(2)[:, :, -1].sum(-1)[..., None, None]
    bound = 1e-12 if maps.dtype == torch.float64 and "5" in name else 1e-6  # the others' eager softmax is fp32
    torch.testing.assert_close(found.received, received, rtol=bound, atol=bound)
    torch.testing.assert_close(found.first_share, first, rtol=bound, atol=bound)
    torch.testing.assert_close(found.entropy, torch.special.entr(maps).sum(-1).mean(-1), rtol=bound, atol=bound)
    marked = received > 2.0 / keys
    marked[..., 0] = False
    assert torch.equal(found.sinks, marked)
    assert marked.any()
    torch.testing.assert_close(found.sink_share, (maps.mean(-2) * marked).sum(-1), rtol=bound, atol=bound)
    assert found.layers == [0, 1]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gemma2", "t5's encoder", "t5's decoder"])
def test_padding_is_neither_query_nor_key(name, side):
    dtype = torch.float32 if name == "gemma2" else torch.float64  # in fp64 its fp32 softmax turns padding into NaN
    inputs = {key: given.to(dtype) if given.is_floating_point() else given for key, given in inputs_of(name).items()}
    model = built(MEASURED[name], dtype)
    mask = torch.ones(2, N, dtype=torch.int64)
    mask[1, slice(0, 6) if side == "left" else slice(-6, None)] = 0
    real = mask.bool()
    counted = eager(model, **inputs, attention_mask=mask).where(real[None, :, None, :, None], 0.0)
    found = attention_statistics(model, **inputs, attention_mask=mask)
    count = real.sum(1)[None, :, None]
    torch.testing.assert_close(
        found.entropy, torch.special.entr(counted).sum((-1, -2)) / count, rtol=1e-6, atol=1e-6
    )  # fmt: skip
    seen = found.received.isnan().logical_not()
    assert torch.equal(seen.all(2).all(0), real)
    queries = ((counted > 0).any(2).sum(-2)).unsqueeze(2)
    torch.testing.assert_close(found.received[seen], (counted.sum(-2) / queries)[seen], rtol=1e-6, atol=1e-6)


def test_logits_are_those_before_the_cap():
    model, inputs = built(MEASURED["gemma2"]), inputs_of("gemma2")
    plain = built(lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GEMMA, attn_logit_softcapping=None)))
    found, expected = (attention_statistics(one, **inputs).top_logits[0] for one in (model, plain))
    torch.testing.assert_close(found, expected)
    assert found.max() > 0.5


def test_sink_logits_take_weight_from_every_key():
    sizes = {**GEMMA, "num_local_experts": 2, "num_experts_per_tok": 1}
    model, inputs = built(lambda: hf.GptOssForCausalLM(hf.GptOssConfig(**sizes)), torch.float32), inputs_of("gpt_oss")
    maps = eager(model, **inputs)
    found = attention_statistics(model, spans={"all": torch.ones(2, N, dtype=torch.bool)}, **inputs)
    torch.testing.assert_close(found.span_share["all"], maps.sum(-1).mean(-1))
    assert found.span_share["all"].mean() < 0.95


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused_by_its_type(name):
    inputs = inputs_of(name)
    if name in ("t5", "whisper"):
        inputs["decoder_input_ids"] = inputs_of("t5")["input_ids"]
    with pytest.raises((InputError, ValueError), match=rf"\btype {name}\b"):
        attention_statistics(built(REFUSED[name]), **inputs)


def test_windows_of_an_image_are_not_taken_for_images():
    config = hf.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[2], window_size=4)
    with pytest.raises(ValueError, match="SwinAttention of models of type swin attends within windows"):
        attention_statistics(built(lambda: hf.SwinModel(config)), **inputs_of("swin"))


def test_maps_that_do_not_lead_to_the_output_are_refused(monkeypatch):
    model = built(MEASURED["t5's encoder"])
    own = own_maps._eager_of

    def forgetting(module):
        return lambda *args, position_bias, **kwargs: own(module)(*args, **kwargs)

    monkeypatch.setattr(own_maps, "_eager_of", forgetting)
    with pytest.raises(ValueError, match="T5Attention shows in eager attention are not those that make its output"):
        attention_statistics(model, **inputs_of("t5"))


def test_keys_that_a_layer_chooses_for_eager_attention_only_are_not_forgotten():
    model = built(lambda: hf.AutoModelForCausalLM.from_config(config_of("causal", "deepseek_v32")), torch.float32)
    said = (
        "models of type deepseek_v32 does not support the arguments indices of DeepseekV32Attention; antiphase evaluate"
    )
    with pytest.raises(ValueError, match=said):
        attention_statistics(model, **inputs_of("deepseek_v32"))


def test_a_model_in_training_drops_no_weights_where_it_is_measured():
    model, inputs = built(MEASURED["t5's encoder"]), inputs_of("t5")
    assert model.config.dropout_rate > 0
    alone = inputs["input_ids"][:1]

    def measured():
        row, whole = attention_rows(model, alone, torch.tensor([[3]]))[1], attention_maps(model, alone)[1]
        return attention_statistics(model, **inputs).received, row.weights(), whole.weights()

    expected = measured()
    model.train()
    torch.testing.assert_close(measured(), expected, rtol=0, atol=0)
    assert model.training
