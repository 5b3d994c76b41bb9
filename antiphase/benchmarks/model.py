"""Whole models: training step, prefill and generation, ours and Hugging Face's Llama and DiffLlama of equal size.

The second version has a smaller output projection, so fewer parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from antiphase.benchmarks.timing import paired_times, ratios
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.records import Record

OURS, OURS_V2, SOFTMAX = "antiphase differential", "antiphase differential_v2", "antiphase softmax"
LLAMA, DIFFLLAMA = "Llama", "DiffLlama"
PAIRS = ((OURS, SOFTMAX), (OURS_V2, SOFTMAX), (OURS, LLAMA), (OURS, DIFFLLAMA), (DIFFLLAMA, LLAMA))
SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 682, "num_hidden_layers": 6, "num_attention_heads": 8,
    "tie_word_embeddings": True,
}  # fmt: skip
LENGTHS = (512, 1024, 2048)
TOKENS = 2048
"""In one training step, whatever the length of its sequences."""
NEW_TOKENS = 32
WIDTH = SIZES["hidden_size"] // SIZES["num_attention_heads"]


def benchmark_model(*, quick: bool = False, seed: int = 0, say: Callable[[str], None] = lambda message: None) -> Record:
    """fp32; a training step is forward, backward and AdamW on 2,048 tokens. Generation is greedy, one sequence."""
    started = time.perf_counter()
    lengths = LENGTHS[::2] if quick and len(LENGTHS) > 2 else LENGTHS
    rounds, seconds = (7, 12.0) if quick else (15, 60.0)
    models = _models(seed)
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Any]] = []

    def compare(task: str, length: int, work: dict[str, Callable[[], object]]) -> None:
        say(f"timing {task}, {length:,} tokens")
        times = paired_times(work, rounds=rounds, seconds=seconds)
        what = {"task": task, "dtype": "float32", "length": length, "width": WIDTH}
        rows.extend({**what, **ratios(times, one, other)} for one, other in PAIRS)

    for length in lengths:
        ids = torch.randint(0, SIZES["vocab_size"], (TOKENS // length, length), generator=generator)
        compare("training step", length, {name: _step(model, ids) for name, model in models.items()})
    for length in lengths:
        prompt = torch.randint(0, SIZES["vocab_size"], (1, length), generator=generator)
        compare("prefill", length, {name: _prefill(model, prompt) for name, model in models.items()})
        compare("tokens generated", length, {name: _decode(model, prompt) for name, model in models.items()})
    return Record(
        kind="benchmark-model",
        values={"rows": rows, "parameters": {name: model.num_parameters() for name, model in models.items()}},
        config={**SIZES, "width": WIDTH, "tokens": TOKENS, "new_tokens": NEW_TOKENS, "rounds": rounds, "quick": quick},
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )


def _models(seed: int) -> dict[str, PreTrainedModel]:
    """Equal sizes; V2 has as many maps and half as many key-value heads, as its own default."""
    sizes = {**SIZES, "max_position_embeddings": TOKENS + NEW_TOKENS}
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        return {
            OURS: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential", **sizes)),
            OURS_V2: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential_v2", **sizes)),
            SOFTMAX: AntiphaseForCausalLM(AntiphaseConfig(attention_type="softmax", **sizes)),
            LLAMA: LlamaForCausalLM(LlamaConfig(**sizes)),
            DIFFLLAMA: DiffLlamaForCausalLM(DiffLlamaConfig(**sizes)),
        }


def _step(model: PreTrainedModel, ids: torch.Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> object:
        model.train()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return run


def _prefill(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        model.eval()
        return model(input_ids=prompt, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1).logits

    return run


def _decode(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    """Steps of one token behind the prompt, which is in the cache already and is cut back to after each round."""
    cache = DynamicCache()
    with torch.no_grad():
        model.eval()
        model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)

    @torch.no_grad()
    def run() -> object:
        model.eval()
        token = prompt[:, -1:]
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            token = logits[:, -1:].argmax(-1)
        cache.crop(-NEW_TOKENS)
        return token

    return run
