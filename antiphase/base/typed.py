"""Conversion of mappings, such as YAML files, to dataclasses: types are checked, and messages give the full key."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from antiphase.base.errors import InputError, brief, nearest

T = TypeVar("T")
LARGEST = 10**30
"""Whole numbers are smaller, and a seed may be any of them."""
OPTIONAL = {"optional": True}
"""Metadata of a dataclass field that a record leaves out where it is None."""


def bounded(
    default: Any = dataclasses.MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """A dataclass field for numbers: at least ``least`` or above ``above``, at most ``most`` or below ``below``."""
    bounds = {"least": least, "above": above, "most": most, "below": below}
    return dataclasses.field(default=default, metadata={"bounds": bounds})


def check_bounds(settings: Any, path: str) -> None:
    """
    Raises:
        InputError: a number is outside the bounds of its field; the message names the field.
    """
    for item in dataclasses.fields(settings):
        value, bounds = getattr(settings, item.name), item.metadata.get("bounds")
        if bounds is None or value is None:
            continue
        least, above, most, below = (bounds[name] for name in ("least", "above", "most", "below"))
        if (
            (least is not None and value < least)
            or (above is not None and value <= above)
            or (most is not None and value > most)
            or (below is not None and value >= below)
        ):
            low, high = (least if above is None else above), (most if below is None else below)
            words = f"be at least {low}" if above is None else f"be above {low}"
            if high is not None:
                words = f"lie between {low} and {high}" if most is not None else f"{words} and below {high}"
            raise InputError(f"{path}.{item.name} must {words}, got {value}")


@functools.cache
def _fields(kind: type[Any]) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """Types and fields of a dataclass, by name."""
    return typing.get_type_hints(kind), {item.name: item for item in dataclasses.fields(kind)}


def build(kind: type[T], tree: Any, path: str = "") -> T:
    """A dataclass from a mapping: types checked, unknown and missing keys refused with their full name."""
    if not isinstance(tree, Mapping):
        raise InputError(f"{path or 'the settings'} must be a mapping of keys to values, got {brief(tree)}")
    hints, fields = _fields(typing.cast(Any, kind))  # a type is hashable, which mypy denies
    values = {}
    for key, value in tree.items():
        full = f"{path}.{key}" if path else str(key)
        if key not in fields:
            raise InputError(f"unknown key '{full}'{nearest(str(key), fields)}")
        values[key] = _coerce(hints[key], value, full)
    for name, item in fields.items():
        if name not in values and item.default is item.default_factory is dataclasses.MISSING:
            raise InputError(f"missing key '{path}.{name}'" if path else f"missing key '{name}'")
    return kind(**values)


def _coerce(hint: Any, value: Any, path: str) -> Any:
    """``value`` as the annotated type, or an error that says what type was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        named = [argument for argument in arguments if typing.get_origin(argument) is Literal]
        if any(value in typing.get_args(argument) for argument in named):
            return value
        others = [argument for argument in arguments if argument is not type(None) and argument not in named]
        alike = [one for one in others if (typing.get_origin(one) in (list, Sequence)) == isinstance(value, list)]
        inner = (alike or others or named)[0]  # a number or a list of numbers, at most
        return _coerce(inner, value, path)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{path} must be one of {', '.join(map(str, arguments))}, got {brief(value)}")
        return value
    if origin in (list, Sequence):
        if not isinstance(value, list):
            raise InputError(f"{path} must be a list, for example {path}=[1,2]; got {brief(value)}")
        return [_coerce(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{path} must be a mapping, got {brief(value)}")
        return {str(key): _coerce(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, path)
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:  # YAML 1.1 reads 4e-3 as a string
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{path} must be a number, got {brief(value)}")
        return number
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return brief(value) if isinstance(value, int) else str(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST:
        raise InputError(f"{path} must have at most 30 digits, got {brief(value)}")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise InputError(f"{path} must be {words.get(hint, hint)}, got {brief(value)}")
    return value


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one mapping of dotted keys; an arm of a preset may be written either way."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def section(tree: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """A section of the settings; None if it is missing.

    Raises:
        InputError: it is a value instead of a section.
    """
    found = tree.get(name)
    if found is not None and not isinstance(found, dict):
        raise InputError(f"key '{name}' is a section; set one of its fields instead of the value {found!r}")
    return found


def assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``tree[a][b] = value`` for the dotted key ``a.b``; unknown keys are found later, by ``build``.

    In an arm of a comparison, dotted overrides are kept as keys: ``compare.arms.softmax.training.steps`` sets
    ``compare["arms"]["softmax"]["training.steps"]``.
    """
    parts = dotted.split(".")
    if parts[:2] == ["compare", "arms"] and len(parts) > 3:
        parts = [*parts[:3], ".".join(parts[3:])]
    for part in parts[:-1]:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise InputError(f"key '{dotted}': '{part}' holds a value, not a section")
        tree = branch
    tree[parts[-1]] = value
