"""Tokens a second of V1 and V2 in vLLM against softmax of equal size: engines side by side, measured in turn.

    python -m benchmarks.serving --output served.json     # in an environment with vLLM, on a quiet machine

Every engine has the same number of layers, widths and texts and computes in fp32, without compilation. A round asks
each engine in turn, in an order that changes, for the same requests at once; a ratio is the median over rounds of
ratios within a round. ``python -m tools.served`` writes the numbers into ``records/vllm.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from antiphase import AntiphaseConfig, AntiphaseForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
    "num_attention_heads": 8, "max_position_embeddings": 1024,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"attention_type": "softmax"},
    "V1": {"attention_type": "differential"},
    "V2": {"attention_type": "differential_v2"},
}
"""Eight maps of width 64 in each: as many keys and values in V1, half of them in V2."""
PROMPT, NEW = 128, 32


def main() -> None:
    """Measure, and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the JSON file")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each number of requests")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="antiphase-served-") as folder:
        engines = {name: engine(name, Path(folder) / name) for name in KINDS}
        found = {str(count): measured(engines, count, given.rounds) for count in given.requests}
    values = {
        "sizes": SIZES, "prompt_tokens": PROMPT, "new_tokens": NEW, "rounds": given.rounds, "dtype": "float32",
        "threads": torch.get_num_threads(), "requests": found,
        "cache_bytes_per_token": {name: cache_bytes(name) for name in KINDS},
    }  # fmt: skip
    given.output.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def configuration(name: str) -> AntiphaseConfig:
    """Of one of the models."""
    return AntiphaseConfig(**SIZES, **KINDS[name])


def cache_bytes(name: str) -> int:
    """Of keys and values of a token in all layers, in fp32."""
    from antiphase.models.attention import attention_layer
    from antiphase.models.serving import paged_sizes

    sizes = paged_sizes(attention_layer(configuration(name), 0))
    return 4 * 2 * sizes.groups * sizes.width * SIZES["num_hidden_layers"]


def engine(name: str, folder: Path) -> Any:
    """A model of random weights in vLLM, without its cache of prompts, which would answer for the second round."""
    from vllm import LLM

    torch.manual_seed(0)
    AntiphaseForCausalLM(configuration(name)).save_pretrained(folder)
    return LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=256, kv_cache_memory_bytes=2**28,
        enforce_eager=True, enable_prefix_caching=False, max_num_seqs=32,
    )  # fmt: skip


def measured(engines: dict[str, Any], count: int, rounds: int) -> dict[str, Any]:
    """New tokens a second of each engine, and its median ratio to softmax with quartiles."""
    from vllm import SamplingParams

    choose = random.Random(count)
    asked = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True, detokenize=False)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for index in range(rounds + 1):
        texts = [{"prompt_token_ids": choose.choices(range(SIZES["vocab_size"]), k=PROMPT)} for _ in range(count)]
        for name in choose.sample(list(engines), len(engines)):
            started = time.perf_counter()
            engines[name].generate(texts, asked, use_tqdm=False)
            if index:  # the first round warms up
                rates[name].append(count * NEW / (time.perf_counter() - started))
    ratios = {name: [own / other for own, other in zip(rates[name], rates["softmax"], strict=True)] for name in rates}
    return {
        name: {
            "tokens_per_second": statistics.median(rates[name]),
            "ratio": statistics.median(ratios[name]),
            "quartiles": statistics.quantiles(ratios[name], n=4)[::2],
        }
        for name in engines
    }


if __name__ == "__main__":
    main()
