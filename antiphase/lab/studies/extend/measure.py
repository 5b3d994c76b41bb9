"""Longer contexts for a trained model (2410.05258, section 3.3 and figure 4): its weights trained further on longer
sequences, with a raised RoPE base and, if asked for, more of long documents.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named, renamed
from antiphase.lab.settings.presets import RunSettings, kept_run, load_preset
from antiphase.lab.studies.extend import ExtendSettings
from antiphase.lab.studies.plan import Plan
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.training.run_folder import SETTINGS
from antiphase.models.block_fields import ROTATED
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.configuration import AntiphaseConfig

SHARE_OF_STEPS = 10
"""An extension has a tenth of the model's own steps, unless ``training.steps`` says otherwise."""


def plan(settings: ExtendSettings, output: Path) -> Plan:
    """The run that ``extension`` makes of these settings."""
    settings.check()
    run = extension(
        settings.model, length=settings.length, rope_theta=settings.rope_theta, data=settings.data,
        validation=settings.validation, long_share=settings.long_share, overrides=settings.overrides(),
    )  # fmt: skip
    steps = run.training.steps
    words = f"RoPE base {run.model.rope_theta:g}, {steps} steps of {settings.length}-token sequences"
    return Plan(partial(train_run, run), announced=[words], steps=steps)


def extension(
    model: str,
    *,
    length: int,
    rope_theta: float | None = None,
    data: Sequence[str] = (),
    validation: Sequence[str] = (),
    long_share: float | None = None,
    overrides: Sequence[str] = (),
) -> RunSettings:
    """Settings of the run that continues a finished one with sequences of ``length`` tokens.

    They are the model's own but for what is given here. A batch keeps its number of tokens, the learning rate warms up
    and decays anew, and a tenth of the steps is made.

    Args:
        model: folder of a finished run of this package.
        length: tokens, more than the model reads now.
        rope_theta: base of the rotary embedding; None: ``raised_base``.
        data, validation: text to train on and held-out text; empty: the model's own.
        long_share: ``data.long_share``.
        overrides: ``KEY=VALUE``, over all of this.

    Raises:
        InputError: a folder, length or settings that cannot be used; it names the flag.
    """
    config, trained = _finished_run(model)
    before = config.max_position_embeddings
    if length <= before:
        raise InputError(f"--length {length} must be more than the {before} positions that {model} has")
    _check_text(model, trained, data, validation)
    rope = config.rope_parameters
    own = {
        "theta": rope["rope_theta"], "width": int(config.head_dim * rope.get(ROTATED, 1.0)), "ratio": length / before
    }  # fmt: skip
    changes: dict[str, Any] = {
        "description": f"{Path(model).name}, from {before} to {length} tokens.",
        "model.max_position_embeddings": length,
        "model.rope_theta": raised_base(**own) if rope_theta is None else rope_theta,
        "data.sequence_length": length,
        "data.lengths": [],
        "evaluation.lengths": [],
        "training.start_from": model,
        "training.steps": max(1, trained.training.steps // SHARE_OF_STEPS),
        "training.decay_steps": None,
        "training.warmup_steps": min(trained.training.warmup_steps, trained.training.steps // SHARE_OF_STEPS // 2),
        "training.batch_size": max(1, trained.training.batch_size * trained.data.sequence_length // length),
        "training.micro_batch_size": None,
        "model.dex_steps": 0,  # the trained function is that at the end of annealing
    }
    if long_share is not None:
        changes["data.long_share"] = long_share
    if trained.data.source == "text":
        changes["data.tokenizer"] = model
    given = [*(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in changes.items()), *overrides]
    run = load_preset(str(Path(model) / SETTINGS), given, data=data, validation=validation).run
    if run.data.sequence_length != length:
        raise InputError(f"--length {length} sets data.sequence_length; remove it from --set")
    return run


def _finished_run(model: str) -> tuple[AntiphaseConfig, RunSettings]:
    """Configuration and settings of a run that can be continued.

    Raises:
        InputError: the folder is none, or its model has no positions.
    """
    path = Path(model) / SETTINGS
    if not path.is_file() or not (Path(model) / "config.json").is_file():
        raise InputError(
            f"{named('model', model)} is not a finished run of antiphase; continue a converted model with antiphase "
            "train --set training.start_from=FOLDER --set model.rope_theta=BASE"
        )
    with renamed({"source": "model"}):
        source = Checkpoint(model)
        config = source.config
        if isinstance(config, AntiphaseConfig):
            source.check_dtypes()
    if not isinstance(config, AntiphaseConfig):
        raise InputError(f"{named('model', model)} is of type {config.model_type!r}, which has no positions to extend")
    return config, kept_run(path, field="model")


def _check_text(model: str, trained: RunSettings, data: Sequence[str], validation: Sequence[str]) -> None:
    """Check that the run can read the text, and that held-out text is given; ``check_unseen`` looks at its content.

    Raises:
        InputError: it cannot, or no held-out text is known.
    """
    is_text = trained.data.source == "text"
    if data and not is_text:
        raise InputError(f"--data cannot be used: {model} has only the vocabulary of the synthetic task")
    if is_text and not validation and not trained.data.validation:
        raise InputError(
            f"--validation is missing: {model} held out a share of its own text, and a new share could be text that it "
            "was trained on; give text that it was not trained on"
        )


def raised_base(*, theta: float, width: int, ratio: float) -> float:
    """The RoPE base with which the slowest of a map's ``width`` channels turns as far in ``ratio`` times the length.

    Channel pair i turns by theta^(-2i / width) a token; the last has i = width / 2 - 1 ("NTK-aware" scaling).
    """
    return float(round(theta * ratio ** (width / max(1, width - 2))))
