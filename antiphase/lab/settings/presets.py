"""Settings of a run: YAML presets and ``KEY=VALUE`` overrides, read into typed dataclasses.

An unknown key is an error that names the nearest known one. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, brief, named, nearest
from antiphase.base.files import parse_yaml, read_yaml
from antiphase.base.typed import assign, build, check_bounds, dotted, section
from antiphase.lab.settings.arms import ARMS
from antiphase.lab.settings.schema import (
    SEEDS,
    CompareSettings,
    DataSettings,
    EvaluationSettings,
    MeshSettings,
    ModelSettings,
    Preset,
    RunSettings,
    TrainingSettings,
)

__all__ = [
    "SMALLEST_WEIGHT",
    "CompareSettings",
    "DataSettings",
    "EvaluationSettings",
    "MeshSettings",
    "ModelSettings",
    "Preset",
    "RunSettings",
    "TrainingSettings",
    "arm_run",
    "kept_run",
    "load_preset",
    "preset_names",
    "rows_by_share",
    "to_yaml",
]
SHARED_BY_ARMS = ("training.seed", "training.steps", "training.batch_size", "training.precision", "training.device")
"""Settings, besides data and evaluation, that must be equal in both arms of a fair comparison."""

TELL_ARMS_APART = {"model.attention_type", "model.kind"}
"""Settings that say what an arm's model is."""

SMALLEST_WEIGHT = 0.0001
"""Smallest weight of a source in a mixture; weights are exact to this number."""


def preset_names() -> list[str]:
    """Names of the presets shipped in the package."""
    folder = resources.files("antiphase.lab") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_preset(
    name: str, overrides: Sequence[str] = (), *, data: Sequence[str] = (), validation: Sequence[str] = ()
) -> Preset:
    """Read a preset by name, or a YAML file by path, and apply ``KEY=VALUE`` overrides, those of arms last.

    ``data`` and ``validation`` are the paths of ``--data`` and ``--validation``; with data, a synthetic preset becomes
    a text one, with the changes that the preset lists under ``with_data``.
    """
    return _preset(_read_preset(name), name, overrides, data=data, validation=validation)


def kept_run(path: Path, *, field: str) -> RunSettings:
    """The settings stored in a run's folder; ``field`` gave the folder.

    Raises:
        InputError: the file cannot be read or does not contain such settings.
    """
    remedy = "restore it as the run wrote it"
    tree = read_yaml(path, field, remedy)
    try:
        return _preset(tree, str(path)).run
    except InputError as error:
        raise InputError(f"{named(field, path)}: {error.marked}; {remedy}") from None


def _preset(
    tree: dict[str, Any],
    name: str,
    overrides: Sequence[str] = (),
    *,
    data: Sequence[str] = (),
    validation: Sequence[str] = (),
) -> Preset:
    _spell_out_arms(tree)
    with_data = tree.pop("with_data", {})
    if not isinstance(with_data, Mapping):
        raise InputError(f"with_data in preset '{name}' must map dotted keys to values")
    changes: list[tuple[str, Any]] = []
    if data:
        changes += [("data.source", "text"), ("data.paths", list(data)), ("data.weights", [])]
        changes += [(str(key), value) for key, value in with_data.items()]
    if validation:
        changes.append(("data.validation", list(validation)))
    changes += sorted(map(parse_override, overrides), key=lambda change: change[0].startswith("compare"))
    if any(key.startswith("compare.arms.") for key, _ in changes) and "arms" not in (section(tree, "compare") or {}):
        assign(tree, "compare.arms", CompareSettings().arms)  # changing one arm keeps the others
    known = list(_arms(tree))
    for key, value in changes:
        assign(tree, key, value)
        _forget_in_arms(tree, key)
        if key in ("compare", "compare.arms"):  # all of them, rather than a further one
            _spell_out_arms(tree)
            known = list(_arms(tree))
    _check_new_arms(tree, known)
    compare_tree = tree.pop("compare", {})
    run = build(RunSettings, tree)
    _check_run(run)
    if run.data.validation and run.data.source == "synthetic":
        given = "--validation" if validation else "data.validation"
        raise InputError(f"{given} cannot be used without --data; synthetic runs hold out sequences of their own")
    compare = build(CompareSettings, compare_tree, path="compare")
    compare = dataclasses.replace(
        compare, arms={arm: _named_arm(arm, own, run.model) | dotted(own) for arm, own in compare.arms.items()}
    )
    _check_compare(compare)
    for arm in compare.arms:
        arm_run(run, compare, arm, seed=0)
    return Preset(run=run, compare=compare, name=name)


def parse_override(override: str) -> tuple[str, Any]:
    """The key and the value of ``KEY=VALUE``.

    Raises:
        InputError: it is something else.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise InputError(f"--set {override!r} is not KEY=VALUE, for example --set training.steps=200")
    return key, _parse_value(override, text)


def _arms(tree: dict[str, Any]) -> dict[str, Any]:
    """The arms as they were written; none if that is no mapping, which is refused later."""
    found = (section(tree, "compare") or {}).get("arms")
    return found if isinstance(found, dict) else {}


def _spell_out_arms(tree: dict[str, Any]) -> None:
    """Turn a list of named arms into arms that change nothing else.

    Raises:
        InputError: one has no such name.
    """
    compare = section(tree, "compare") or {}
    if isinstance(arms := compare.get("arms"), list):
        if unknown := [str(arm) for arm in arms if str(arm) not in ARMS]:
            raise InputError(f"a list of compare.arms names {', '.join(ARMS)}, got {unknown[0]!r}")
        compare["arms"] = {str(arm): {} for arm in arms}


def _named_arm(arm: str, own: Mapping[str, Any], model: ModelSettings) -> dict[str, Any]:
    """What an arm of this name changes in the model, unless it says itself what its model is."""
    if arm not in ARMS or TELL_ARMS_APART & dotted(own).keys():
        return {}
    return {f"model.{field}": value for field, value in ARMS[arm](model).items()}


def for_sizes(compare: CompareSettings, before: ModelSettings, model: ModelSettings) -> CompareSettings:
    """The comparison with what names of arms say made anew for a model of other sizes than those ``before``."""
    if model == before:
        return compare
    arms = dict(compare.arms)
    for arm, own in compare.arms.items():
        try:
            made = _named_arm(arm, {}, before)
        except InputError:  # such a model cannot have the arm of this name
            continue
        given = {key for key, value in made.items() if own.get(key) != value}
        if made.keys() <= own.keys() and not given & TELL_ARMS_APART:  # nobody said what its model is
            anew = _named_arm(arm, {}, model)
            arms[arm] = own | {key: anew[key] for key in made.keys() - given}
    return dataclasses.replace(compare, arms=arms)


def _check_new_arms(tree: dict[str, Any], known: Sequence[str]) -> None:
    """Check that arms which overrides have added say what they are, so that a misspelt name makes no new arm.

    Raises:
        InputError: one does not.
    """
    for arm, changes in _arms(tree).items():
        if arm in known or arm in ARMS or not isinstance(changes, Mapping):
            continue
        if not TELL_ARMS_APART & dotted(changes).keys():
            raise InputError(
                f"--set compare.arms.{arm}: there is no such arm{nearest(str(arm), known)}; a new one must set its "
                "model.attention_type or model.kind"
            )


def _forget_in_arms(tree: dict[str, Any], key: str) -> None:
    """Remove an arm's own value for a key: a setting for the whole run applies to every arm."""
    arms = _arms(tree)
    for arm, changes in arms.items():
        if isinstance(changes, dict):
            arms[arm] = {own: value for own, value in dotted(changes).items() if not f"{own}.".startswith(f"{key}.")}


def check_followed(preset: Preset, overrides: Sequence[str]) -> None:
    """Check that every run-wide override has an effect in a study, and leaves its arms different.

    Raises:
        InputError: all arms have their own value, or nothing else told two arms apart.
    """
    keys = [override.partition("=")[0] for override in overrides]
    for key in [key for key in keys if not key.startswith("compare.")]:
        if key == "training.seed":
            raise InputError("--set training.seed: a study takes its seeds from --seeds")
        if all(any(f"{own}.".startswith(f"{key}.") for own in dotted(one)) for one in preset.compare.arms.values()):
            raise InputError(
                f"--set {key} would change nothing, because every arm has its own; set compare.arms.ARM.{key}, with "
                f"ARM one of {', '.join(preset.compare.arms)}"
            )
    if not TELL_ARMS_APART & set(keys):
        return
    found: dict[str, str] = {}
    for arm in preset.compare.arms:
        run = arm_run(preset.run, preset.compare, arm, seed=0)
        trained = run.model.attention_type
        if arm in CompareSettings().arms and trained != arm and run.model.kind == "transformer":
            raise InputError(f"--set lets the arm {arm} train {trained} attention; set compare.arms.{arm}.KEY instead")
        if run.model.kind != "transformer":  # it has no attention
            run = dataclasses.replace(run, model=dataclasses.replace(run.model, attention_type="softmax"))
        other = found.setdefault(repr(run), arm)
        if other != arm:
            raise InputError(f"--set leaves the arms {other} and {arm} equal; set compare.arms.ARM.KEY for one of them")


def arm_run(run: RunSettings, compare: CompareSettings, arm: str, *, seed: int) -> RunSettings:
    """The settings of one arm and seed: the run with the arm's overrides."""
    tree = dataclasses.asdict(run)
    for key, value in dotted(compare.arms[arm]).items():
        assign(tree, key, value)
    settings = build(RunSettings, tree, path=f"compare.arms.{arm}")
    settings = dataclasses.replace(settings, training=dataclasses.replace(settings.training, seed=seed))
    _check_run(settings)
    return settings


def rows_by_share(batch_size: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Number of sequences of a batch for each share; the remainder comes last, under the key "rest".

    Fractions are rounded by the largest-remainder method.
    """
    wanted = {**shares, "rest": max(0.0, 1 - sum(shares.values()))}
    exact = {name: share * batch_size for name, share in wanted.items()}
    rows = {name: int(number + 1e-9) for name, number in exact.items()}
    largest = sorted(wanted, key=lambda name: rows[name] - exact[name])
    for name in largest[: batch_size - sum(rows.values())]:
        rows[name] += 1
    return rows


def to_yaml(settings: RunSettings) -> str:
    """YAML text that ``load_preset`` reads back to equal settings."""
    import yaml

    return yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False)


def _check_run(run: RunSettings) -> None:
    """Check ranges that types cannot express; the message names the field."""
    training, data, evaluation = run.training, run.data, run.evaluation
    for part in ("model", "training", "data", "evaluation"):
        check_bounds(getattr(run, part), part)
    check_bounds(training.mesh, "training.mesh")
    for grid in ("needles", "queries", "lengths"):
        values = getattr(evaluation, grid)
        if any(value < 1 for value in values) or len(set(values)) != len(values):
            raise InputError(f"evaluation.{grid} must be different numbers of at least 1, got {values}")
    if training.decay_steps is not None and training.decay_steps < training.steps:
        raise InputError(
            f"training.decay_steps ({training.decay_steps}) must be at least training.steps ({training.steps})"
        )
    _check_shares(run)
    _check_lengths(run)
    _check_weights(data)
    if len(set(evaluation.depths)) != len(evaluation.depths):
        raise InputError(f"evaluation.depths must not repeat a value, got {evaluation.depths}")
    if any(not 0 <= depth <= 1 for depth in evaluation.depths) or not evaluation.depths:
        raise InputError(f"evaluation.depths must be numbers between 0 and 1, got {evaluation.depths}")
    if run.model.kind != "transformer":
        for name, given in (
            ("training.start_from", training.start_from),
            ("training.gradient_checkpointing", training.gradient_checkpointing),
            ("training.attn_implementation", training.attn_implementation),
            ("training.trained", training.trained != "all"),
            ("training.compile", training.compile),
            ("training.mesh.shard", training.mesh.shard > 1),
            ("training.mesh.context", training.mesh.context > 1),
            ("training.mesh.tensor", training.mesh.tensor > 1),
            ("model.second_map", run.model.second_map),
        ):
            if given:
                raise InputError(f"{name} needs model.kind=transformer, got {run.model.kind}")
    for name, size in (("shard", training.mesh.shard), ("tensor", training.mesh.tensor)):
        if training.trained == "lora" and size > 1:
            raise InputError(f"training.trained=lora cannot divide the weights; remove training.mesh.{name}")
    if training.compile and training.mesh.tensor > 1:
        raise InputError("training.compile does not know divided heads yet; remove it, or training.mesh.tensor")
    if data.sequence_length % training.mesh.context:
        raise InputError(
            f"training.mesh.context={training.mesh.context} does not divide data.sequence_length "
            f"({data.sequence_length}); change one of them"
        )
    if run.model.dex_steps > training.steps:
        raise InputError(
            f"model.dex_steps ({run.model.dex_steps}) must be at most training.steps ({training.steps}): annealing "
            "must end before the model is saved"
        )
    longest = run.model.max_position_embeddings
    if longest is not None and longest < max([data.sequence_length, *evaluation.lengths]):
        raise InputError(
            f"model.max_position_embeddings ({longest}) is shorter than data.sequence_length or evaluation.lengths"
        )


def _check_shares(run: RunSettings) -> None:
    """Check the sum of the shares of a batch."""
    training, data = run.training, run.data
    shares = {name: getattr(data, name) for name in ("needle_share", "label_share", "repeat_share")}
    if sum(shares.values()) > 1 + 1e-9:
        named = ", ".join(f"data.{name} ({share})" for name, share in shares.items())
        raise InputError(f"{named} add up to more than 1")
    for name, rows in rows_by_share(training.batch_size, shares).items():
        share = shares.get(name, 1 - sum(shares.values()))
        if share > 1e-9 and not rows:
            what = f"data.{name} ({share})" if name in shares else f"what the shares of data leave ({share:.3g})"
            raise InputError(
                f"{what} gives no sequence to a batch of {training.batch_size}; raise training.batch_size, or "
                "change the shares"
            )
    _check_long_share(run, rows_by_share(training.batch_size, shares)["rest"])
    for name in ("label_share", "repeat_share"):
        if shares[name] and data.source == "synthetic":
            raise InputError(f"data.{name} needs text: give --data")
    if data.paths and data.source == "synthetic":
        raise InputError("data.paths cannot be used with data.source=synthetic; give --data instead")


def _check_lengths(run: RunSettings) -> None:
    """Check the lengths of retrieval sequences."""
    lengths, longest, parts = run.data.lengths, run.data.sequence_length, run.training.mesh.context
    if not lengths:
        return
    if any(length < 2 for length in lengths) or lengths != sorted(set(lengths)):
        raise InputError(f"data.lengths must increase from at least 2 tokens on, got {lengths}")
    if lengths[-1] != longest:
        raise InputError(f"data.lengths must end with data.sequence_length ({longest}), got {lengths}")
    for length in lengths:
        if longest % length:
            raise InputError(
                f"data.lengths: {length} does not divide data.sequence_length ({longest}); change one of them"
            )
        if length % parts:
            raise InputError(
                f"training.mesh.context={parts} does not divide {length} of data.lengths; change one of them"
            )
    if not run.data.needle_share:
        raise InputError("data.lengths are those of retrieval sequences; raise data.needle_share, or leave them out")


def _check_long_share(run: RunSettings, rows: int) -> None:
    """Check that a batch's sequences of text, ``rows`` of them, have both kinds if the share asks for both."""
    share = run.data.long_share
    if share is None or not 0 < share < 1 or not rows:
        return
    if round(share * rows) in (0, rows):
        kind = "inside one document" if not round(share * rows) else "the rest of the text"
        raise InputError(
            f"data.long_share ({share}) gives no sequence from {kind} to a batch with {rows} of text; raise "
            "training.batch_size, or change data.long_share"
        )


def _check_weights(data: DataSettings) -> None:
    """Check the weights of a mixture of sources."""
    weights = data.weights
    if not weights:
        return
    if len(weights) != len(data.paths):
        raise InputError(
            f"data.weights must hold one number for each --data: {len(weights)} are given for {len(data.paths)}"
        )
    if any(not weight >= SMALLEST_WEIGHT for weight in weights):
        raise InputError(
            f"data.weights must be at least {SMALLEST_WEIGHT}, got {weights}; leave out a --data that is not wanted"
        )
    if abs(sum(weights) - 1) > 1e-6:
        raise InputError(f"data.weights must add up to 1, got {weights}, which add up to {sum(weights):.6g}")
    if not data.validation:
        raise InputError("data.weights needs held-out text of its own; name it with --validation")
    if data.long_share is not None:
        raise InputError("data.weights cannot be used together with data.long_share; leave out one of them")


def _check_compare(compare: CompareSettings) -> None:
    """Check ranges that types cannot express; the message names the field."""
    if not compare.arms:
        raise InputError("compare.arms must not be empty")
    for arm, overrides in compare.arms.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", arm):
            raise InputError(f"compare.arms: {arm!r} cannot be the name of a folder; use letters, digits, +, - and _")
        for key in dotted(overrides):
            if key.split(".")[0] in ("data", "evaluation") or key in SHARED_BY_ARMS:
                raise InputError(f"compare.arms.{arm} must not change {key}: all arms share their data and seeds")
    for pair in compare.also.items():
        if unknown := [arm for arm in pair if arm not in compare.arms]:
            raise InputError(f"compare.also names the arm {unknown[0]!r}; known: {', '.join(compare.arms)}")
        if pair[0] == pair[1]:
            raise InputError(f"compare.also compares the arm {pair[0]!r} with itself; name two arms")
    if not compare.seeds or len(set(compare.seeds)) != len(compare.seeds):
        raise InputError(f"--seeds must be different whole numbers, got {compare.seeds}")
    if any(not SEEDS[0] <= seed <= SEEDS[1] for seed in compare.seeds):
        raise InputError(f"--seeds must lie between {SEEDS[0]} and {SEEDS[1]}, got {brief(compare.seeds)}")
    if not 0 <= compare.threshold < 1:
        raise InputError(f"compare.threshold must be at least 0 and below 1, got {compare.threshold}")
    if compare.processes is not None and compare.processes < 1:
        raise InputError(f"compare.processes must be at least 1, got {compare.processes}")


def _read_preset(name: str) -> dict[str, Any]:
    if Path(name).suffix in (".yaml", ".yml"):
        return read_yaml(name, "preset", "give a YAML mapping with model, data and training")
    if name not in preset_names():
        raise InputError(f"--preset {name}: unknown preset{nearest(name, preset_names())}")
    text = (resources.files("antiphase.lab") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    shipped: dict[str, Any] = parse_yaml(text, named("preset", name), "install antiphase again")
    return shipped


def _parse_value(override: str, text: str) -> Any:
    return parse_yaml(text, f"--set {override[:80]!r}", "write it as KEY=VALUE") if text else ""
