"""Draw the pictures of README and guides that need no model: ``python -m tools.pictures``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.statistics.blocks import Blocks, Contrast
from experiments import programme
from tools.tables import gpu

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs/images"
PUBLISHED = {
    "30M, diff-mlx, 4 seeds (±)": (-0.016, -0.039, 0.007),
    "162M, diff-mlx, one seed, 2B tokens": (0.035,),
    "1.4B, the paper, one run": (-0.025,),
}
"""V1 minus softmax as others published it: github.com/guygrigsby/diff-mlx; Ye et al., figure 3 (3.087 and 3.062)."""


def forest() -> Figure:
    """How much lower the held-out loss of V1 is, at every size tried: a row a size; ours above, others' below."""
    reproduced = Record.load(ROOT / "records/reproduce/compare.json").values["comparison"]
    (arms,) = [entry["arms"] for entry in reproduced if entry["metric"] == "held-out loss"]
    tiny = {arm: values["values"] for arm, values in arms.items()}
    small, large = programme.mean_losses(programme.Study.of("b")), gpu.pair_losses()
    pair = {arm: large[arm] for arm in ("softmax", "differential")}
    rows = [
        ("0.28M, 5 seeds, 27.6M tokens", [_difference(tiny, "differential", "softmax")]),
        ("1.3M, 8 seeds, 9.8M tokens", [_difference(small, "V1", other) for other in ("S", "SW", "V1+")]),
        ("34M, 3 seeds, 40M tokens, one rate", [
            _difference(pair, "differential", "softmax"), _difference(large, "differential", "softmax-norm")
        ]),
    ]  # fmt: skip
    figure, axis = plt.subplots(figsize=(8.6, 3.4), layout="constrained")
    for place, (_, some) in enumerate(rows):
        for number, found in enumerate(some):
            at = place + 0.22 * number - 0.11 * (len(some) - 1)
            axis.plot(found.interval(), [at, at], f"C{number}", linewidth=2)
            axis.plot(found.estimate, at, f"C{number}o")
    for place, (value, *ends) in enumerate(PUBLISHED.values(), start=len(rows)):
        axis.plot(ends, [place] * len(ends), "0.5", linewidth=2)
        axis.plot(value, place, "D", color="0.5", markersize=5)
    names = ("softmax", "softmax with a head norm (at 1.3M also wide heads: SW)", "V1 with its second map added")
    for number, name in enumerate(names):
        axis.plot([], [], f"C{number}o-", label=f"V1 − {name}")
    axis.plot([], [], "D", color="0.5", markersize=5, label="V1 − softmax, published by others")
    axis.axvline(0, color="0.3", linewidth=1)
    axis.set_yticks(range(len(rows) + len(PUBLISHED)), [name for name, _ in rows] + list(PUBLISHED))
    axis.invert_yaxis()
    axis.set_xlabel("difference of the held-out loss, nats per token (95 %); left: V1 is better")
    figure.legend(fontsize=8, ncols=2, loc="outside upper center")
    bare(axis)
    return figure


def _difference(values: Mapping[str, Sequence[float]], arm: str, other: str) -> Contrast:
    """Of two arms, all of which have a value of every seed."""
    blocks = Blocks.of(values)
    found = None if blocks is None else blocks.difference(arm, other)
    assert found is not None
    return found


def serving() -> Figure:
    """New tokens a second of vLLM's record against softmax, with quartiles, and bytes of cache."""
    values = Record.load(ROOT / "records/vllm.json").values["throughput"]
    figure, (speed, cache) = plt.subplots(1, 2, figsize=(8.6, 2.5), layout="constrained", width_ratios=[2, 1])
    for place, arm in enumerate(("V1", "V2")):
        for row, found in enumerate(values["requests"].values()):
            at = row + 0.25 * place - 0.12
            speed.plot(found[arm]["quartiles"], [at, at], f"C{place}", linewidth=2)
            speed.plot(found[arm]["ratio"], at, f"C{place}o", label=arm if row == 0 else None)
    speed.axvline(1, color="0.3", linewidth=1)
    speed.set_yticks(range(len(values["requests"])), [f"{count} at once" for count in values["requests"]])
    speed.invert_yaxis()
    speed.set_xlabel("new tokens a second ÷ softmax's; right: faster")
    speed.legend(fontsize=8)
    names = list(values["cache_bytes_per_token"])
    cache.barh(names, [values["cache_bytes_per_token"][name] / 1024 for name in names], color=["0.6", "C0", "C1"])
    cache.invert_yaxis()
    cache.set_xlabel("KiB of cache for a token")
    bare(speed, cache)
    return figure


def cluster() -> Figure:
    """Which part of the work each of eight processes has under each setting of the mesh."""
    settings = {
        "replicate=8": "its own sequences", "shard=8": "its own sequences,\nan eighth of the weights",
        "shard=4, context=2": "half of the tokens,\na quarter of the weights",
        "shard=4, tensor=2": "half of the heads,\na quarter of their weights",
    }  # fmt: skip
    figure, axes = plt.subplots(1, len(settings), figsize=(8.6, 2.2), layout="constrained")
    figure.suptitle("eight processes; those of one colour read the same sequences", fontsize=9)
    for axis, (setting, words) in zip(axes, settings.items(), strict=True):
        together = 2 if "," in setting else 1
        axis.imshow(numpy.arange(8).reshape(2, 4, order="F") // together, cmap="Set3", vmin=0, vmax=12)
        for rank in range(8):
            axis.text(rank // 2, rank % 2, str(rank), ha="center", va="center")
        axis.set(xticks=[], yticks=[])
        axis.set_title(setting, fontsize=9, family="monospace")
        axis.set_xlabel(words, fontsize=8)
    return figure


def share() -> Figure:
    """What a portable folder holds, and what each reader calls."""
    figure, axis = plt.subplots(figsize=(8.6, 1.9), layout="constrained")
    axis.set(xlim=(0, 10), ylim=(0, 3))
    axis.axis("off")
    box = {"boxstyle": "round,pad=0.5", "facecolor": "#f4f6f8", "edgecolor": "0.6"}
    folder = "model.safetensors\nconfig.json\ntokenizer.json\nmodeling_antiphase.py"
    axis.text(1.6, 1.5, folder, ha="center", va="center", family="monospace", fontsize=9, bbox=box)
    readers = {
        2.4: "antiphase installed:\nits kernels",
        0.6: "trust_remote_code=True, without antiphase:\ntransformers' attention",
    }
    for height, words in readers.items():
        axis.annotate("", (5.1, height), (3.3, 1.5), arrowprops={"arrowstyle": "->", "color": "0.4"})
        axis.text(5.4, height, words, va="center", fontsize=9, bbox=box)
    return figure


def bare(*axes: Axes) -> None:
    """Leave out the frame."""
    for axis in axes:
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)


if __name__ == "__main__":
    for draw in (forest, serving, cluster, share):
        draw().savefig(PICTURES / f"{draw.__name__}.png", dpi=110)
