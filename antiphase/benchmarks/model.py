"""A whole training step: softmax against differential, ours and Hugging Face's Llama and DiffLlama of equal size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from antiphase.benchmarks.timing import paired_times, ratios
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.records import Record

OURS, SOFTMAX, LLAMA, DIFFLLAMA = "antiphase differential", "antiphase softmax", "Llama", "DiffLlama"
PAIRS = ((OURS, SOFTMAX), (OURS, LLAMA), (OURS, DIFFLLAMA), (DIFFLLAMA, LLAMA))


def benchmark_model(
    *,
    lengths: Sequence[int] = (512, 1024, 2048),
    tokens: int = 2048,
    hidden_size: int = 256,
    layers: int = 6,
    rounds: int = 9,
    seed: int = 0,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Forward, backward and AdamW step on ``tokens`` tokens in sequences of each length, fp32."""
    started = time.perf_counter()
    sizes: dict[str, Any] = {
        "vocab_size": 4096,
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 8 // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden_size // 32,
        "max_position_embeddings": max(lengths),
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        models: dict[str, PreTrainedModel] = {
            OURS: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential", **sizes)),
            SOFTMAX: AntiphaseForCausalLM(AntiphaseConfig(attention_type="softmax", **sizes)),
            LLAMA: LlamaForCausalLM(LlamaConfig(**sizes)),
            DIFFLLAMA: DiffLlamaForCausalLM(DiffLlamaConfig(**sizes)),
        }
    rows = []
    for length in lengths:
        say(f"timing training steps of {length} tokens a sequence")
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, sizes["vocab_size"], (max(1, tokens // length), length), generator=generator)
        times = paired_times({name: _step(model, ids) for name, model in models.items()}, rounds=rounds)
        rows += [{"length": length, "batch": len(ids), **ratios(times, one, other)} for one, other in PAIRS]
    return Record(
        kind="benchmark-model",
        values={"rows": rows, "parameters": {name: model.num_parameters() for name, model in models.items()}},
        config={**sizes, "tokens": tokens, "dtype": "float32", "rounds": rounds},
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )


def _step(model: PreTrainedModel, ids: torch.Tensor) -> Callable[[], object]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> object:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return run
