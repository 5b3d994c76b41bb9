"""Tokens a second of V1 and V2 in vLLM against softmax of equal size, and the memory of its processes while they serve.

    python -m benchmarks.serving throughput --output served.json     # in an environment with vLLM, on a quiet machine
    python -m benchmarks.serving memory --output memory.json

Every engine has the same number of layers, widths and texts and computes in fp32, without compilation. A round asks
each engine in turn, in an order that changes, for the same requests at once; a ratio is the median over rounds of
ratios within a round. ``python -m tools.served`` writes the numbers into ``records/vllm.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from psutil import Process
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from antiphase import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.models.attention import attention_layer
from antiphase.models.serving import paged_sizes

SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
    "num_attention_heads": 8, "max_position_embeddings": 1024,
}  # fmt: skip
KINDS = {"softmax": "softmax", "V1": "differential", "V2": "differential_v2"}
"""Eight maps of width 64 in each: as many keys and values in V1, half of them in V2."""
SMALL = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
"""Sizes of the models of which only the memory is measured."""
PROMPT, NEW, HUNDREDS = 128, 32, 6


def main() -> None:
    """Measure, and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "memory"])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each number of requests")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="antiphase-served-") as name:
        folder = Path(name)
        values = memory(folder) if given.what == "memory" else throughput(folder, given.rounds, given.requests)
    given.output.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def throughput(folder: Path, rounds: int, counts: list[int]) -> dict[str, Any]:
    """Sizes, and for each number of requests what ``measured`` gives."""
    configs = {name: AntiphaseConfig(**SIZES, attention_type=kind) for name, kind in KINDS.items()}
    models = {name: AntiphaseForCausalLM(config) for name, config in configs.items()}
    # a cache of prompts would answer for the second round
    engines = {name: engine(models[name], folder / name, enable_prefix_caching=False) for name in KINDS}
    return {
        "sizes": SIZES, "prompt_tokens": PROMPT, "new_tokens": NEW, "rounds": rounds, "dtype": "float32",
        "threads": torch.get_num_threads(),
        "requests": {str(count): measured(engines, count, rounds) for count in counts},
        "cache_bytes_per_token": {name: cache_bytes(config) for name, config in configs.items()},
    }  # fmt: skip


def memory(folder: Path) -> dict[str, Any]:
    """MiB of the process in which each model runs, after every hundred requests: ours, and vLLM's own Llama."""
    sizes = SIZES | SMALL
    models = {"V1": AntiphaseForCausalLM(AntiphaseConfig(**sizes)), "Llama": LlamaForCausalLM(LlamaConfig(**sizes))}
    found: dict[str, list[float]] = {}
    for name, model in models.items():
        others = Process().children(recursive=True)
        # a cache that is full at once, because memory counts when it is first written
        llm, choose = engine(model, folder / name, kv_cache_memory_bytes=2**22), random.Random(0)
        workers = [process for process in Process().children(recursive=True) if process not in others]
        found[name] = []
        for _ in range(HUNDREDS):
            generated(llm, [choose.choices(range(sizes["vocab_size"]), k=choose.randint(1, 139)) for _ in range(100)])
            found[name].append(sum(worker.memory_info().rss for worker in workers) / 2**20)
    return {"sizes": sizes, "new_tokens": NEW, "mebibytes": found}


def cache_bytes(config: AntiphaseConfig) -> int:
    """Of keys and values of a token in all layers, in fp32."""
    sizes = paged_sizes(attention_layer(config, 0))
    return 4 * 2 * sizes.groups * sizes.width * config.num_hidden_layers


def engine(model: PreTrainedModel, folder: Path, **settings: Any) -> Any:
    """A model in vLLM, its weights as they are."""
    from vllm import LLM

    model.save_pretrained(folder)
    return LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=256, enforce_eager=True,
        **{"kv_cache_memory_bytes": 2**28, "max_num_seqs": 32, **settings},
    )  # fmt: skip


def generated(llm: Any, texts: list[list[int]]) -> None:
    """New tokens for every text."""
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": text} for text in texts], asked, use_tqdm=False)


def measured(engines: dict[str, Any], count: int, rounds: int) -> dict[str, Any]:
    """New tokens a second of each engine, and its median ratio to softmax with quartiles."""
    choose = random.Random(count)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for index in range(rounds + 1):
        texts = [choose.choices(range(SIZES["vocab_size"]), k=PROMPT) for _ in range(count)]
        for name in choose.sample(list(engines), len(engines)):
            started = time.perf_counter()
            generated(engines[name], texts)
            if index:  # the first round warms up
                rates[name].append(count * NEW / (time.perf_counter() - started))
    ratios = {name: [own / other for own, other in zip(rates[name], rates["softmax"], strict=True)] for name in rates}
    return {
        name: {"tokens_per_second": median(rates[name]), "ratio": median(own), "quartiles": quantiles(own, n=4)[::2]}
        for name, own in ratios.items()
    }


if __name__ == "__main__":
    main()
