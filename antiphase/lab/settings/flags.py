"""Settings whose fields are flags: name, help, default and bounds are written once, at the field.

The command line builds its options from them, and error messages and journals use the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from antiphase.base.errors import InputError, nearest

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Values of ``--dtype``."""
DTYPE_HELP = f"Number format of the weights: {', '.join(DTYPES)}; default: as stored, float32 for a GGUF file."
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""How accelerate may spread a model over devices; the name of a device is possible too."""


@dataclass(frozen=True)
class Flag:
    """How a field appears on the command line."""

    help: str
    name: str = ""
    """With dashes, or in capitals for a positional argument."""
    least: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()
    separated: bool = False
    """Whether a list is separated by commas instead of repeating the flag."""
    repeated: bool = False
    """Whether a comma-separated list may also be given by repeating the flag."""
    ranges: bool = False
    """Whether ``2-4`` means 2, 3, 4 in a list of whole numbers."""
    default_text: str | None = None
    """Text that the help shows instead of the default."""
    allows_duplicates: bool = False
    """Whether such a list may contain duplicates."""
    alias: str | None = None
    """Another spelling of the flag."""
    places: bool = False
    """Whether it only says where the work is done, which neither its request nor its record keeps."""

    def check(self, value: Any) -> None:
        """
        Raises:
            InputError: a value is out of range or occurs twice.
        """
        listed = list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]
        given = ", ".join(map(str, listed))
        low, high = self.least, self.most
        if low is not None and high is not None:
            if any(not low <= one <= high for one in listed):
                raise InputError(f"{self.name} must lie between {low} and {high}, got {given}")
        elif low is not None and any(not one >= low for one in listed):
            raise InputError(f"{self.name} must be at least {low}, got {given}")
        elif high is not None and any(not one <= high for one in listed):
            raise InputError(f"{self.name} must be at most {high}, got {given}")
        if self.choices and any(one not in self.choices for one in listed):
            wrong = next(one for one in listed if one not in self.choices)
            meant = nearest(str(wrong), self.choices)
            raise InputError(f"{self.name} must be one of {', '.join(self.choices)}, got {wrong!r}{meant}")
        if self.separated and not self.allows_duplicates and len(set(listed)) != len(listed):
            raise InputError(f"{self.name} must not repeat a value, got {given}")


def check_dtype(dtype: str | None) -> None:
    """
    Raises:
        InputError: no number format of this name.
    """
    Flag(DTYPE_HELP, "--dtype", choices=DTYPES).check(dtype)


def flag(help: str, *, default: Any = MISSING, **more: Any) -> Any:
    """A dataclass field that is a flag; ``name`` defaults to the field's name."""
    return field(default=default, metadata={"flag": Flag(help, **more)})


def argument(name: str, help: str) -> Any:
    """A dataclass field that is a positional argument named ``name``."""
    return field(metadata={"flag": Flag(help, name)})


def flags_of(kind: Any) -> dict[str, Flag]:
    """The flags of a dataclass or of an instance, by field."""
    found = {}
    for one in fields(kind):
        own: Flag = one.metadata["flag"]
        found[one.name] = own if own.name else replace(own, name=f"--{one.name.replace('_', '-')}")
    return found


def kept_settings(settings: Any) -> dict[str, Any]:
    """Values by field, without those of flags that only say where the work is done."""
    return {name: getattr(settings, name) for name, own in flags_of(settings).items() if not own.places}


def words_of(settings: Any) -> list[str]:
    """The command line that gives ``kept_settings``, without the command's name and ``--output``."""
    own = {one.name: one for one in fields(settings)}
    arguments, options = [], []
    for name, found in flags_of(settings).items():
        value = getattr(settings, name)
        if value is None or value == own[name].default or found.places:
            continue
        if not found.name.startswith("--"):
            arguments += list(value) if isinstance(value, (list, tuple)) else [value]
        elif isinstance(value, bool):
            options.append(found.name if value else found.name.replace("--", "--no-", 1))
        elif isinstance(value, (list, tuple)):
            listed = [",".join(map(str, value))] if found.separated else value
            options += [f"{found.name}={one}" for one in listed]
        else:
            options.append(f"{found.name}={value}")
    return [*options, *(["--", *map(str, arguments)] if arguments else [])]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of settings: a dataclass of flags."""

    folder: ClassVar[Literal["resumable", "new", "optional"]] = "resumable"
    """What ``--output`` is: a folder that ``--resume`` continues, a folder that must be new, or optional."""
    counted: ClassVar[str] = "parts"
    """The unit that the progress bar counts."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Values that replace the defaults under ``--quick``; empty means that there is no such flag."""

    def check(self) -> None:
        """
        Raises:
            InputError: a value is out of range; the message names the flag.
        """
        for name, own in flags_of(self).items():
            own.check(getattr(self, name))
