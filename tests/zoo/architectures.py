"""Every architecture of the installed transformers, made small by a rule over the fields of its configuration."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import transformers as hf
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WORDS = 97
"""Size of every vocabulary. Texts use tokens of ``TEXT``; special tokens are put above them."""
TEXT = (20, 60)
LENGTH = 24
MOST_LAYERS = 9

SIZES = [
    (re.compile(pattern), size)
    for pattern, size in (
        (r"vocab", WORDS),
        (r"head_?dim|d_kv|kv_channels|head_size|d_head|dim_per_head|size_per_head", 8),
        (r"rotary_dim", 4),
        (r"n_group|topk_group|num_selected", 2),
        (r"query_groups|query_group_num|(n|num)_kv|kv_n", 2),
        (r"(^|_)heads?($|_)", 4),
        (r"layers_per|interval|period|offset|bucket|distance", 1 << 30),
        (r"first_k_dense|num_dense_layers", 1),
        (r"rank$|lora", 8),
        (r"experts_per_tok|top_?k|(^|_)k$", 2),
        (r"experts", 4),
        (r"window|local_attention", 6),
        (r"chunk", 8),
        (r"filters", 2),
        (r"position|n_ctx|seq_len|max_length|max_target|max_source", 128),
        (r"state|ssm", 8),
        (r"intermediate|ffn|d_ff|n_inner|mlp|feed_forward", 24),
        (r"hidden_size|d_model|n_embd|embed|(^|_)dim$|width|hidden_dim", 32),
    )
]
"""The largest value of a field by what its name says; the first that fits counts."""
OTHER = 16
"""The largest value of any other number."""
LAYERS = re.compile(r"(^|_)layers?$|^depth$|n_blocks|num_blocks|cycles$")
HEADS = re.compile(r"attention_heads|n_heads?$|num_heads")
SPECIAL = re.compile(r"token_(id|index)$")


@dataclass(frozen=True)
class Family:
    """Architectures that one Auto class builds."""

    auto: type
    names: dict[str, str]
    """Classes of models by model type."""


FAMILIES = {
    "causal": Family(hf.AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    "encoder": Family(
        hf.AutoModelForMaskedLM,
        {
            name: found
            for name, found in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.items()
            if name not in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        },
    ),
    "encoder-decoder": Family(hf.AutoModelForSeq2SeqLM, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
}
MORE = {
    "BambaConfig": {"attn_layer_indices": [1]},
    "CohereCompassTextConfig": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4,
                                                                     "mrope_section": [2, 1, 1]}}},
    "Nemotron3DiarizationConfig": {"chunk_length": 16, "chunk_right_context": 2},
    "DbrxAttentionConfig": {"rope_theta": 1e4, "clip_qkv": 8.0},
    "DeepseekV2Config": {"num_experts_per_tok": 2, "num_key_value_heads": 4},
    "Dots1Config": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "Dots3NoteAudioConfig": {"adapter_input_size": 32, "adapter_output_size": 32},
    "Dots3NoteTextConfig": {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 8,
                            "swa_kv_lora_rank": 8, "swa_head_dim": 12, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8},
    "Dots3NoteVisionConfig": {"adapter_in_dim": 32, "adapter_out_dim": 32, "per_layer_config": {},
                              "mlp_layer_types": ["dense", "dense"]},
    "EsmConfig": {"vocab_size": WORDS, "pad_token_id": 1, "mask_token_id": 2},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]]},
    "Gemma3nTextConfig": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "intermediate_size": 24,
                          "layer_types": ["sliding_attention", "full_attention"] * 2,
                          "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"]},
    "HunYuanDenseV1Config": {"head_dim": 8},
    "HunYuanMoEV1Config": {"head_dim": 8},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "Mamba2Config": {"num_heads": 8},
    "MiniMaxM3VLTextConfig": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_block_size": 4},
    "MinistralConfig": {"head_dim": 8},
    "NemotronConfig": {"head_dim": 8, "num_key_value_heads": 2},
    "NeoMMEConfig": {"head_dim": 16},
    "NystromformerConfig": {"num_landmarks": 4, "segment_means_seq_len": 24, "conv_kernel_size": 3},
    "Qwen4ExpTextConfig": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16,
                           "indexer_compress_ratio": 4},
    "ReformerConfig": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16], "attn_layers": ["local", "lsh"],
                       "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "hash_seed": 7},
    "VibeVoiceAsrConfig": {"acoustic_tokenizer_chunk_size": 3200},
    "xLSTMConfig": {"hidden_size": 128},
    "XmodConfig": {"default_language": "en_XX"},
    "Zamba2Config": {"n_mamba_heads": 8, "mamba_headdim": 8, "num_hidden_layers": 4, "hybrid_layer_ids": [1, 3],
                     "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "ZambaConfig": {"n_mamba_heads": 2, "num_hidden_layers": 4,
                    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
}  # fmt: skip
"""Fields that a configuration needs besides, by its class: what its defaults leave out, or sizes that depend on each
other.
"""


def small(config_class, taken: Iterator[int] | None = None, **more):
    """A configuration with every size reduced, at any depth.

    Lists with an entry per layer are cut to as many layers as show every kind of layer.
    """
    taken = iter(range(WORDS - 1, TEXT[1], -1)) if taken is None else taken
    parts = {**getattr(config_class, "sub_configs_defaults", {}), **(config_class.sub_configs or {})}
    defaults = {field.name: _default(field) for field in dataclasses.fields(config_class) if field.init}
    whole = defaults.get("num_hidden_layers") or defaults.get("num_layers") or 0
    heads = next((value for name, value in defaults.items() if HEADS.search(name)), 0)
    layers, fields = _depth(config_class), {}
    for name, value in defaults.items():
        if name in parts or isinstance(value, bool):
            continue
        if isinstance(value, (list, tuple)) and whole > 2 and len(value) == whole:
            fields[name] = list(value[:layers])
        elif not isinstance(value, int):
            continue
        elif SPECIAL.search(name):
            if value >= TEXT[0]:
                fields[name] = next(taken)
        elif "key_value" in name and heads:
            fields[name] = 4 if value == heads else min(value, 2)
        else:
            fields[name] = _size(name, value, layers)
    for name, part in parts.items():
        if part is hf.AutoConfig:
            part = type(getattr(config_class(), name, None))
        if hasattr(part, "sub_configs"):
            fields[name] = small(part, taken)
    return config_class(**{**fields, **MORE.get(config_class.__name__, {}), **more})


def _default(field):
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _depth(config_class) -> int:
    """How many of the first layers show every kind of layer, at least 2."""
    kinds = list(getattr(config_class(), "layer_types", None) or ())
    count = next((place for place in range(1, len(kinds) + 1) if set(kinds[:place]) == set(kinds)), 2)
    return max(2, count) if count <= MOST_LAYERS else 2


def _size(name: str, value: int, layers: int) -> int:
    size = next((size for pattern, size in SIZES if pattern.search(name)), None)
    if size is None:
        size = layers if LAYERS.search(name) else OTHER
    return min(value, size)


def config_of(family: str, name: str):
    """The small configuration of an architecture."""
    config = small(CONFIG_MAPPING[name])
    if family == "encoder-decoder" and "decoder" in config.sub_configs:
        config.decoder.is_decoder = config.decoder.add_cross_attention = True
    if family == "causal":
        config.get_text_config(decoder=True).is_decoder = True
        config.is_decoder = True
    return config


def built(family: str, name: str, implementation: str, dtype: torch.dtype):
    """A model in evaluation mode, every parameter moved from its start; equal arguments give equal weights."""
    torch.manual_seed(1)
    experts = {"experts_implementation": "eager"} if dtype is torch.float64 else {}  # grouped products lack it
    model = (
        FAMILIES[family].auto.from_config(config_of(family, name), attn_implementation=implementation, **experts).eval()
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype)


def texts(count: int, length: int = LENGTH, seed: int = 3):
    """Tokens (count, length), none of them a special one."""
    return torch.randint(*TEXT, (count, length), generator=torch.Generator().manual_seed(seed))
