"""Settings whose fields are flags: name, help, default and bounds are written once, at the field.

The command line makes its options from them, checks name the flag, and journals call them by the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from antiphase.errors import InputError, nearest


@dataclass(frozen=True)
class Flag:
    """What a field is on the command line."""

    help: str
    name: str = ""
    """With dashes, or in capitals for an argument without a flag."""
    least: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()
    separated: bool = False
    """Whether a list is written with commas, not by naming the flag again."""
    repeated: bool = False
    """Whether a list with commas may also be given by naming the flag again."""
    ranges: bool = False
    """Whether ``2-4`` stands for 2, 3, 4 in a list of whole numbers."""
    shown: str | None = None
    """What the help says in the place of the default."""
    allows_duplicates: bool = False
    """Whether such a list may hold a value twice."""
    alias: str | None = None
    """Another spelling of the flag."""

    def check(self, value: Any) -> None:
        """
        Raises:
            InputError: a value out of range, or one named twice.
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


def flag(help: str, *, default: Any = MISSING, **more: Any) -> Any:
    """A dataclass field that is a flag; without ``name`` the flag is the field's own name."""
    return field(default=default, metadata={"flag": Flag(help, **more)})


def argument(name: str, help: str) -> Any:
    """A dataclass field that is an argument of the command, called ``name``."""
    return field(metadata={"flag": Flag(help, name)})


def flags_of(kind: Any) -> dict[str, Flag]:
    """The flags of a dataclass or an instance of one, by field."""
    found = {}
    for one in fields(kind):
        own: Flag = one.metadata["flag"]
        found[one.name] = own if own.name else replace(own, name=f"--{one.name.replace('_', '-')}")
    return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of settings: a dataclass of flags."""

    folder: ClassVar[Literal["resumable", "new", "optional"]] = "resumable"
    """What ``--output`` is: a folder that ``--resume`` goes on with, one that must be new, or nothing at all."""
    parts: ClassVar[str] = "parts"
    """What the progress bar counts; empty: there is a bar for each run that is trained."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """What takes the place of the defaults under ``--quick``; empty: there is no such flag."""

    def check(self) -> None:
        """
        Raises:
            InputError: a value out of range; it names the flag.
        """
        for name, own in flags_of(self).items():
            own.check(getattr(self, name))

    def by_flag(self) -> dict[str, Any]:
        """Values by what the command line calls them."""
        return {own.name: getattr(self, name) for name, own in flags_of(self).items()}
