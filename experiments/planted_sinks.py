"""A test of the head search: sinks are planted in some heads, and the search has to find them.

In the planted heads, keys of a few filler words and all queries get a bias along one slowly rotating channel, so that
these heads attend to those words wherever they occur. Retrieval drops; calibration of exactly these heads should
restore it. This is not evidence that calibration helps ordinary models, because it only removes planted sinks.

    antiphase train --preset demo --set model.attention_type=softmax --set model.num_hidden_layers=4 \\
        --set model.num_attention_heads=8 --set model.hidden_size=128 --set model.intermediate_size=344 \\
        --set model.initializer=normal --set training.steps=1200 --set training.decay_steps=2500 \\
        --set training.learning_rate=2e-3 --output runs/control-model
    python -m experiments.planted_sinks runs/control-model --output runs/control
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.folders.ownership import check_empty
from antiphase.base.records import Record, finite
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.calibration.search import METHODS, search_calibration
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.scoring.task_scores import log_probabilities, score_samples
from antiphase.lab.settings.presets import RunSettings
from antiphase.lab.text.prepare import symbols
from antiphase.lab.text.retrieval import RetrievalTask
from antiphase.lab.text.tasks.samples import Sample
from antiphase.lab.text.tasks.text_tasks import needle_task

CONSOLE = Console(highlight=False)
SINK_WORDS = 10
"""Number of filler words (the first ones) to which the planted heads attend."""


@contextmanager
def planted(model: PreTrainedModel, heads: list[tuple[int, int]], words: Tensor, strength: float) -> Iterator[None]:
    """Add ``strength`` to keys of ``words`` and all queries of some heads, on the channel that rotates slowest."""
    config = model.config
    width = config.head_dim
    seen: dict[str, Tensor] = {}
    handles = [model.get_input_embeddings().register_forward_pre_hook(lambda module, args: seen.update(ids=args[0]))]

    def bias(channel: int, *, of_words: bool) -> Any:
        def add(module: torch.nn.Module, args: tuple[Tensor], out: Tensor) -> Tensor:
            out = out.clone()
            out[..., channel] += strength * (torch.isin(seen["ids"], words) if of_words else 1.0)
            return out

        return add

    for layer, head in heads:
        channel = head * width + width // 2 - 1  # rotary pairs are half a width apart, and the last one rotates slowest
        attention = model.model.layers[layer].self_attn
        handles.append(attention.k_proj.register_forward_hook(bias(channel, of_words=True)))
        handles.append(attention.q_proj.register_forward_hook(bias(channel, of_words=False)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def samples_of(run: RunSettings, tokenizer: Any, count: int, seed: int) -> list[Sample]:
    """Retrieval sequences as in training, with one question each."""
    data = run.data
    task = RetrievalTask(
        symbols(data), needles=data.needles, queries=data.queries, sequence_length=data.sequence_length
    )
    return needle_task("needles", task, tokenizer, count, seed).samples


def accuracy(model: PreTrainedModel, samples: list[Sample]) -> float:
    """Share of samples that greedy decoding answers correctly."""
    return float(score_samples(model, samples).mean())


def main() -> None:
    """Plant sinks, search by every method, calibrate exactly the planted heads; write a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of a softmax model trained on the synthetic task")
    parser.add_argument("--heads", default="0.3,0.7", help="planted heads as layer.head, comma-separated")
    parser.add_argument("--strength", type=float, default=10.0)
    parser.add_argument(
        "--alpha", type=float, default=12.0, help="short sequences: at 5, six local keys pass by themselves"
    )
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    check_empty(options.output)
    loaded = load_model(options.model)
    model, run = loaded.model, loaded.settings
    assert run is not None
    heads = [(int(layer), int(head)) for layer, _, head in (name.partition(".") for name in options.heads.split(","))]
    language = symbols(run.data)
    names = language.words
    words = torch.tensor([names.index(f"w{index}") for index in range(SINK_WORDS)])
    samples = samples_of(run, loaded.tokenizer, options.samples, options.seed)
    rule = {"alpha": options.alpha, "beta": options.beta}
    clean = accuracy(model, samples)
    rows: list[dict[str, Any]] = []
    with planted(model, heads, words, options.strength):
        spoilt = accuracy(model, samples)
        CONSOLE.print(f"accuracy {100 * clean:.1f} % clean, {100 * spoilt:.1f} % with sinks planted in {options.heads}")
        slopes: dict[str, float] = {}
        changes: dict[str, float] = {}
        for method in METHODS:
            plan = search_calibration(
                model, score_samples, samples, **rule, method=method, surrogate=log_probabilities, seed=options.seed
            )
            found = dict(plan.scores)
            if method == "exhaustive":
                changes = {name: row["change"] for name, row in found["heads"].items()}
            slopes = found.get("slopes", slopes)
            rows.append(
                {
                    "method": method,
                    "heads": {str(layer): maps for layer, maps in plan.heads.items()},
                    **{name: found[name] for name in ("evaluations", "held_out_before", "held_out_after",
                                                      "held_out_gain", "held_out_gain_interval")},
                    "changes": {name: row["change"] for name, row in found["heads"].items()},
                }
            )  # fmt: skip
            kept = ", ".join(f"{layer}.{head}" for layer, maps in plan.heads.items() for head in maps)
            CONSOLE.print(f"{method}: heads {kept or 'none'}, held out {100 * found['held_out_before']:.1f} → "
                  f"{100 * found['held_out_after']:.1f} %, {found['evaluations']} evaluations")  # fmt: skip
        right = CalibrationPlan({layer: [h for one, h in heads if one == layer] for layer, _ in heads}, **rule)
        with calibrated(model, right):
            restored = accuracy(model, samples)
    CONSOLE.print(f"with exactly the planted heads calibrated: {100 * restored:.1f} %")
    ordered = sorted(changes)
    rank = stats.spearmanr([slopes[name] for name in ordered], [changes[name] for name in ordered]).statistic
    CONSOLE.print(f"rank correlation of slope and exact change: {rank:.2f}")
    Record(
        kind="planted-sinks",
        values=finite(
            {
                "clean": clean, "planted": spoilt, "planted_heads_calibrated": restored, "methods": rows,
                "slopes": slopes, "rank_correlation": float(rank),
            }
        ),
        config=finite(vars(options)),
        seeds=[options.seed],
    ).save(options.output)  # fmt: skip


if __name__ == "__main__":
    main()
