"""Draw docs/images/forest.png from the records: how much lower the held-out loss of V1 is, at every size tried.

python -m tools.forest
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from antiphase.base.records import Record
from antiphase.lab.statistics.blocks import Blocks, Contrast
from tools.tables import evidence, gpu

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs/images/forest.png"
PUBLISHED = {
    "30M, diff-mlx, 4 seeds (±)": (-0.016, -0.039, 0.007),
    "162M, diff-mlx, one seed, 2B tokens": (0.035,),
    "1.4B, the paper, one run": (-0.025,),
}
"""V1 minus softmax as others published it: github.com/guygrigsby/diff-mlx; Ye et al., figure 3 (3.087 and 3.062)."""


def main() -> None:
    """A row a size; ours above, others' below."""
    reproduced = Record.load(ROOT / "records/reproduce/compare.json").values["comparison"]
    (arms,) = [entry["arms"] for entry in reproduced if entry["metric"] == "held-out loss"]
    tiny = Blocks.of({arm: values["values"] for arm, values in arms.items()})
    losses = gpu.pair_losses()
    pair = Blocks.of({arm: losses[arm] for arm in ("softmax", "differential")})
    large = Blocks.of(losses)
    assert tiny is not None
    assert pair is not None
    assert large is not None
    best = {effect.name: effect.found for effect in evidence.against_softmax(evidence.found("best"))}
    rows: list[tuple[str, Contrast | None, Contrast | None]] = [
        ("0.28M, 5 seeds, 27.6M tokens", tiny.difference("differential", "softmax"), None),
        ("1.3M, 5 seeds, 9.8M tokens", best["V1 against softmax"], best["V1 against softmax with norm"]),
        ("34M, 3 seeds, 40M tokens, one rate", pair.difference("differential", "softmax"),
         large.difference("differential", "softmax-norm")),
    ]  # fmt: skip
    figure, axis = plt.subplots(figsize=(8.6, 3.1), layout="constrained")
    for place, (_, plain, normed) in enumerate(rows):
        for found, shift, colour in ((plain, -0.12, "C0"), (normed, 0.2, "C1")):
            if found is not None:
                low, high = found.interval()
                axis.plot([low, high], [place + shift] * 2, colour, linewidth=2)
                axis.plot(found.estimate, place + shift, "o", color=colour)
    for place, (value, *ends) in enumerate(PUBLISHED.values(), start=len(rows)):
        axis.plot(ends, [place] * len(ends), "0.5", linewidth=2)
        axis.plot(value, place, "D", color="0.5", markersize=5)
    axis.plot([], [], "C0o-", label="V1 − softmax")
    axis.plot([], [], "C1o-", label="V1 − softmax with a head norm")
    axis.plot([], [], "D", color="0.5", markersize=5, label="published by others")
    axis.axvline(0, color="0.3", linewidth=1)
    axis.set_yticks(range(len(rows) + len(PUBLISHED)), [name for name, *_ in rows] + list(PUBLISHED))
    axis.invert_yaxis()
    axis.set_xlabel("difference of the held-out loss, nats per token (95 %); left: V1 is better")
    axis.legend(fontsize=8, loc="lower left")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
