"""Draw docs/images/door.png, a head of a pretrained model beside a differential head.

    python -m tools.door_picture MODEL DEMO_RUN

MODEL is a causal language model, as SmolLM2 from ``make real-model``; DEMO_RUN the folder of a V1 model of the demo.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, TwoSlopeNorm
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.attention.maps import attention_maps
from antiphase.lab.text.retrieval import RetrievalBatch, RetrievalTask, SymbolLanguage

TEXT = "The ferry left the harbour at noon. When it came back, the captain said that the sea had been calm."
SINK_HEAD = (20, 3)
RETRIEVING_HEAD = (1, 1)
PICTURE = Path(__file__).parent.parent / "docs/images/door.png"


def main() -> None:
    """Both models, one figure."""
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    layer, head = SINK_HEAD
    sink = attention_maps(model, ids)[layer].maps[head, 0]

    demo = AutoModelForCausalLM.from_pretrained(sys.argv[2])
    batch = asked()
    layer, head = RETRIEVING_HEAD
    found = attention_maps(demo, batch.input_ids)[layer]
    assert found.lam is not None, f"{sys.argv[2]} is not a differential model"
    first, second = found.maps[head]
    signed = found.weights()[head]

    figure, axes = plt.subplots(1, 4, figsize=(13.2, 3.9), layout="constrained", width_ratios=[1.22, 1, 1, 1])
    words = [tokenizer.decode([one]).strip() for one in ids[0]]
    axes[0].imshow(sink, cmap="magma_r", norm=PowerNorm(0.5, 0, 1))
    axes[0].set_yticks(range(len(words)), words, fontsize=6.5)
    axes[0].set_xticks(range(0, len(words), 5))
    axes[0].annotate("a sink: “The”", (0.6, 5), (9, 4.3), arrowprops={"arrowstyle": "->"}, fontsize=9)
    axes[0].set_title(f"SmolLM2-135M, layer {SINK_HEAD[0]}, head {SINK_HEAD[1]}", fontsize=10)
    rows = slice(int(batch.prompt_end[0]), None)
    lam = float(found.lam[head].mean())
    for axis, values, title, norm, colours in (
        (axes[1], first, "differential head: first map", PowerNorm(0.5, 0, 1), "magma_r"),
        (axes[2], second, f"second map (λ = {lam:.2f})", PowerNorm(0.5, 0, 1), "magma_r"),
        (axes[3], signed, "first − λ · second", TwoSlopeNorm(0, -0.4, 1), "RdBu_r"),
    ):
        axis.imshow(values[rows][::2], cmap=colours, norm=norm, aspect="auto")
        axis.set_title(title, fontsize=10)
    mark_answers(axes[1:], batch)
    figure.savefig(PICTURE, dpi=110)


def asked() -> RetrievalBatch:
    """A text of the demo's task with its questions."""
    task = RetrievalTask(SymbolLanguage(64, 100, 200), needles=8, queries=12, sequence_length=56)
    return task.sample(1, torch.Generator().manual_seed(3))


def mark_answers(axes: Sequence[Axes], batch: RetrievalBatch) -> None:
    """A square where the answer of each question stands; the pictures have a row for each."""
    prompt = batch.input_ids[0, : int(batch.prompt_end[0])].tolist()
    for number, target in enumerate(batch.answer_positions[0, :, 0]):
        place = prompt.index(int(batch.input_ids[0, target]))
        for axis in axes:
            axis.plot(place, number, "s", markersize=6, markerfacecolor="none", markeredgecolor="0.35")
    for axis in axes:
        axis.set_xlabel("tokens of the text", fontsize=8)
        axis.set_yticks([])
    axes[0].set_ylabel("12 questions", fontsize=8)


if __name__ == "__main__":
    main()
