"""Small models of transformers, random enough that attention is far from uniform."""

import copy

import torch
import transformers as hf

from antiphase.lab.scoring.probes import continues, generates, is_causal, takes_padding

BASE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
FOREIGN = {
    "llama": hf.LlamaConfig(**SIZES, attention_bias=True), "diffllama": hf.DiffLlamaConfig(**SIZES),
    "mistral": hf.MistralConfig(**SIZES, sliding_window=4),
    "gpt2": hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}  # fmt: skip
"""Configurations by name, of two layers each."""
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
PADDING_COUNTS = {
    "gpt_neo": hf.GPTNeoConfig(vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, window_size=4,
                               attention_types=[[["global", "local"], 1]], max_position_embeddings=64),
    "mpt": hf.MptConfig(vocab_size=61, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "longrope": hf.Phi3Config(**SIZES, max_position_embeddings=64, original_max_position_embeddings=16,
                              rope_parameters=LONGROPE),
}  # fmt: skip
"""Those in which padding between tokens counts: local attention, ALiBi by index, RoPE by length from 17 tokens on."""


def foreign_model(name, implementation, seed=1):
    """In evaluation mode; equal seeds give equal weights."""
    torch.manual_seed(seed)
    config = copy.deepcopy((FOREIGN | PADDING_COUNTS)[name])  # the model's own: it holds its implementation
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def chunked_model(chunk, seed=1):
    """A Llama 4 in fp64 whose layers attend within chunks of so many tokens."""
    torch.manual_seed(seed)
    config = hf.Llama4TextConfig(
        **SIZES, head_dim=8, intermediate_size_mlp=24, num_local_experts=1, attention_chunk_size=chunk,
        no_rope_layers=[1, 1], attn_temperature_tuning=False,
    )  # fmt: skip
    return randomize(hf.Llama4ForCausalLM(config).double())


def small_llama(tokenizer, **fields):
    """A Llama of the size of the tokenizer; ``fields`` replace those of its configuration."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(tokenizer), **{**sizes, **fields}))


OTHERS = {
    "qwen2": {"num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 6},
    "gemma": {"num_key_value_heads": 1, "head_dim": 6},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}},
}  # fmt: skip
"""Fields of small models of architectures that become ones of this package, by their model types."""


def small_other(kind, tokenizer):
    """A model of one of ``OTHERS``, of the size of the tokenizer and with every parameter random."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    words = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.AutoConfig.for_model(kind, max_position_embeddings=256, **sizes, **words, **OTHERS[kind])
    return randomize(hf.AutoModelForCausalLM.from_config(config), 0.2)


def save(model, tokenizer, folder):
    """Write both into a folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def randomize(model, std=0.3, **others):
    """In evaluation mode, every parameter random, norms about 1; ``others``: spreads by a word of the name."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
            spread = next((value for word, value in others.items() if word in name), std)
            parameter.normal_(1.0 if is_norm else 0.0, spread, generator=generator)
    return model.eval()


def ids_of(*shape, words=61):
    """Tokens, none of them a special one."""
    return torch.randint(3, words, shape)


def padded(rows, *, left, more=0):
    """Texts (N,) as one batch with its mask, ``more`` tokens longer than the longest."""
    length = max(map(len, rows)) + more
    ids, mask = torch.zeros(len(rows), length, dtype=torch.int64), torch.zeros(len(rows), length, dtype=torch.int64)
    for index, row in enumerate(rows):
        place = slice(length - len(row), length) if left else slice(0, len(row))
        ids[index, place], mask[index, place] = row, 1
    return ids, mask


def assert_near(found, expected, bound=1e-9):
    """Equal but for the order of sums, in float64."""
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


def logits_in_pieces(model, ids, mask, cache, sizes):
    """Logits of a text (B, N) that is read in pieces of these sizes, with a cache."""
    logits, start = [], 0
    for size in sizes:
        end = start + size
        out = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        logits.append(out.logits)
        start = end
    return torch.cat(logits, dim=1)


def probed(model):
    """The model, which has been asked how it may be read: what it reads afterwards are texts."""
    takes_padding(model), continues(model), generates(model), is_causal(model)
    return model


def alone(model, prompt, option):
    """Log p of an option by one plain forward pass."""
    logs = model(torch.tensor([prompt + option])).logits[0].log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(option) - 1)
    return sum(logs[place, token] for place, token in zip(places, option, strict=True))
