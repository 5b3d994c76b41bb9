"""Measurements and studies, each in its own folder, found by the kind of their records.

A folder has three modules. Its ``__init__`` has ``SETTINGS`` (a class of ``flags.Settings``, whose docstring is the
help of the command) and ``RESULT``, the typed result; ``measure`` needs torch; ``presentation`` has ``PRESENTATION``
and does not need it. The command line and the pages find the folder by its name. The ``measure`` of a study that trains
also has ``plan``, which describes the planned runs (``studies.plan.Plan``).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

PACKAGES = {
    "antiphase.lab.studies": "",
    "antiphase.lab.measures": "evaluate",
    "antiphase.lab.lineage.commands": "",
    "antiphase.lab.lineage.studies": "study",
    "antiphase.lab.studies.calibrate": "calibrate",
}
"""Packages of such folders, and the command that each belongs to; empty if its folders are top-level commands."""
ALONE = ("probe", "look")
"""Measurements that are top-level commands."""


@dataclass(frozen=True)
class Measurement:
    """The folder of one measurement."""

    parent: str
    """Package that contains the folder."""
    name: str
    """Name of the command: ``long-context``."""

    @property
    def command(self) -> str:
        """Name with its parent command: ``evaluate long-context``, ``classify``."""
        group = "" if self.name in ALONE else PACKAGES[self.parent]
        return f"{group} {self.name}".strip()

    @property
    def kind(self) -> str:
        """Kind of its records: ``evaluate-long-context``, ``classify``."""
        return self.command.replace(" ", "-")

    @property
    def package(self) -> str:
        return f"{self.parent}.{self.name.replace('-', '_')}"

    @property
    def settings(self) -> type[Any]:
        found: type[Any] = importlib.import_module(self.package).SETTINGS
        return found

    @property
    def result(self) -> type[Any]:
        """The type of its results: a dataclass under ``measures.result.Result``."""
        found: type[Any] = importlib.import_module(self.package).RESULT
        return found

    @property
    def presentation(self) -> Any:
        """Tables, figures and text for its records: a ``pages.presentation.Presentation``."""
        return importlib.import_module(f"{self.package}.presentation").PRESENTATION

    @property
    def measure(self) -> ModuleType:
        return importlib.import_module(f"{self.package}.measure")

    @property
    def plan(self) -> Callable[..., Any] | None:
        """Of a study that trains: from settings and an output folder to a ``studies.plan.Plan``; None: other work."""
        found: Callable[..., Any] | None = getattr(self.measure, "plan", None)
        return found

    @property
    def run(self) -> Callable[..., Any]:
        """The function from settings and an output folder to a record: that of ``measure`` with the folder's name."""
        found: Callable[..., Any] = getattr(self.measure, self.name.replace("-", "_"))
        return found


@cache
def measurements(parent: str) -> dict[str, Measurement]:
    """All folders of a package, by name of the command, without those that contain further folders."""
    package = importlib.import_module(parent)
    names = [found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg]
    own = [name.replace("_", "-") for name in names if f"{parent}.{name}" not in PACKAGES]
    return {name: Measurement(parent, name) for name in own}


@cache
def every() -> list[Measurement]:
    """The folders of all packages."""
    return [found for parent in PACKAGES for found in measurements(parent).values()]


def measurement_of(kind: str) -> Measurement | None:
    """The measurement that writes records of this kind; None if it has no folder."""
    return next((found for found in every() if found.kind == kind), None)
