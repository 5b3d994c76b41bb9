"""Small models of transformers, random enough that attention is far from uniform."""

import copy

import torch
import transformers as hf

BASE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
FOREIGN = {
    "llama": hf.LlamaConfig(**SIZES, attention_bias=True),
    "diffllama": hf.DiffLlamaConfig(**SIZES),
    "mistral": hf.MistralConfig(**SIZES, sliding_window=4),
    "gpt2": hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}
"""Configurations by name, of two layers each."""


def foreign_model(name, implementation, seed=1):
    """In evaluation mode; equal seeds give equal weights."""
    torch.manual_seed(seed)
    config = copy.deepcopy(FOREIGN[name])  # the model's own: it holds its implementation
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model
