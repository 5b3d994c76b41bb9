"""Typed results: what a measurement writes into its record, and what tables, figures and notebooks read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from antiphase.evaluations.settings import DeviceSettings
from antiphase.records import Record, finite
from antiphase.registry import Measurement, every
from antiphase.typed import build

Made = TypeVar("Made")


class Result:
    """Base of the dataclasses in the folders of measurements; one shows itself in a notebook."""

    @classmethod
    def measurement(cls) -> Measurement:
        """The folder that the class stands in."""
        return next(found for found in every() if found.package == cls.__module__)

    @classmethod
    def read(cls, record: Record) -> Self | None:
        """The result that a record holds; None: the record is of something else.

        Raises:
            InputError: a record of this kind that holds something else.
        """
        if record.kind != cls.measurement().kind:
            return None
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # subclasses are dataclasses
        return build(cls, {name: value for name, value in record.values.items() if name in names}, strict=False)

    @classmethod
    def from_record(cls, make: Callable[[Self], Made]) -> Callable[[Record], Made | None]:
        """A function that makes a table or figure of the result, as one of the record; None: the record is of something
        else.
        """

        @functools.wraps(make)
        def made(record: Record) -> Made | None:
            found = cls.read(record)
            return None if found is None else make(found)

        return made

    def record(self) -> Record:
        """A record of the result alone, without settings."""
        return Record(kind=self.measurement().kind, values=finite(self))

    def save(self, output: Path, settings: DeviceSettings, *, seconds: float, **config: Any) -> Record:
        """Write ``record.json`` with the settings, and further ``config``.

        Raises:
            InputError: a result that its own type could not read again.
        """
        given, found = vars(settings), finite(self)
        model = {"model": given["name"]} if "name" in given else {}
        assert found.get("model", given.get("name")) == given.get("name"), "a record's model is the one of its settings"
        seeds = [given["seed"]] if "seed" in given else []
        record = Record(
            kind=self.measurement().kind, values={**model, **found},
            config=finite({**config, **given}), seeds=seeds,
            seconds=seconds,
        )  # fmt: skip
        self.read(record)
        record.save(output)
        return record

    def _repr_html_(self) -> str:
        from antiphase.report.html import fragment

        return fragment(self.record())
