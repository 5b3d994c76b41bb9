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
from tools.door_picture import PICTURE, asked, mark_answers

LAYER = 1


def main() -> None:
    """One row: the shared second map, then the difference of each head."""
    batch = asked()
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
    mark_answers(axes, batch)
    figure.savefig(PICTURE.with_name("grouped.png"), dpi=100)


if __name__ == "__main__":
    main()
