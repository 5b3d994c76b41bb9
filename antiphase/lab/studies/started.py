"""Runs that go on from a model's folder: its sizes, its tokenizer, and the text that it was trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named, renamed
from antiphase.lab.settings.presets import ModelSettings, RunSettings, parse_override
from antiphase.lab.text.files import HUB_NAME
from antiphase.lab.text.prepare import seen_text
from antiphase.lab.training.run_folder import runs_behind
from antiphase.lab.training.run_model import STRUCTURE
from antiphase.models.block_fields import ROTATED
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.configuration import AntiphaseConfig

UNDRAWN = ("tokenizer", "cache", "workers", "vocabulary_size", "vocabulary_sample", "vocabulary_seed")
"""Settings of data that do not choose what a batch holds, where a run goes on with the tokenizer of another."""
OF_RUNS = ("kind", "dex_steps", "rope_theta", ROTATED)
"""Settings of a run's model that are no field of a configuration, or do not belong to the weights."""


def model_settings(config: AntiphaseConfig, *, place: str) -> dict[str, Any]:
    """``model.NAME`` of a run whose model has this configuration.

    Raises:
        InputError: the model's RoPE is scaled, which a run cannot set.
    """
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise InputError(f"{place} has a RoPE of type {rope['rope_type']!r}; only a plain one can be trained further")
    names = [field.name for field in dataclasses.fields(ModelSettings) if field.name not in OF_RUNS]
    found = {name: getattr(config, name) for name in names}
    found |= {"rope_theta": rope["rope_theta"], ROTATED: rope.get(ROTATED, 1.0)}
    return {f"model.{name}": value for name, value in found.items()}


def check_sizes(overrides: Sequence[str], config: AntiphaseConfig, place: str) -> None:
    """Check that overrides of a run leave the model that it goes on from as it is; ``place`` names it in messages.

    Raises:
        InputError: they do not; the message names all sizes that differ.
    """
    own = {f"model.{name}": getattr(config, name) for name in STRUCTURE}
    given = [(key, value) for key, value in map(parse_override, overrides) if key in own and _differs(value, own[key])]
    if given:
        named = ", ".join(f"{key}={value} (it has {own[key]})" for key, value in given)
        raise InputError(f"--set cannot change {place}: {named}; leave them out")


def _differs(value: Any, own: Any) -> bool:
    """Whether a value of an override is another one; YAML reads numbers such as 1e-5 as text."""
    if not isinstance(own, float):
        return bool(value != own)
    try:
        return float(value) != own
    except (TypeError, ValueError):
        return False  # no number, which is refused as such


def overrides_from(folder: str, further: Sequence[str] = (), *, field: str) -> list[str]:
    """``KEY=VALUE`` that make a preset's run go on from the model in ``folder``; ``field`` gave it.

    Raises:
        InputError: it is no model of this package, or has settings that a run cannot have; or overrides that follow,
            ``further``, give it other sizes.
    """
    with renamed({"source": field}):
        source = Checkpoint(folder)
        config = source.config
        if isinstance(config, AntiphaseConfig):
            source.check_dtypes()
    if not isinstance(config, AntiphaseConfig):
        raise InputError(
            f"{named(field, folder)} is a model of type {config.model_type!r}; give what this writes: antiphase "
            f"convert {folder} NEW --to antiphase"
        )
    check_sizes(further, config, f"the model of {named(field, folder)}")
    settings = model_settings(config, place=named(field, folder))
    settings |= {"training.start_from": folder, "data.tokenizer": folder}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def check_unseen(run: RunSettings) -> None:
    """Check that the model that a run starts from was not trained on text that the run holds out.

    That is known of models trained here, and of those that these started from. Files that are gone are not looked at.

    Raises:
        InputError: it was.
    """
    data = run.data
    if data.source != "text" or run.training.start_from is None:
        return
    for start, before in runs_behind(run.training.start_from, field="training.start_from"):
        trained = before.data
        split = ("paths", "validation_share", "sequence_length", "validation")
        is_same_split = all(getattr(trained, name) == getattr(data, name) for name in split)
        if trained.source == "text" and not is_same_split:
            named = "--validation" if data.validation else "--data"
            there = [text for text in trained.paths if _is_there(text)]
            if found := seen_text(there, data.validation or data.paths, field=f"data.paths of {start}"):
                share = "" if data.validation else ", and a share of it would be held out"
                raise InputError(
                    f"{named} {found[0]}: that model was trained on it{share}; give --validation text on which it was "
                    "not trained"
                )


def repeated_batches(run: RunSettings) -> list[str]:
    """In words, that a run reads again what its start was trained on: the seed chooses the order of the same text."""
    first = run.training.start_from
    for start, before in () if first is None else runs_behind(first, field="training.start_from"):
        there, here = (
            {**asdict(one.data), **dict.fromkeys(UNDRAWN), "seed": one.training.seed, "batch": one.training.batch_size}
            for one in (before, run)
        )
        if there == here:
            return [
                f"the batches of {start} come again, in the same order, because training.seed ({run.training.seed}) "
                "is its too; give another"
            ]
    return []


def _is_there(text: str) -> bool:
    """Whether text that was trained on can be looked at: a file, a folder or the name of a Hub dataset."""
    path = Path(text).expanduser()
    return path.exists() or (HUB_NAME.fullmatch(text) is not None and not path.parent.is_dir())
