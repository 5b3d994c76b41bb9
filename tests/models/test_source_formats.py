"""Other decoders become softmax models here, and V2, its control and DEX, with the same function."""

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from antiphase.base.errors import InputError
from antiphase.lab.training.run_model import attention_only
from antiphase.models.checkpoints import convert
from antiphase.models.conversion import convert_model, plan_conversion
from antiphase.models.source_formats import ARCHITECTURES
from support.models import assert_near, logits_in_pieces, padded, randomize

SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64,
}  # fmt: skip
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
ROPE = {"rope_type": "default", "rope_theta": 500.0}


def qwen2(heads=6, key_heads=3, **fields):
    return hf.Qwen2Config(**SIZES, num_attention_heads=heads, num_key_value_heads=key_heads, **fields)


def qwen3(heads=6, key_heads=3, **fields):
    sizes = {**SIZES, "head_dim": 10, "rms_norm_eps": 1e-4}
    return hf.Qwen3Config(**{**sizes, **fields}, num_attention_heads=heads, num_key_value_heads=key_heads)


def olmo2(heads=6, key_heads=3, **fields):
    return hf.Olmo2Config(**{**SIZES, **fields}, num_attention_heads=heads, num_key_value_heads=key_heads)


def exaone4(**fields):
    sizes = {**SIZES, "head_dim": 10, "sliding_window": None, "layer_types": ["full_attention"] * 3}
    return hf.Exaone4Config(**{**sizes, **fields}, num_attention_heads=6, num_key_value_heads=2)


def gemma(heads=4, key_heads=2, **fields):
    sizes = {**SIZES, "head_dim": 10}
    return hf.GemmaConfig(**{**sizes, **fields}, num_attention_heads=heads, num_key_value_heads=key_heads)


def gpt_neox(heads=3, share=0.25, **fields):
    rope = {**ROPE, "partial_rotary_factor": share}
    return hf.GPTNeoXConfig(**{**SIZES, "rope_parameters": rope, **fields}, num_attention_heads=heads)


def stablelm(**fields):
    return hf.StableLmConfig(**{**SIZES, **fields}, num_attention_heads=3, num_key_value_heads=1)


def starcoder2(**fields):
    return hf.Starcoder2Config(**{**SIZES, **fields}, num_attention_heads=6, num_key_value_heads=2)


CONFIGS = {
    "qwen2": qwen2(),
    "qwen2-odd-tied": qwen2(3, 1, tie_word_embeddings=True),
    "qwen2-windows": qwen2(**WINDOW),
    "qwen2-own-head-width": qwen2(5, 5, head_dim=8, rope_parameters={**ROPE, "rope_type": "linear", "factor": 2.0}),
    "qwen3": qwen3(),
    "qwen3-odd-tied": qwen3(5, 1, tie_word_embeddings=True),
    "qwen3-biases-windows": qwen3(4, 4, attention_bias=True, hidden_act="gelu", **WINDOW),
    "olmo2": olmo2(),
    "olmo2-one-key-biases": olmo2(4, 1, attention_bias=True, rms_norm_eps=1e-3),
    "exaone4": exaone4(),
    "gemma": gemma(),
    "gemma-odd-one-key": gemma(3, 1, rms_norm_eps=1e-4),
    "gemma-untied-biases": gemma(5, 5, tie_word_embeddings=False, attention_bias=True),
    "gpt_neox": gpt_neox(),
    "gpt_neox-whole-rotation": gpt_neox(6, 1.0),
    "gpt_neox-sequential-tied": gpt_neox(4, use_parallel_residual=False, tie_word_embeddings=True),
    "gpt_neox-sequential-whole-rotation": gpt_neox(3, 1.0, use_parallel_residual=False, layer_norm_eps=1e-3),
    "gpt_neox-no-attention-biases": gpt_neox(2, 0.5, attention_bias=False, hidden_act="relu"),
    "gpt_neox-odd-rotated-channels": gpt_neox(4, hidden_act="gelu_fast"),
    "stablelm": stablelm(),
    "stablelm-biases-whole-rotation": stablelm(use_qkv_bias=True, layer_norm_eps=1e-3, tie_word_embeddings=True,
                                               rope_parameters={**ROPE, "partial_rotary_factor": 1.0}),
    "starcoder2": starcoder2(),
    "starcoder2-window-untied": starcoder2(use_bias=False, sliding_window=4, tie_word_embeddings=False),
    "llama-biases": hf.LlamaConfig(**SIZES, num_attention_heads=6, num_key_value_heads=2, attention_bias=True,
                                   mlp_bias=True, hidden_act="gelu_new"),
    "mistral": hf.MistralConfig(**SIZES, num_attention_heads=6, num_key_value_heads=2, sliding_window=5),
}  # fmt: skip
BOUND = 1e-11


class InFull(TorchFunctionMode):
    """Lets models of transformers compute norms and losses in float64, which they round to float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        narrows = func in (torch.Tensor.float, torch.Tensor.to) and args[1:] in ((), (torch.float32,)) and not kwargs
        if narrows and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


def theirs_of(name, dtype=torch.float64):
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[name], dtype=dtype)
    return randomize(model, 0.2)


def rows(*lengths):
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(3, 61, (length,), generator=generator) for length in lengths]


def outcomes(model, ids, mask):
    """Logits at tokens that are not padding, and the gradients of the loss by name."""
    model.zero_grad()
    with InFull():
        out = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
        out.loss.backward()
    return out.logits[mask.bool()].detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_function_is_the_same_forward_and_backward(name):
    """In float64, with padding on either side; every parameter of the result has a gradient."""
    theirs = theirs_of(name)
    ours = convert_model(theirs)
    assert ours.config.model_type == "antiphase"
    embedding = "gpt_neox.embed_in.weight" if name.startswith("gpt_neox") else "model.embed_tokens.weight"
    for left in (True, False):
        ids, mask = padded(rows(11, 7), left=left)
        expected, slopes = outcomes(theirs, ids, mask)
        found, own = outcomes(ours, ids, mask)
        assert_near(found, expected, BOUND)
        assert_near(own["model.embed_tokens.weight"][3:], slopes[embedding][3:], BOUND)
        assert all(slope.isfinite().all() and slope.abs().max() > 0 for slope in own.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_tokens_are_generated(name):
    """Greedily, from a padded batch, with a cache that grows, one of fixed length, and none."""
    theirs = theirs_of(name)
    ours = convert_model(theirs)
    ids, mask = padded(rows(9, 5), left=True)
    settings = {"attention_mask": mask, "max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}
    with InFull():
        expected = theirs.generate(ids, **settings)
        assert len(set(expected[0, 9:].tolist())) > 1
        for way in ({}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
            assert torch.equal(ours.generate(ids, **settings, **way), expected), way


@pytest.mark.parametrize("form", [
    {"attention_type": "differential_v2"}, {"attention_type": "differential_v2", "control": True},
    {"attention_type": "dex"},
], ids=["differential_v2", "control", "dex"])  # fmt: skip
@pytest.mark.parametrize("name", CONFIGS)
def test_upcycled_models_begin_as_their_source(name, form):
    theirs = theirs_of(name)
    ours = convert_model(theirs, **form)
    ids, mask = padded(rows(11, 7), left=True)
    expected, slopes = outcomes(theirs, ids, mask)
    found, own = outcomes(ours, ids, mask)
    assert_near(found, expected, BOUND)
    (norm,) = (key for key in slopes if key.endswith((".norm.weight", "final_layer_norm.weight")))
    assert_near(own["model.norm.weight"], slopes[norm], BOUND)
    silent = {key for key, slope in own.items() if slope.abs().max() == 0}
    # DEX's matrix and λ are both zero: each waits for the other
    assert {key.rpartition(".")[2] for key in silent} <= ({"dex_weight", "dex_lambda"} if "dex" in str(form) else set())


@pytest.mark.parametrize("name", ["olmo2", "olmo2-one-key-biases"])
def test_a_norm_of_all_maps_is_doubled_with_them_in_v1(name):
    theirs = theirs_of(name)
    inputs = padded(rows(11, 7), left=True)
    found, _ = outcomes(convert_model(theirs, attention_type="differential"), *inputs)
    assert_near(found, outcomes(theirs, *inputs)[0], 1e-7)  # λ is in fp32


BLOCKS = {
    "qwen2": {"qkv_bias": True},
    "qwen3": {"use_qk_norm": True, "attention_bias": True},
    "olmo2": {"use_qk_norm": True, "whole_qk_norm": True, "norm_position": "after"},
    "gemma": {"norm_type": "zero_centered_rms_norm", "hidden_act": "gelu_pytorch_tanh", "embedding_multiplier": 3.0},
    "gpt_neox": {"norm_type": "layer_norm", "gated_mlp": False, "mlp_bias": True, "attention_bias": True,
                 "hidden_act": "gelu", "use_parallel_residual": True,
                 "rope_parameters": {**ROPE, "partial_rotary_factor": 0.4}},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "differential_v2_across"])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_kind_of_attention_decodes_in_these_blocks(tiny_model, block, kind):
    """By the kernels, with a cache; the reference reads the whole text."""
    model = tiny_model(kind, **BLOCKS[block])
    ids, mask = padded(rows(12, 8), left=True)
    with torch.no_grad():
        for cache in (hf.DynamicCache(config=model.config), hf.StaticCache(config=model.config, max_cache_len=16)):
            found = logits_in_pieces(model, ids, mask, cache, (5, 1, 1, 3, 1, 1))
            model.set_attn_implementation("eager")
            expected = model(ids, attention_mask=mask).logits
            model.set_attn_implementation("antiphase")
            real = mask.bool()
            torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_queries_and_keys_are_normalized_before_they_are_rotated(tiny_model, kind, whole):
    """So their size does not matter; under autocast as well."""
    model = tiny_model(kind, use_qk_norm=True, whole_qk_norm=whole, rms_norm_eps=0.0)
    ids = torch.randint(3, 61, (2, 9))
    with torch.no_grad():
        expected = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 7.0
            layer.self_attn.k_proj.weight *= 0.2
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(ids).logits
    assert (half - expected).abs().max() < 0.1 * expected.abs().max()


def test_the_norm_of_queries_and_keys_and_the_bias_of_the_output_are_kept_once():
    theirs = theirs_of("qwen3-biases-windows")
    ours = convert_model(theirs, attention_type="differential_v2")
    assert attention_only(convert_model(theirs)) == 0  # norms of queries and keys are not the attention's own
    old, new = theirs.model.layers[1].self_attn, ours.model.layers[1].self_attn
    assert torch.equal(new.q_norm.weight, old.q_norm.weight)
    assert torch.equal(new.o_proj.bias, old.o_proj.bias)
    assert torch.equal(new.q_proj.bias.view(4, 2, -1), old.q_proj.bias.view(4, 1, -1).expand(-1, 2, -1))
    assert ours.config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]


# ------------------------------------------------------------------------------------------ folders


def logits_of(folder, dtype=torch.float32):
    ids, mask = padded(rows(11, 7), left=False)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad(), InFull():
        return model(ids, attention_mask=mask).logits[mask.bool()]


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "olmo2", "gemma", "gpt_neox"])
def test_the_command_converts_folders_shard_by_shard(tmp_path, antiphase, name):
    theirs_of(name, torch.float32).save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    shards = len(list((tmp_path / "theirs").glob("*.safetensors")))
    assert shards > 2
    code, _, err = antiphase("convert", tmp_path / "theirs", tmp_path / "ours")
    assert code == 0, err
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    code, _, err = antiphase("convert", tmp_path / "theirs", tmp_path / "v2", "--attention-type differential_v2")
    assert code == 0, err
    expected = logits_of(tmp_path / "theirs")
    for folder in ("ours", "v2"):
        torch.testing.assert_close(logits_of(tmp_path / folder), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma", "gpt_neox"])
def test_weights_in_bf16_are_kept_as_they_are(tmp_path, name):
    """So the function stays the same to float64's last digits; Gemma's 1 + weight would not survive rounding."""
    theirs_of(name, torch.bfloat16).save_pretrained(tmp_path / "theirs")
    for form in ({}, {"attention_type": "differential_v2"}):
        target = tmp_path / f"ours{len(form)}"
        config = convert(str(tmp_path / "theirs"), target, **form)
        stored = {tensor.dtype for path in target.glob("*.safetensors") for tensor in load_file(path).values()}
        assert stored == {torch.bfloat16}
        if name == "gemma":  # √48, in the dtype in which the folder loads
            assert config.embedding_multiplier == torch.tensor(48**0.5, dtype=torch.bfloat16).item() != 48**0.5
            content = json.loads((target / "config.json").read_text())
            (target / "config.json").write_text(json.dumps(content | {"embedding_multiplier": 48**0.5}))
        assert_near(logits_of(target, torch.float64), logits_of(tmp_path / "theirs", torch.float64), BOUND)


def test_gemma_in_half_precision_rounds_where_transformers_does(tmp_path):
    theirs_of("gemma", torch.bfloat16).save_pretrained(tmp_path / "theirs")
    config = convert(str(tmp_path / "theirs"), tmp_path / "ours")
    path = tmp_path / "theirs" / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in content.items() if name != "dtype"}))
    of_weights = convert(str(tmp_path / "theirs"), tmp_path / "again").embedding_multiplier
    assert of_weights == config.embedding_multiplier == 6.9375
    true = logits_of(tmp_path / "ours", torch.float64)
    own, other = ((logits_of(tmp_path / name, torch.bfloat16) - true).norm() for name in ("ours", "theirs"))
    assert own < 2 * other
    assert other < 0.05 * true.norm()
    convert(str(tmp_path / "theirs"), tmp_path / "wide", dtype="float32")
    torch.testing.assert_close(logits_of(tmp_path / "wide"), logits_of(tmp_path / "theirs"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_older_files_of_gpt_neox_are_read(tmp_path, tied):
    """The head was called embed_out, and masks were stored that no model reads any more."""
    model = theirs_of("gpt_neox-sequential-tied" if tied else "gpt_neox", torch.float32)
    model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    tensors["embed_out.weight"] = tensors.pop("lm_head.weight", None)
    if tensors["embed_out.weight"] is None:
        tensors["embed_out.weight"] = model.gpt_neox.embed_in.weight.detach().clone()
    tensors["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 64, 64).tril().bool()
    tensors["gpt_neox.layers.1.attention.bias"] = torch.ones(1, 1, 64, 64).tril().to(torch.uint8)
    tensors["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    tensors["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(tensors, path, metadata={"format": "pt"})
    convert(str(tmp_path / "theirs"), tmp_path / "ours")
    torch.testing.assert_close(logits_of(tmp_path / "ours"), logits_of(tmp_path / "theirs"), rtol=1e-4, atol=1e-4)
    save_file({**tensors, "lm_head.weight": tensors["embed_out.weight"] + 1}, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"has both embed_out\.weight and lm_head\.weight"):
        convert(str(tmp_path / "theirs"), tmp_path / "both")
    tensors["embed_out.weight"][3, 4] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    if tied:
        with pytest.raises(InputError, match=r"lm_head\.weight differs from gpt_neox\.embed_in\.weight"):
            convert(str(tmp_path / "theirs"), tmp_path / "other")


@pytest.mark.parametrize(("name", "tensor", "change", "pattern"), [
    ("qwen2", "model.layers.1.self_attn.k_proj.bias", None, "no weights for model.layers.1.self_attn.k_proj.bias"),
    ("qwen3", "model.layers.2.self_attn.q_norm.weight", torch.ones(9), r"q_norm.weight has the shape \(9,\)"),
    ("olmo2", "model.layers.1.self_attn.k_norm.weight", torch.ones(8), r"k_norm.weight has the shape \(8,\)"),
    ("olmo2", "model.layers.1.post_feedforward_layernorm.weight", None, "no weights for .*post_feedforward_layernorm"),
    ("gemma", "model.layers.0.mlp.up_proj.bias", torch.ones(40), "no place for model.layers.0.mlp.up_proj.bias"),
    ("gpt_neox", "gpt_neox.layers.1.attention.query_key_value.weight", torch.ones(143, 48),
     r"query_key_value.weight has the shape \(143, 48\), expected \(144, 48\)"),
    ("gpt_neox", "gpt_neox.final_layer_norm.bias", None, "no weights for gpt_neox.final_layer_norm.bias"),
])  # fmt: skip
def test_harmed_checkpoints_are_refused_by_the_tensors_name(tmp_path, refused, name, tensor, change, pattern):
    theirs_of(name, torch.float32).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(tensor, None)
    save_file(tensors | ({} if change is None else {tensor: change}), path, metadata={"format": "pt"})
    refused(pattern, "convert", tmp_path / "theirs", tmp_path / "ours")


# ------------------------------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(("config", "options", "pattern"), [
    (qwen2(hidden_act="mish"), {}, "hidden_act='mish' .* only 'silu', 'relu'"),
    (qwen2(attention_dropout=0.1), {}, "attention_dropout=0.1"),
    (qwen2(layer_types=["full_attention", "chunked_attention", "full_attention"]), {}, "layer_types must name"),
    (gemma(use_bidirectional_attention=True), {}, "use_bidirectional_attention=True"),
    (hf.LlamaConfig(hidden_size=16, num_attention_heads=2, is_causal=False), {}, "is_causal=False"),
    (gemma(hidden_act="quick_gelu"), {}, "hidden_act='quick_gelu'"),
    (gpt_neox(attention_dropout=0.1), {}, "attention_dropout=0.1"),
    (gpt_neox(hidden_dropout=0.1), {}, r"hidden_dropout=0.1 .* only 0\.0 can be converted"),
    (exaone4(sliding_window=8), {}, "sliding_window=8 .* only None can be converted"),
    (qwen2(rope_parameters={**ROPE, "partial_rotary_factor": 0.5}), {}, "partial_rotary_factor is 0.5, but .* a qwen2"),
    (gpt_neox(16), {}, "head_dim must be even for rotary positions, got 3"),
    (hf.Gemma2Config(), {}, "model of type 'gemma2'; antiphase, llama, .*gemma, gpt_neox, .* can be converted"),
    (hf.Gemma3TextConfig(), {}, "model of type 'gemma3_text'"),
    (hf.Qwen3MoeConfig(), {}, "model of type 'qwen3_moe'"),
    (qwen2(), {"to": "llama"}, "to llama: source has qkv_bias=True, which llama cannot express"),
    (qwen3(6, 3, head_dim=8), {"to": "llama"}, "to llama: source has use_qk_norm=True"),
    (olmo2(), {"to": "llama"}, "to llama: source has use_qk_norm=True"),
    (gemma(head_dim=12), {"to": "llama"}, "to llama: source has norm_type='zero_centered_rms_norm'"),
    (gpt_neox(), {"to": "llama"}, "to llama: source has gated_mlp=False"),
    (qwen2(), {"to": "diffllama"}, "to diffllama takes differential V1"),
])  # fmt: skip
def test_what_would_change_the_function_is_refused_by_name(config, options, pattern):
    with pytest.raises(InputError, match=pattern) as refusal:
        plan_conversion(config, **options)
    assert len(str(refusal.value)) < 300


def test_fields_that_a_target_lacks_are_refused(tiny_config):
    share = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    with pytest.raises(InputError, match=r"to llama: source has partial_rotary_factor=0\.5"):
        plan_conversion(tiny_config("softmax", rope_parameters=share), to="llama")
    with pytest.raises(InputError, match="to llama: source has norm_position='after'"):
        plan_conversion(tiny_config("softmax", norm_position="after"), to="llama")
    with pytest.raises(InputError, match="to diffllama: source has mlp_bias=True"):
        plan_conversion(tiny_config(head_norm_eps=1e-6, mlp_bias=True), to="diffllama")


def test_the_table_names_what_configurations_have():
    """A field that a version of transformers no longer has would be taken for its default."""
    for kind, differences in ARCHITECTURES.items():
        if not differences.in_transformers:  # whose configurations are made here
            continue
        theirs = vars(hf.AutoConfig.for_model(kind))
        named = [*differences.also, *filter(None, differences.renamed.values()), *differences.only, "hidden_act"]
        assert {*named} - {"head_dim"} <= theirs.keys(), kind
