"""Every experiment of the Differential Transformer paper with one command: what is asked for, and what is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphase.base.errors import InputError, nearest
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import DeviceSettings
from antiphase.lab.settings.flags import flag
from antiphase.lab.training.execution.settings import ExecutorSettings

PAPER = "paper"
"""The scale that is not run; only what its models would take is reported."""
TITLES = {
    "compare": "training both arms; loss, retrieval and allocation of attention",
    "harness": "downstream tasks (Tables 1 and 8)",
    "scaling": "loss over sizes and tokens (Figure 3)",
    "long-context": "loss by length of context (Figure 4)",
    "needles": "several needles in text, by generation (Table 2, Figure 5)",
    "allocation": "where attention goes, by depth of the answer (Table 3)",
    "many-shot": "learning in context, and the order of examples (Figures 6 and 7)",
    "hallucination": "summaries and answers, judged (Table 4)",
    "outliers": "largest attention logits and hidden states (Table 5)",
    "quantization": "attention logits in few bits (Figure 8)",
    "ablations": "parts removed (Table 6)",
    "cancellation": "what the two maps have in common",
    "throughput": "tokens a second (Table 7)",
}
PARTS = tuple(TITLES)
"""All parts, in the order of the paper's section 3."""
STUDIES = ("compare", "scaling", "ablations")
"""Parts that train, each with a record of its own."""
PAIRED = ("needles", "allocation", "harness")
"""Parts that measure both arms of a seed together."""
OWN = ("tasks", "include_path", "trust_task_code", "judge", "judge_data")
"""Settings of a single part, which may be asked for later, or again with other values."""


@dataclass(frozen=True, kw_only=True)
class ReproduceSettings(ExecutorSettings, DeviceSettings):
    """Repeat the Differential Transformer paper's experiments at any scale, and judge each of its claims.

    tiny is for two cores, small for one large GPU, medium for eight; paper only reports what its 3B models would take.
    Example: [bold]antiphase reproduce --scale tiny --data books/ --output runs/reproduce[/]
    """

    scale: str = flag("Scale: tiny, small, medium or paper.", default="tiny")
    data: Sequence[str] = flag("File, folder or Hub dataset with text. Repeatable.", default=())
    validation: Sequence[str] = flag("Held-out text, as for --data. Repeatable.", default=())
    only: Sequence[str] = flag(
        "Parts to run, e.g. needles,outliers; default: all.", default=(), separated=True, allows_duplicates=True
    )
    tasks: Sequence[str] = flag(
        "Downstream tasks by lm-eval's names, comma-separated.", default=(), separated=True, allows_duplicates=True
    )
    include_path: str | None = flag("Folder with your own tasks.", default=None)
    trust_task_code: bool = flag(
        "Run Python code that comes with tasks: functions, metrics, unsandboxed templates.", default=False
    )
    judge: str | None = flag("Model that judges summaries and answers.", default=None)
    judge_data: Sequence[str] = flag("File with texts to summarise or to ask about. Repeatable.", default=())
    devices: int = flag("Number of GPUs in the fleet for --scale paper.", default=64, least=1)
    device_flops: float = flag("Sustained operations per second of one of these GPUs.", default=4e14)
    settings: Sequence[str] = flag(
        "Override a setting of the preset: KEY=VALUE, e.g. training.steps=200. Repeatable.", name="--set", default=()
    )

    @property
    def chosen(self) -> Sequence[str]:
        """The parts that are asked for."""
        return self.only or PARTS

    @property
    def overrides(self) -> list[str]:
        """KEY=VALUE over the scale's preset."""
        return [*self.settings, *([f"training.device={self.device}"] if self.device != "auto" else [])]

    def kept(self) -> dict[str, Any]:
        """The settings that records and folders keep, under the names used there."""
        return {
            "scale": self.scale, "data": self.data, "validation": self.validation, "parts": self.chosen,
            "settings": self.overrides, **{name: getattr(self, name) for name in OWN},
        }  # fmt: skip

    def missing(self) -> dict[str, str]:
        """Parts that cannot run, and why."""
        needed = {"harness": ("--tasks", self.tasks), "hallucination": ("--judge", self.judge)}
        return {part: f"it needs {name}" for part, (name, given) in needed.items() if not given}

    def check(self) -> None:
        super().check()
        if not self.device_flops > 0:
            raise InputError(f"--device-flops must be above 0, got {self.device_flops}")
        if self.scale == PAPER:
            return
        if not self.data:
            raise InputError("--data is missing: text to train on, a few megabytes at least")
        if unknown := [part for part in self.only if part not in PARTS]:
            raise InputError(f"--only must name some of {', '.join(PARTS)}{nearest(unknown[0], PARTS)}")
        if bool(self.judge) != bool(self.judge_data):
            raise InputError("--judge and --judge-data must be given together")


SETTINGS = ReproduceSettings


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim, what was measured for it, and the verdict; numbers are those of the pairs that are used."""

    claim: str
    source: str
    paper: str
    part: str
    measured: str = ""
    unit: str
    digits: int
    is_share: bool
    lower_is_better: bool
    effect: float | None = None
    """The paper's, differential minus softmax, the smallest of its numbers; None: it has none in this unit."""
    verdict: str = ""
    """``agrees``, ``disagrees`` or ``cannot tell``."""
    reason: str = ""
    pairs: int | None = None
    """None: nothing was measured."""
    softmax: float | None = None
    """Mean over seeds."""
    differential: float | None = None
    values: dict[str, list[float | None]] | None = None
    """Arm to one for each seed."""
    difference: float | None = None
    """Mean of differential minus softmax; None where models either learned or did not."""
    interval: list[float] | None = None
    """95 %."""
    detectable: float | None = None
    """The difference that is seen with a power of 80 % (MDE)."""
    differences: list[float] | None = None
    seeds: int | None = None
    """Number of seeds with a difference."""
    learned: dict[str, list[int]] | None = None
    """Arm to how many seeds learned, and of how many."""
    line: float | None = None
    """Above which a model has learned."""
    floor: float | None = None
    """What a guess scores."""

    def spoken(self, value: float | None, *, signed: bool = False) -> str:
        """A value with the claim's digits; shares in points."""
        if value is None:
            return "–"
        text = f"{value * (100 if self.is_share else 1):+,.{self.digits}f}"
        if not any(digit in text for digit in "123456789"):
            return text[1:]  # neither +0.0 nor -0.0
        return text if signed else text.removeprefix("+")


@dataclass(frozen=True, kw_only=True)
class NeededForLoss:
    """What the differential arm needs for the loss of the softmax arm's largest run."""

    axis: str
    loss: float
    baseline: float
    needed: float | None
    ratio: float | None
    interval: Sequence[float] | None = None
    """95 % of the ratio over seeds; None for one seed."""


@dataclass(frozen=True)
class Models:
    """What the paper's models have to be told apart from."""

    parameters: dict[str, int]
    """Number of parameters by arm."""
    sequence_length: int
    tokens: int
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Reproduction(Result):
    """What ``antiphase reproduce`` finds."""

    scale: str = ""
    parts: dict[str, list[str]] = field(default_factory=dict)
    """Folders of their records."""
    claims: list[Judgement] = field(default_factory=list)
    equal_loss: list[NeededForLoss] = field(default_factory=list)
    models: Models | None = None
    unjudged: str = ""
    """What was measured without a verdict."""


RESULT = Reproduction
