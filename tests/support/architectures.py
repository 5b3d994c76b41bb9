"""One small model of every kind whose attention is read or changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

import antiphase
from antiphase.base.randomness import keyed_generator
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from support.models import randomize

LAYERS, MAPS, N, WINDOW = 2, 8, 23, 7
SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": LAYERS,
    "num_attention_heads": MAPS, "max_position_embeddings": 96,
}  # fmt: skip
SMALL_GPT2 = {"vocab_size": 61, "n_embd": 48, "n_layer": LAYERS, "n_head": MAPS, "n_positions": 96,
                              "attn_pdrop": 0.0}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 4}
ROLES = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
BERT = {**SIZES, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


@dataclass(frozen=True)
class Case:
    """One kind of model."""

    config: Callable[[], Any]
    form: str = "softmax"
    """How the oracle joins maps: ``softmax``, ``V1``, ``V2``, ``inside`` or ``diffllama``."""
    is_encoder: bool = False
    window: tuple[int | None, ...] = (None,) * LAYERS


def own(kind, **fields):
    return lambda: antiphase.AntiphaseConfig(attention_type=kind, **{**GROUPED, **fields})


def inside(config):
    return lambda: antiphase.differential_config(config())


WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
ENCODER = {"vocab_size": 61, "hidden_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": MAPS,
           "norm_position": "pre"}  # fmt: skip
CASES = {
    "softmax": Case(own("softmax")),
    "softmax with a window": Case(own("softmax", **WINDOWS), window=(WINDOW, None)),
    "softmax with head norm and gate": Case(own("softmax", head_norm=True, output_gate=True)),
    "softmax with sink logits": Case(own("softmax", sink_logits=True)),
    "DEX": Case(own("softmax", dex_heads=[[0, 3], [1]])),
    "V1": Case(own("differential"), "V1"),
    "V1 with a window": Case(own("differential", **WINDOWS), "V1", window=(WINDOW, None)),
    "V1 without head norm": Case(own("differential", head_norm=False, lambda_form="head"), "V1"),
    "grouped differential": Case(own("differential", num_noise_heads=2), "V1"),
    "V2": Case(own("differential_v2"), "V2"),
    "V2 across": Case(own("differential_v2_across")),
    "V1 in blocks of Qwen3": Case(own("differential", use_qk_norm=True, attention_bias=True, **WINDOWS), "V1",
                                  window=(WINDOW, None)),
    "softmax in blocks of GPT-NeoX": Case(own("softmax", norm_type="layer_norm", gated_mlp=False, mlp_bias=True,
                                              attention_bias=True, use_parallel_residual=True)),
    "antiphase encoder": Case(lambda: antiphase.VanillaConfig(attention_type="differential", **ENCODER), "V1", True),
    "antiphase decoder of 2017": Case(lambda: antiphase.VanillaConfig(is_causal=True, **ENCODER)),
    "differential_llama": Case(inside(lambda: hf.LlamaConfig(**GROUPED)), "inside"),
    "differential_mistral": Case(
        inside(lambda: hf.MistralConfig(**GROUPED, sliding_window=WINDOW)), "inside", window=(WINDOW, WINDOW)
    ),
    "differential_qwen2": Case(inside(lambda: hf.Qwen2Config(**GROUPED)), "inside"),
    "differential_qwen3": Case(inside(lambda: hf.Qwen3Config(**GROUPED, head_dim=6)), "inside"),
    "differential_gpt2": Case(inside(lambda: hf.GPT2Config(**SMALL_GPT2)), "inside"),
    "differential_bert": Case(inside(lambda: hf.BertConfig(**BERT)), "inside", True),
    "diffllama": Case(lambda: hf.DiffLlamaConfig(**GROUPED), "diffllama"),
    "llama": Case(lambda: hf.LlamaConfig(**GROUPED)),
    "mistral": Case(lambda: hf.MistralConfig(**GROUPED, sliding_window=WINDOW), window=(WINDOW, WINDOW)),
    "qwen2": Case(lambda: hf.Qwen2Config(**GROUPED)),
    "qwen3": Case(lambda: hf.Qwen3Config(**GROUPED, head_dim=6)),
    "gemma": Case(lambda: hf.GemmaConfig(**GROUPED, head_dim=6)),
    "gpt2": Case(lambda: hf.GPT2Config(**SMALL_GPT2)),
    "gpt_neox": Case(lambda: hf.GPTNeoXConfig(**SIZES)),
    "bert": Case(lambda: hf.BertConfig(**BERT), is_encoder=True),
    "roberta": Case(lambda: hf.RobertaConfig(**BERT), is_encoder=True),
    "modernbert": Case(
        lambda: hf.ModernBertConfig(**SIZES, **ROLES, global_attn_every_n_layers=2, local_attention=2 * WINDOW - 2),
        is_encoder=True, window=(None, WINDOW),
    ),
    "modernbert with a window beyond the text": Case(
        lambda: hf.ModernBertConfig(**SIZES, **ROLES, global_attn_every_n_layers=2, local_attention=4 * N),
        is_encoder=True, window=(None, 2 * N + 1),
    ),
    "opt": Case(
        lambda: hf.OPTConfig(
            vocab_size=61, hidden_size=48, word_embed_proj_dim=48, ffn_dim=40, num_hidden_layers=LAYERS,
            num_attention_heads=MAPS, max_position_embeddings=96, attention_dropout=0.0,
        )
    ),
    "decoder of BART": Case(
        lambda: hf.BartConfig(
            vocab_size=61, d_model=48, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=MAPS,
            decoder_attention_heads=MAPS, decoder_ffn_dim=40, max_position_embeddings=96,
            is_encoder_decoder=False, is_decoder=True,
        )
    ),
    "jetmoe": Case(
        lambda: hf.JetMoeConfig(**GROUPED, kv_channels=6, num_local_experts=2, num_experts_per_tok=2)
    ),
    "esm": Case(lambda: hf.EsmConfig(**BERT, pad_token_id=0, mask_token_id=2), is_encoder=True),
}  # fmt: skip


def built(name):
    """In fp64, with attention that is far from uniform."""
    case = CASES[name]
    auto = hf.AutoModelForMaskedLM if case.is_encoder else hf.AutoModelForCausalLM
    torch.manual_seed(3)
    return randomize(auto.from_config(case.config()).double())


def batch():
    task = RetrievalTask(SymbolLanguage(9, 11, 5), needles=3, queries=1, sequence_length=N)
    return task.sample(2, keyed_generator("matrix"))
