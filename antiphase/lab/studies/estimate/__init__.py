"""What a training run will take on a fleet of GPUs, before it is begun: ``antiphase estimate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.base.errors import InputError, nearest
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import Settings, flag
from antiphase.lab.studies.settings import preset_flag

GIGA = 1e9


@dataclass(frozen=True)
class Gpu:
    """Published figures of a GPU."""

    memory: float
    """GB of 10⁹ bytes."""
    peak: float
    """Dense bf16 operations per second, fp32 sums."""
    source: str


GPUS = {
    "h100": Gpu(80, 989.4e12, "NVIDIA H100 data sheet, SXM; half of the figure with sparsity"),
    "h200": Gpu(141, 989.4e12, "NVIDIA H200 data sheet, SXM; half of the figure with sparsity"),
    "a100": Gpu(80, 312e12, "NVIDIA A100 80GB data sheet"),
    "a100-40": Gpu(40, 312e12, "NVIDIA A100 40GB data sheet"),
    "l40s": Gpu(48, 362e12, "NVIDIA L40S data sheet; half of the figure with sparsity"),
    "mi300x": Gpu(192, 1307.4e12, "AMD Instinct MI300X data sheet"),
}


@dataclass(frozen=True, kw_only=True)
class EstimateSettings(Settings):
    """Estimate a preset's training on a fleet: memory of each GPU by part, the mesh that fits, tokens a second, days.

    Text presets are taken as they would be with text. Nothing is trained, and only a data.tokenizer is read.
    Example: [bold]antiphase estimate --preset paper --gpus 64 --gpu h100[/]
    """

    folder = "optional"

    preset: str = preset_flag("gpu")
    gpus: int = flag("GPUs of the fleet.", default=8, least=1)
    gpus_per_node: int = flag("GPUs of a node.", default=8, least=1)
    gpu: str = flag(f"Kind of GPU, with its published figures: {', '.join(GPUS)}.", default="h100")
    gpu_memory: float | None = flag("GB of each GPU, instead of the published figure.", default=None)
    gpu_flops: float | None = flag("Peak operations per second of each, instead of the published figure.", default=None)
    peak_share: float = flag("Share of the peak that training reaches.", default=0.4)
    memory_share: float = flag("Share of the memory that tensors may fill.", default=0.9)
    settings: Sequence[str] = flag(
        "Override a setting of the preset: KEY=VALUE, e.g. training.steps=200. Repeatable.", name="--set", default=()
    )
    as_json: bool = flag("Print one JSON object per arm instead of tables.", name="--json", default=False)

    def check(self) -> None:
        super().check()
        if self.gpu not in GPUS:
            raise InputError(f"--gpu {self.gpu}: unknown{nearest(self.gpu, GPUS)}")
        for name, share in (("--peak-share", self.peak_share), ("--memory-share", self.memory_share)):
            if not 0 < share <= 1:
                raise InputError(f"{name} must be above 0 and at most 1, got {share}")
        for name, given in (("--gpu-memory", self.gpu_memory), ("--gpu-flops", self.gpu_flops)):
            if given is not None and not 0 < given < float("inf"):
                raise InputError(f"{name} must be a number above 0, got {given}")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise InputError(f"--gpus {self.gpus} is no whole number of nodes of {self.gpus_per_node}; change one")

    @property
    def bytes_each(self) -> float:
        """Bytes of a GPU that tensors may fill."""
        return (self.gpu_memory or GPUS[self.gpu].memory) * GIGA * self.memory_share

    @property
    def flops(self) -> float:
        """Operations per second of the whole fleet, at the stated share of peak."""
        return (self.gpu_flops or GPUS[self.gpu].peak) * self.peak_share * self.gpus


SETTINGS = EstimateSettings


@dataclass(frozen=True, kw_only=True)
class EstimatedRun:
    """What one arm takes."""

    arm: str
    parameters: int
    tokens: int
    flops_a_token: float
    """Operations of the forward and backward pass, without those that checkpoints repeat."""
    flops: float
    replicate: int
    """Copies of the model."""
    shard: int
    """GPUs that share a copy."""
    context: int = 1
    """GPUs that share each sequence."""
    tensor: int = 1
    """GPUs that divide the heads."""
    why: str
    sequences: int
    """Of a forward pass of one GPU."""
    passes: int
    """Forward passes of one GPU in a step."""
    weights: int
    """Bytes of a GPU when it holds most; ``weights`` to ``gathered`` add up to ``total``."""
    gradients: int
    optimizer: int
    activations: int
    logits: int
    gathered: int
    total: int
    moment: str
    """When that is; see ``formulas.memory``."""
    all_gather: int
    """Bytes that a GPU receives in a step; ``reduce_scatter``, ``all_reduce`` and ``sums``: bytes that it adds up."""
    reduce_scatter: int
    all_reduce: int
    sums: int = 0
    """Of the halves of blocks, whose terms GPUs that divide the heads compute."""
    all_to_all: int = 0
    """Bytes that GPUs which share a sequence exchange."""
    tokens_a_second: float
    days: float


@dataclass(frozen=True, kw_only=True)
class Estimates(Result):
    """What ``antiphase estimate`` finds."""

    rows: list[EstimatedRun]


RESULT = Estimates
