"""What a training step of the forms of a real model costs, against a step of the model as it is.

    antiphase upcycle runs/real-model/smollm2 --data ../shared/data/books/train \\
        --validation ../shared/data/books/validation --seeds 0 --output runs/upcycle-smollm2
    python -m experiments.real_model_steps runs/upcycle-smollm2 --output records/real-model

All forms stand in one process and take steps in turn, so other work on the machine slows all of them. A step is forward
pass, backward pass, clipping and AdamW in fp32, as in ``lab/training/loop.py``, on random tokens.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import antiphase  # noqa: F401  # registers its models
from antiphase.base.errors import InputError
from antiphase.base.records import DEQUANTIZED
from antiphase.lab.settings.presets import TrainingSettings, kept_run
from antiphase.lab.speed.timing import paired_times, ratios
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.optimizer import build_optimizer
from antiphase.lab.training.trained import restrict
from antiphase.models.sources.models import ORIGIN
from tools.script import CONSOLE, script

PLAIN = "softmax"
FORMS: dict[str, tuple[str, Literal["all", "lambda", "lora"]]] = {
    PLAIN: (PLAIN, "all"), "control": ("control", "all"), "differential_v2": ("differential_v2", "all"),
    "lambda": ("differential_v2", "lambda"), "lora": ("differential_v2", "lora"),
}  # fmt: skip
"""What each form starts from in the study, and what of it is trained."""


class Stepper:
    """Takes training steps of one form."""

    def __init__(self, folder: Path, training: TrainingSettings) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
        restrict(self.model, training)
        self.objective, self.optimizer = NextTokenLoss(self.model), build_optimizer(self.model, training)
        self.clip = training.clip

    @property
    def trained(self) -> int:
        """Number of parameters that are trained."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def step(self, ids: Tensor) -> None:
        """One step on token ids (B, L)."""
        (self.objective(ids, ids) / ids[:, 1:].numel()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, error_if_nonfinite=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def measure(chosen: Namespace) -> dict[str, Any]:
    """Time a step of each form.

    Raises:
        InputError: the folder holds no such study.
    """
    study = Path(chosen.study)
    kept = sorted(study.glob(f"{PLAIN}-seed*/run.yaml"))
    if not kept:
        raise InputError(f"{study} is no folder of a study of antiphase upcycle")
    run = kept_run(kept[0], field="study")
    forms = {
        name: Stepper(study / "start" / start, replace(run.training, trained=trained))
        for name, (start, trained) in FORMS.items()
    }
    size = (run.training.batch_size, run.data.sequence_length)
    plain = forms[PLAIN].model.config
    ids = torch.randint(0, plain.vocab_size, size, generator=torch.Generator().manual_seed(0))
    times = paired_times({name: partial(form.step, ids) for name, form in forms.items()}, rounds=chosen.rounds)
    rows: list[dict[str, Any]] = [
        {"form": name, "trained": form.trained, **ratios(times, name, PLAIN)} for name, form in forms.items()
    ]
    for row in rows:
        CONSOLE.print(f"a step of {row['form']}: {row['ratio']:.2f} of one of the model as it is")
    config = {"study": study.name, "sequences": size[0], "tokens": size[1], "threads": torch.get_num_threads(),
              "dtype": "float32"}  # fmt: skip
    if origin := getattr(plain, ORIGIN, None):
        config[DEQUANTIZED] = {"What the runs start from": origin}
    return {"values": {"rows": rows}, "config": config}


def main() -> None:
    """Measure and write the record."""
    options = {"study": "folder of a study of antiphase upcycle", "--rounds": 5}
    script(__doc__, "real-model-steps", measure, options, name="steps")


if __name__ == "__main__":
    main()
