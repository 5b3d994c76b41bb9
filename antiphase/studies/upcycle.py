"""Continued training of one softmax model in three forms that begin as the same function: itself, V2, and a control."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from antiphase.config import Preset, load_preset
from antiphase.data.prepare import PreparedData
from antiphase.errors import InputError
from antiphase.models.checkpoints import convert
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.conversion import plan_conversion
from antiphase.records import Record
from antiphase.studies.compare import compare
from antiphase.studies.jobs import Report
from antiphase.training.run_folder import SETTINGS, is_same_content

SEEDS = 3
"""Seeds of the study unless some are given: those after the model's own, whose batches it has seen."""
UPCYCLED: dict[str, dict[str, Any]] = {
    "control": {"attention_type": "differential_v2", "control": True},
    "differential_v2": {"attention_type": "differential_v2"},
}
"""Arms beside the model itself, and how ``convert`` makes them. The control has the heads of V2, but no λ."""


def upcycle_preset(model: str, output: Path, overrides: Sequence[str] = ()) -> Preset:
    """The comparison that continues the training of ``model``: its own settings, then the overrides.

    Raises:
        InputError: no softmax model trained here, settings that cannot be used, or the seed that it was trained with.
    """
    path = Path(model) / SETTINGS
    if not path.is_file() or not (Path(model) / "config.json").is_file():
        raise InputError(f"MODEL {model} is no finished run of antiphase; give the folder of a trained softmax model")
    config = AutoConfig.from_pretrained(model)
    if not isinstance(config, AntiphaseConfig) or config.attention_type != "softmax":
        raise InputError(f"MODEL {model} is no softmax model, and only those can be upcycled")
    trained = load_preset(str(path)).run
    own_seed = trained.training.seed
    arms = {
        "softmax": {"model.attention_type": "softmax", "training.start_from": model},
        **{name: _sizes(plan_conversion(config, **form).config) | {"training.start_from": str(_start(output, name))}
           for name, form in UPCYCLED.items()},
    }  # fmt: skip
    defaults: dict[str, Any] = {
        "description": f"Continued training of {Path(model).name}, a softmax model.",
        "compare.arms": arms,
        "compare.seeds": [own_seed + 1 + index for index in range(SEEDS)],
    }
    if trained.data.source == "text":
        defaults["data.tokenizer"] = model
    preset = load_preset(str(path), [*(f"{key}={json.dumps(value)}" for key, value in defaults.items()), *overrides])
    if own_seed in preset.compare.seeds:
        raise InputError(f"--seeds must not hold {own_seed}: {model} was trained on that seed's batches")
    return preset


def upcycle(
    model: str,
    output: Path,
    preset: Preset,
    *,
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Train the three forms on the same tokens and measure them as ``compare`` does.

    What the upcycled arms start from stays in ``output/start``; all arms compute the same function there.

    Args:
        model: folder of a softmax model trained here.
        output, resume, report, say: as for ``compare``.
        preset: from ``upcycle_preset``.

    Raises:
        InputError, Interrupted: as for ``compare``; also, the text is not that of the model's training any more.
    """

    def begin(data: PreparedData) -> None:
        if data.content is not None and not is_same_content(Path(model), data.content):
            raise InputError(f"the text that {model} was trained on has changed since, or its tokenizer; bring it back")
        for name, form in UPCYCLED.items():
            if not _start(output, name).is_dir():  # written beside and renamed: it is there as a whole
                say(f"upcycling {model} to {name}")
                convert(model, _start(output, name), **form)

    return compare(preset, output, resume=resume, report=report, say=say, begin=begin)


def _start(output: Path, arm: str) -> Path:
    return output / "start" / arm


def _sizes(config: Any) -> dict[str, Any]:
    names = ("attention_type", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {f"model.{name}": getattr(config, name) for name in names}
