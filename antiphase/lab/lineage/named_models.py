"""Named models of a command: which ones are selected, and how ``--set`` changes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from antiphase.base.errors import InputError, nearest
from antiphase.base.files import parse_yaml
from antiphase.base.typed import build
from antiphase.lab.lineage.models.configs import ClassicConfig
from antiphase.lab.lineage.training.epochs import EpochTraining
from antiphase.lab.settings.naming import naming
from antiphase.lab.training.execution.settings import ExecutorSettings


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model's configuration, except for fields given by the data, and its training settings."""

    given_by_data: ClassVar[Mapping[str, Any]]
    """Fields of the configuration that ``--set`` cannot change, with values for checking the other fields."""

    config: type[ClassicConfig]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    training: EpochTraining

    def settings(self) -> dict[str, Any]:
        """Every setting, for the record."""
        return {"model_type": self.config.model_type, **self.sizes, **asdict(self.training)}


M = TypeVar("M", bound=NamedModel)
R = TypeVar("R", bound=ExecutorSettings)


def chosen_models(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    known: Mapping[str, M],
    flag: str = "--model",
    ruled: Mapping[str, str] | None = None,
) -> dict[str, M]:
    """The models selected by ``flag``, changed by ``--set FIELD=VALUE`` (all of them) or ``MODEL.FIELD=VALUE`` (one).

    Args:
        ruled: fields that ``--set`` cannot change here, with what decides them instead.

    Raises:
        InputError: a name or field is unknown or decided otherwise, or a value is invalid.
    """
    if not names:
        raise InputError(f"{flag} is missing: one of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise InputError(f"{flag} {name}: there is no such model{nearest(name, known)}")
    if len(set(names)) < len(names):
        raise InputError(f"{flag} must not name a model twice, got {', '.join(names)}")
    changes: dict[str, dict[str, Any]] = {name: {} for name in names}
    for one in settings:
        key, equals, text = one.partition("=")
        model, dot, setting = key.strip().rpartition(".")
        if not equals or not setting:
            example = f"{names[0]}.dropout=0.4"
            raise InputError(f"--set {one!r} must be FIELD=VALUE or MODEL.FIELD=VALUE, such as {example}")
        if dot and model not in names:
            raise InputError(f"--set {one}: '{model}' is not one of the chosen models ({', '.join(names)})")
        if setting in (ruled or {}):
            raise InputError(f"--set {setting}: in this study it is {(ruled or {})[setting]}")
        for name in [model] if dot else names:
            changes[name][setting] = _value(one, text)
    return {name: _changed(known[name], changes[name]) for name in names}


def alone(request: R, name: str, seed: int) -> R:
    """The request of ``classify`` or ``translate`` for one of its models with one of its seeds."""
    given: Sequence[str] = vars(request)["settings"]
    own = [one for one in given if one.partition("=")[0].strip().rpartition(".")[0] in ("", name)]
    return type(request)(**{**vars(request), "models": (name,), "seeds": (seed,), "settings": tuple(own)})


def _value(override: str, text: str) -> Any:
    value = parse_yaml(text, f"--set {override[:80]!r}", "write it as FIELD=VALUE")
    try:
        number = float(value) if isinstance(value, str) else None  # YAML reads 1e-3 as text
    except ValueError:
        number = None
    return value if number is None or not math.isfinite(number) else number


def _changed(model: M, changes: Mapping[str, Any]) -> M:
    trained = {item.name for item in fields(model.training)}
    own = {item.name for item in fields(model.config) if item.name in _own_fields(model.config)}
    known = (own | trained) - model.given_by_data.keys()
    for name in changes:
        if name not in known:
            given = ": the data says it" if name in model.given_by_data else nearest(name, known)
            raise InputError(f"--set {name}: {model.config.model_type} has no setting of this name{given}")
    training = {**asdict(model.training), **{k: v for k, v in changes.items() if k in trained}}
    sizes = {**model.sizes, **{k: v for k, v in changes.items() if k not in trained}}
    with naming({name: f"--set {name}" for name in changes}):
        found = replace(model, sizes=sizes, training=build(type(model.training), training))
        model.config(**{name: value for name, value in model.given_by_data.items() if value is not None}, **sizes)
    return found


def _own_fields(kind: type[ClassicConfig]) -> set[str]:
    """Fields defined by the configuration and its bases here, without those of every model of transformers."""
    return {name for base in kind.__mro__ if issubclass(base, ClassicConfig) for name in base.__annotations__}
