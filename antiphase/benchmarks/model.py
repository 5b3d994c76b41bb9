"""Whole models: training step, prefill and generation, ours and Hugging Face's Llama and DiffLlama of equal size.

The second version has a smaller output projection, so fewer parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from antiphase.interface import TRITON
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.records import Record

OURS, OURS_V2, SOFTMAX = "antiphase differential", "antiphase differential_v2", "antiphase softmax"
LLAMA, DIFFLLAMA = "Llama", "DiffLlama"
COMPILED = ", compiled"
PAIRS = ((OURS, SOFTMAX), (OURS_V2, SOFTMAX), (OURS, LLAMA), (OURS, DIFFLLAMA), (DIFFLLAMA, LLAMA))
COMPILED_PAIRS = ((OURS + COMPILED, SOFTMAX + COMPILED), (OURS_V2 + COMPILED, SOFTMAX + COMPILED))
SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 682, "num_hidden_layers": 6, "num_attention_heads": 8,
    "tie_word_embeddings": True,
}  # fmt: skip
SIZES_ON_GPU: dict[str, Any] = {
    **SIZES, "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12,
}  # fmt: skip
"""About 110M parameters, maps of width 64."""
LENGTHS, LENGTHS_ON_GPU = (512, 1024, 2048), (2048, 4096)
TOKENS, TOKENS_ON_GPU = 2048, 16384
"""In one training step, whatever the length of its sequences."""
NEW_TOKENS = 32


def benchmark_model(
    *, quick: bool = False, seed: int = 0, device: str = "cpu", say: Callable[[str], None] = lambda message: None
) -> Record:
    """A training step is forward, backward and AdamW. Generation is greedy, one sequence.

    On a processor fp32, 2,048 tokens a step; on a GPU bf16 autocast, 16,384, differential layers on the fused kernels,
    and training steps of compiled models besides.
    """
    started = time.perf_counter()
    on_gpu = torch.device(device).type == "cuda"
    sizes, tokens = (SIZES_ON_GPU, TOKENS_ON_GPU) if on_gpu else (SIZES, TOKENS)
    lengths = LENGTHS_ON_GPU if on_gpu else LENGTHS
    lengths = lengths[::2] if quick and len(lengths) > 2 else lengths
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    rounds, seconds = (7, 12.0) if quick else (15, 60.0)
    models = _models(seed, sizes, tokens, device)
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Any]] = []

    def compare(
        task: str, length: int, work: dict[str, Callable[[], object]], pairs: Sequence[tuple[str, str]] = PAIRS
    ) -> None:
        say(f"timing {task}, {length:,} tokens")
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=on_gpu):
            times = paired_times(work, rounds=rounds, seconds=seconds, warm_up=3 if on_gpu else 1, device=device)
        what = {"task": task, "dtype": "bfloat16" if on_gpu else "float32", "length": length, "width": width}
        rows.extend({**what, **ratios(times, one, other)} for one, other in pairs)

    for length in lengths:
        ids = torch.randint(0, sizes["vocab_size"], (tokens // length, length), generator=generator).to(device)
        compare("training step", length, {name: _step(model, ids) for name, model in models.items()})
        if on_gpu:
            compiled = {
                name + COMPILED: _step(torch.compile(models[name]), ids) for name in (OURS, OURS_V2, SOFTMAX)
            }  # fmt: skip
            compare("training step", length, compiled, COMPILED_PAIRS)
    for length in lengths:
        prompt = torch.randint(0, sizes["vocab_size"], (1, length), generator=generator).to(device)
        compare("prefill", length, {name: _prefill(model, prompt) for name, model in models.items()})
        compare("tokens generated", length, {name: _decode(model, prompt) for name, model in models.items()})
    return Record(
        kind="benchmark-model",
        values={"rows": rows, "parameters": {name: model.num_parameters() for name, model in models.items()}},
        config={
            **sizes, "width": width, "tokens": tokens, "new_tokens": NEW_TOKENS, "rounds": rounds, "quick": quick,
            "device": device,
        },
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _models(seed: int, sizes: dict[str, Any], tokens: int, device: str) -> dict[str, PreTrainedModel]:
    """Equal sizes; V2 has as many maps and half as many key-value heads, as its own default."""
    sizes = {**sizes, "max_position_embeddings": tokens + NEW_TOKENS}
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        models: dict[str, PreTrainedModel] = {
            OURS: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential", **sizes)),
            OURS_V2: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential_v2", **sizes)),
            SOFTMAX: AntiphaseForCausalLM(AntiphaseConfig(attention_type="softmax", **sizes)),
            LLAMA: LlamaForCausalLM(LlamaConfig(**sizes)),
            DIFFLLAMA: DiffLlamaForCausalLM(DiffLlamaConfig(**sizes)),
        }
    if torch.device(device).type == "cuda":
        for name in (OURS, OURS_V2):
            models[name].set_attn_implementation(TRITON)
    return {name: model.to(device) for name, model in models.items()}


def _step(model: Any, ids: torch.Tensor) -> Callable[[], object]:
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
