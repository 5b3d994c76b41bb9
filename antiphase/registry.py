"""Measurements and studies in folders of their own, found by the kind of their records.

A folder has three modules. Its ``__init__`` has ``SETTINGS`` (a class of ``flags.Settings``, whose docstring is the
help of the command) and ``RESULT``, the typed result; ``measure`` needs torch; ``presentation`` has ``PRESENTATION``
and does not need it. The command line and the pages find the folder by its name. ``measure`` of work that trains has
``plan``, which makes a ``studies.plan.Plan`` of the settings and the output folder.
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
    "antiphase.studies": "",
    "antiphase.evaluations": "evaluate",
    "antiphase.baselines.commands": "",
    "antiphase.baselines.studies": "study",
    "antiphase.viewer": "",
}
"""Packages of such folders, and the command that each belongs to; empty: its folders are commands of their own."""
ALONE = ("probe",)
"""Evaluations that are commands of their own."""


@dataclass(frozen=True)
class Measurement:
    """A folder."""

    parent: str
    """Package that the folder stands in."""
    name: str
    """Of the command: ``long-context``."""

    @property
    def command(self) -> str:
        """With the one that it belongs to: ``evaluate long-context``, ``classify``."""
        group = "" if self.name in ALONE else PACKAGES[self.parent]
        return f"{group} {self.name}".strip()

    @property
    def kind(self) -> str:
        """Of its records: ``evaluate-long-context``, ``classify``."""
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

    @property
    def run(self) -> Callable[..., Any]:
        """From settings and an output folder to a record: the function in ``measure`` that is called as the folder."""
        found: Callable[..., Any] = getattr(self.measure, self.name.replace("-", "_"))
        return found


@cache
def measurements(parent: str) -> dict[str, Measurement]:
    """All folders of a package, by the name of the command."""
    package = importlib.import_module(parent)
    folders = [found.name for found in pkgutil.iter_modules(package.__path__, f"{parent}.") if found.ispkg]
    names = [folder.rpartition(".")[2].replace("_", "-") for folder in folders if folder not in PACKAGES]
    return {name: Measurement(parent, name) for name in names}


@cache
def every() -> list[Measurement]:
    """The folders of all packages."""
    return [found for parent in PACKAGES for found in measurements(parent).values()]


def measurement_of(kind: str) -> Measurement | None:
    """The measurement that writes records of this kind; None: it has no folder."""
    return next((found for found in every() if found.kind == kind), None)
