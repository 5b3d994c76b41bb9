"""Measurements in folders of their own, found by the kind of their records.

A folder has three modules. Its ``__init__`` has ``SETTINGS`` (a class of ``flags.Settings``, whose docstring is the
help of the command) and ``RESULT``, the typed result; ``measure`` needs torch; ``presentation`` has ``PRESENTATION``
and does not need it. The command line and the pages find the folder without its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

GROUPS = {"evaluate": "antiphase.evaluations", "": "antiphase.evaluations"}
"""Packages of such folders, by the command that they belong to; none: each is a command itself."""
ALONE = ("probe",)
"""Names of those that are commands themselves."""


@dataclass(frozen=True)
class Measurement:
    """A folder."""

    group: str
    name: str
    """Of the command: ``long-context``."""

    @property
    def command(self) -> str:
        """With the one that it belongs to."""
        return f"{self.group} {self.name}".strip()

    @property
    def kind(self) -> str:
        """Of its records."""
        return self.command.replace(" ", "-")

    @property
    def package(self) -> str:
        return f"{GROUPS[self.group]}.{self.name.replace('-', '_')}"

    @property
    def settings(self) -> type[Any]:
        found: type[Any] = importlib.import_module(self.package).SETTINGS
        return found

    @property
    def result(self) -> type[Any]:
        """What its records hold: a dataclass under ``evaluations.result.Result``."""
        found: type[Any] = importlib.import_module(self.package).RESULT
        return found

    @property
    def presentation(self) -> Any:
        """Tables, figures and words for its records: a ``report.presentation.Presentation``."""
        return importlib.import_module(f"{self.package}.presentation").PRESENTATION

    @property
    def measure(self) -> ModuleType:
        return importlib.import_module(f"{self.package}.measure")


@cache
def measurements(group: str) -> dict[str, Measurement]:
    """All folders of a group, by the name of the command."""
    package = importlib.import_module(GROUPS[group])
    names = [found.name.replace("_", "-") for found in pkgutil.iter_modules(package.__path__) if found.ispkg]
    return {name: Measurement(group, name) for name in names if (name in ALONE) == (group == "")}


def every() -> list[Measurement]:
    """The folders of all groups."""
    return [found for group in GROUPS for found in measurements(group).values()]


def measurement_of(kind: str) -> Measurement | None:
    """The measurement that writes records of this kind; None: it has no folder."""
    return next((found for found in every() if found.kind == kind), None)
