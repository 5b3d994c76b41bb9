"""Every experiment of the Differential Transformer paper with one command: what is asked for, and what is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.errors import InputError, nearest
from antiphase.evaluations.settings import DeviceSettings
from antiphase.flags import flag

PAPER = "paper"
"""The scale that is not run: what its models would take is told."""
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
    "ablations": "parts taken away (Table 6)",
    "cancellation": "what the two maps have in common",
    "throughput": "tokens a second (Table 7)",
}
PARTS = tuple(TITLES)
"""In the order of the paper's section 3."""
STUDIES = ("compare", "scaling", "ablations")
"""Parts that train, each with a record of its own."""
PAIRED = ("needles", "allocation", "harness")
"""Parts that measure both arms of a seed together."""
OWN = ("tasks", "include_path", "trust_task_code", "judge", "judge_data")
"""Settings that concern one part alone, which may be asked for later, or again with other values."""


@dataclass(frozen=True, kw_only=True)
class ReproduceSettings(DeviceSettings):
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
        """What records and folders keep of them, by the names there."""
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
