"""Continued training of one softmax model in forms that begin as the same function: itself, V2, a control, and DEX."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from antiphase.attention.calls import AttentionCall
from antiphase.attention.hooks import observed
from antiphase.base.errors import InputError, named, renamed
from antiphase.base.folders.contents import TEXT
from antiphase.base.records import Record
from antiphase.lab.settings.presets import Preset, RunSettings, kept_run, load_preset
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.grid import Grid
from antiphase.lab.studies.jobs import Report
from antiphase.lab.studies.plan import Plan, described
from antiphase.lab.studies.started import check_sizes, model_settings
from antiphase.lab.studies.upcycle import UpcycleSettings
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.run_folder import SETTINGS
from antiphase.models.checkpoints import Checkpoint, convert
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.conversion import plan_conversion

SEEDS = 3
"""Seeds of the study unless some are given: those after the model's own, whose batches it has seen."""
FORMS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "control": {"attention_type": "differential_v2", "control": True},
    "differential_v2": {"attention_type": "differential_v2"},
}
"""Name of each arm, and how ``convert`` makes what it starts from. The control has the heads of V2, but no λ."""
DEX: dict[str, dict[str, Any]] = {"dex": {"attention_type": "dex"}}
"""A further arm on request: the differential extension of every head (2505.16333), annealed over half the steps."""
NORMED = "differential"
V1: dict[str, dict[str, Any]] = {
    "differential_no_norm": {"attention_type": "differential"},
    NORMED: {"attention_type": "differential"},
}
"""Two further arms on request. The head norm of the second takes each token's own size away: another function, which
starts with the mean sizes of the model's heads on ``SIZED`` held-out sequences.
"""
SIZED = 8
CONTINUE = "continue"
"""The preset of models that were not trained here."""
KEPT = (
    "source", "paths", "validation", "validation_share", "text_field", "vocabulary_size", "keys", "numbers", "fillers",
)  # fmt: skip
"""Settings of the data that say what a token means and what was held out; they stay those of the model."""


def plan(settings: UpcycleSettings, output: Path) -> Plan:
    """``upcycle`` with these settings."""
    settings.check()
    more = {**(DEX if settings.dex else {}), **(V1 if settings.v1 else {})}
    text = {"data": settings.data, "validation": settings.validation}
    preset = upcycle_preset(settings.model, output, settings.overrides(), more=more, **text)
    work = partial(upcycle, settings.model, preset=preset, executor=executor_of(settings))
    return Plan.of_runs(work, Grid(preset, output).jobs, [described(preset)])


def upcycle_preset(
    model: str,
    output: Path,
    overrides: Sequence[str] = (),
    *,
    more: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    data: Sequence[str] = (),
    validation: Sequence[str] = (),
) -> Preset:
    """The comparison that continues the training of ``model``: its own settings, then the overrides.

    Its learning rate warms up and decays anew, over the steps of the study. ``more`` are arms to add, of ``DEX`` and
    ``V1``. A model that was not trained here has the settings of the preset ``continue``, and needs ``data``.

    Raises:
        InputError: no softmax model, settings that cannot be used, or the seed that it was trained with.
    """
    with renamed({"source": "model"}):
        source = Checkpoint(model)
        config = plan_conversion(source.config, dtype=source.dtype).config
        source.check_dtypes()
    if not isinstance(config, AntiphaseConfig) or config.attention_type != "softmax":
        raise InputError(f"{named('model', model)} is not a softmax model; only softmax models can be upcycled")
    check_sizes(overrides, config, named("model", model))
    path = Path(model) / SETTINGS
    trained = kept_run(path, field="model") if path.is_file() else None
    if trained is None and not data:
        raise InputError(f"{named('model', model)} was not trained here; give text to train it on with --data")
    arms = {
        name: _sizes(plan_conversion(config, **form).config) | {"training.start_from": str(_start(output, name))}
        for name, form in {**FORMS, **more}.items()
    }
    for name in ("model.head_norm", "model.head_scale"):
        arms.get(NORMED, {}).pop(name, None)
    defaults: dict[str, Any] = model_settings(config, place=named("model", model)) if trained is None else {}
    defaults |= {  # after the sizes, which would replace those of the arms
        "description": f"Continued training of {Path(model).absolute().name}, a softmax model.",
        "training.decay_steps": None,
        "compare.arms": arms,
        "compare.also": {"differential_v2": "control"},
    }
    if trained is not None:
        defaults["compare.seeds"] = [trained.training.seed + 1 + index for index in range(SEEDS)]
    if trained is None or trained.data.source == "text":
        defaults["data.tokenizer"] = str(_start(output, "softmax"))
    given = [*(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in defaults.items()), *overrides]
    preset = load_preset(CONTINUE if trained is None else str(path), given, data=data, validation=validation)
    if trained is not None:
        _check_same_data(preset, trained, model)
    for arm, changes in preset.compare.arms.items():
        if arm in DEX:
            changes.setdefault("model.dex_steps", max(2, preset.run.training.steps // 2))
        if arm not in arms or "training.start_from" not in changes:
            raise InputError(f"compare.arms.{arm} does not start from {model}; arms are {', '.join(arms)}")
    return preset


def upcycle(
    model: str,
    output: Path,
    preset: Preset,
    *,
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
    executor: Executor = LOCAL,
) -> Record:
    """Train the forms on the same tokens and measure them as ``compare`` does.

    What the arms start from stays in ``output/start``, so that a later change of the model's weights does not reach a
    study that continues; all arms compute the same function there.

    Args:
        model: folder of a softmax model trained here.
        output, resume, report, say, executor: as for ``compare``.
        preset: from ``upcycle_preset``.

    Raises:
        InputError, Interrupted: as for ``compare``; also, the text is no longer that of the model's training.
    """

    def begin() -> None:
        for leftover in (output / "start").glob(".*.tmp"):  # of a conversion that was killed
            shutil.rmtree(leftover)
        for name in preset.compare.arms:
            form = {**FORMS, **DEX, **V1}[name]
            if not _start(output, name).is_dir():  # written to a temporary folder and renamed, so it appears whole
                say(f"making the start of {name} from {model}")
                if name == NORMED:  # its tokenizer is that of the first start
                    data = prepare(preset.run.data, output / "tokens", progress=say)
                    form = form | {"head_sizes": head_sizes(model, data.validation(SIZED).input_ids)}
                with renamed({"source": "model"}):
                    convert(model, _start(output, name), **form)
        content = Path(model) / TEXT
        if content.is_file() and not (output / TEXT).is_file():
            shutil.copyfile(content, output / TEXT)  # compare refuses any other text from now on

    return compare(preset, output, resume=resume, report=report, say=say, begin=begin, executor=executor)


def _check_same_data(preset: Preset, trained: RunSettings, model: str) -> None:
    """
    Raises:
        InputError: tokens would have another meaning than in the model's training, or text of it would be held out.
    """
    if trained.training.seed in preset.compare.seeds:
        raise InputError(f"--seeds must not hold {trained.training.seed}: {model} was trained on that seed's batches")
    data = preset.run.data
    kept = [*KEPT, "sequence_length"] if data.source == "text" and not data.validation else KEPT
    for name in kept:
        before, now = getattr(trained.data, name), getattr(data, name)
        if before != now:
            raise InputError(f"data.{name} must stay {before!r}, with which {model} was trained, got {now!r}")


def _start(output: Path, arm: str) -> Path:
    return output / "start" / arm


@torch.no_grad()
def head_sizes(folder: str, input_ids: Tensor) -> list[list[float]]:
    """The RMS of each head's outputs in each layer of a softmax model, mean over tokens."""
    found: list[list[float]] = []
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def size(call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        found.append(heads.square().mean(-1).sqrt().mean((0, 1)).tolist())

    with observed(model.eval(), size, once=True):
        model.base_model(input_ids=input_ids, use_cache=False)
    return found


def _sizes(config: Any) -> dict[str, Any]:
    names = ["attention_type", "num_attention_heads", "num_key_value_heads", "head_dim", "dex_heads"]
    names += ["head_norm", "head_scale"] if config.attention_type == NORMED else []
    return {f"model.{name}": getattr(config, name) for name in names}
