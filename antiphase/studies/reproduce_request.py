"""What ``antiphase reproduce`` was asked for: scale, parts, and what they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.config import Preset, load_preset
from antiphase.errors import InputError, naming, nearest
from antiphase.evaluations.hallucination import HallucinationSettings
from antiphase.evaluations.hallucination.measure import check_judged
from antiphase.evaluations.harness import HarnessSettings
from antiphase.evaluations.harness.measure import check_tasks
from antiphase.evaluations.inputs import model_content
from antiphase.folders.contents import digest_of
from antiphase.studies.scales import SCALES

LABELLED_ROWS = 400
"""Of one pairing, from which examples are drawn."""


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


NEEDS = {"harness": "--tasks", "hallucination": "--judge"}
"""Parts that run only where the request has what they need, and the flag that gives it."""


OWN = ("tasks", "include_path", "trust_task_code", "judge", "judge_data")
"""What of a request concerns one part alone, which may be asked for later, or again with other values."""


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """What ``antiphase reproduce`` was asked for."""

    scale: str
    data: Sequence[str]
    """Text to train on."""
    validation: Sequence[str] = ()
    parts: Sequence[str] = PARTS
    settings: Sequence[str] = ()
    """KEY=VALUE over the scale's preset."""
    tasks: Sequence[str] = ()
    """Downstream tasks, by lm-eval's names."""
    include_path: str | None = None
    trust_task_code: bool = False
    """Whether Python that these tasks bring along may run."""
    """Folder with tasks of the user's own, of lm-eval's form."""
    judge: str | None = None
    """Model that judges summaries and answers; a local folder or Hub name."""
    judge_data: Sequence[str] = ()
    """Files with documents and summaries, or contexts, questions and answers."""

    def check(self) -> None:
        """Raise an InputError for a value that cannot be used; it names the flag."""
        if self.scale not in SCALES:
            raise InputError(f"--scale must be one of {', '.join(SCALES)} or paper{nearest(self.scale, SCALES)}")
        if not self.data:
            raise InputError("--data is missing: text to train on, a few megabytes at least")
        for part in self.parts:
            if part not in PARTS:
                raise InputError(f"--only must name some of {', '.join(PARTS)}{nearest(part, PARTS)}")
        if bool(self.judge) != bool(self.judge_data):
            raise InputError("--judge and --judge-data must be given together")
        if self.judge and not SCALES[self.scale].reads_documents:
            raise InputError(
                f"--judge: the models of --scale {self.scale} have too short a context for a text and its summary; "
                "remove it"
            )

    def check_own(self) -> None:
        """Look for what single parts need, before models are trained for hours.

        Raises:
            InputError: a task, judge or file that cannot be used.
        """
        if self.tasks and "harness" in self.parts:
            check_tasks(self.harness())
        if self.judge and "hallucination" in self.parts:
            with naming({"--data": "--judge-data"}):
                check_judged(self.hallucination())

    def missing(self) -> dict[str, str]:
        """Parts that cannot run, and why."""
        given = {"harness": self.tasks, "hallucination": self.judge}
        return {part: f"it needs {flag}" for part, flag in NEEDS.items() if not given[part]}

    def own(self, part: str) -> list[Any]:
        """What concerns one part alone, by content."""
        if part == "harness":
            files = sorted(path for path in Path(self.include_path or "").rglob("*") if path.is_file())
            return [list(self.tasks), digest_of(files) if self.include_path else None]
        if part == "hallucination" and self.judge:
            with naming({"MODEL": "--judge"}):
                return [model_content(self.judge), digest_of([Path(path) for path in self.judge_data])]
        return []

    def harness(self, names: Sequence[str] = ("MODEL",), **more: Any) -> HarnessSettings:
        return HarnessSettings(
            names=names, tasks=list(self.tasks), include_path=self.include_path, trust_task_code=self.trust_task_code,
            **more,
        )  # fmt: skip

    def hallucination(self, name: str = "MODEL", **more: Any) -> HallucinationSettings:
        assert self.judge is not None
        return HallucinationSettings(name=name, data=list(self.judge_data), judge=self.judge, **more)


def scale_preset(request: ReproduceRequest) -> Preset:
    """The preset of a scale with the request's text and changes.

    Raises:
        InputError: a request or setting that cannot be used.
    """
    request.check()
    return load_preset(
        SCALES[request.scale].preset, list(request.settings), data=list(request.data),
        validation=list(request.validation),
    )  # fmt: skip
