"""Draw docs/images/grouped.png: heads of a small grouped differential model, and the second map that they share.

    python -m tools.grouped_picture RUN

RUN: ``antiphase train --preset demo --set model.attention_type=differential --set model.num_attention_heads=8 --set
model.num_noise_heads=1 --set model.hidden_act=poly_norm``.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import PowerNorm, TwoSlopeNorm
from transformers import AutoModelForCausalLM

from antiphase.attention.maps import attention_maps
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from tools.door_picture import PICTURE

LAYER = 1


def main() -> None:
    """One row: the shared second map, then the difference of each head."""
    task = RetrievalTask(SymbolLanguage(64, 100, 200), needles=8, queries=12, sequence_length=56)
    batch = task.sample(1, torch.Generator().manual_seed(3))
    found = attention_maps(AutoModelForCausalLM.from_pretrained(sys.argv[1]), batch.input_ids)[LAYER]
    assert found.lam is not None, f"{sys.argv[1]} is not a differential model"
    assert torch.equal(found.maps[:1, 1].expand_as(found.maps[:, 1]), found.maps[:, 1]), "the second map is not shared"
    rows, weights, heads = slice(int(batch.prompt_end[0]), None), found.weights(), len(found.maps)
    figure, axes = plt.subplots(1, heads + 1, figsize=(2.6 * (heads + 1), 3.4), layout="constrained")
    shared = f"the second map of all (λ = {float(found.lam.mean()):.2f})"
    axes[0].imshow(found.maps[0, 1, rows][::2], cmap="magma_r", norm=PowerNorm(0.5, 0, 1), aspect="auto")
    for head in range(heads):
        axes[head + 1].imshow(weights[head, rows][::2], cmap="RdBu_r", norm=TwoSlopeNorm(0, -0.4, 1), aspect="auto")
    for axis, title in zip(axes, [shared, *(f"head {head}: difference" for head in range(heads))], strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("tokens of the text", fontsize=8)
        axis.set_yticks([])
    axes[0].set_ylabel("12 questions", fontsize=8)
    for number, target in enumerate(batch.answer_positions[0, :, 0]):
        prompt = batch.input_ids[0, : int(batch.prompt_end[0])].tolist()
        place = prompt.index(int(batch.input_ids[0, target]))
        for axis in axes:
            axis.plot(place, number, "s", markersize=6, markerfacecolor="none", markeredgecolor="0.35")
    figure.savefig(PICTURE.with_name("grouped.png"), dpi=100)


if __name__ == "__main__":
    main()
