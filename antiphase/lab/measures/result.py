"""Typed results: measurements write them to records, and tables, figures and notebooks read them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from antiphase.base.errors import InputError
from antiphase.base.records import Record, finite
from antiphase.base.tables import Shown, Table
from antiphase.base.typed import build
from antiphase.lab.catalog import Measurement, every
from antiphase.lab.settings.flags import Settings, kept_settings

if TYPE_CHECKING:
    import numpy

Made = TypeVar("Made")
ENVELOPE = ("model", "arm", "seed", "run")
"""Values of a record that say what was measured; a result may have fields of these names."""


def result_in(values: Mapping[str, Any], kind: type[Made]) -> Made:
    """The result in a record's values, next to which some of ``ENVELOPE`` may stand.

    Raises:
        InputError: a value that the result does not have, or lacks.
    """
    names = {item.name for item in dataclasses.fields(cast(Any, kind))}
    return build(kind, {name: value for name, value in values.items() if name in names or name not in ENVELOPE})


class Result(Shown):
    """Base class of results; an instance prints its tables, and displays them and its figures in a notebook."""

    @classmethod
    def measurement(cls) -> Measurement:
        """The measurement whose folder defines the class."""
        return next(found for found in every() if found.package == cls.__module__)

    @classmethod
    def read(cls, record: Record) -> Self | None:
        """The result in a record; None if the record is of another kind.

        Raises:
            InputError: a record of this kind has invalid contents.
        """
        if record.kind != cls.measurement().kind:
            return None
        return result_in(record.values, cls)

    @classmethod
    def of(cls, record: Record) -> Self:
        """The result in a record of this kind.

        Raises:
            InputError: the record is of another kind, or has invalid contents.
        """
        found = cls.read(record)
        if found is None:
            raise InputError(f"a record is of kind {record.kind} where one of {cls.measurement().kind} was written")
        return found

    @classmethod
    def from_record(cls, make: Callable[[Self], Made]) -> Callable[[Record], Made | None]:
        """Turn a function of the result into one of the record, which gives None for a record of another kind."""

        @functools.wraps(make)
        def made(record: Record) -> Made | None:
            found = cls.read(record)
            return None if found is None else make(found)

        return made

    def record(self) -> Record:
        """A record with only the result, without settings."""
        return Record(kind=self.measurement().kind, values=finite(self))

    def save(
        self,
        output: Path,
        settings: Settings,
        arrays: Mapping[str, numpy.ndarray] | None = None,
        /,
        *,
        seconds: float,
        **config: Any,
    ) -> Record:
        """Write ``record.json`` with the settings and further ``config``, and the arrays beside it.

        Raises:
            InputError: the result could not be read back with its own type.
        """
        given, found = kept_settings(settings), finite(self)
        model = {"model": given["name"]} if "name" in given else {}
        assert found.get("model", given.get("name")) == given.get("name"), "a record's model is the one of its settings"
        seeds = [given["seed"]] if "seed" in given else list(given.get("seeds", []))
        record = Record(
            kind=self.measurement().kind, values={**model, **found},
            config=finite({**config, **given}), seeds=seeds,
            seconds=seconds, arrays=dict(arrays or {}),
        )  # fmt: skip
        self.read(record)
        record.save(output)
        return record

    def tables(self) -> list[Table]:
        from antiphase.lab.pages.summary import main_tables

        return main_tables(self.record())

    def _repr_html_(self) -> str:
        from antiphase.lab.pages.html import fragment

        return fragment(self.record())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedResult(Result):
    """A result that may hold those of other models on the same input."""

    against: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Values of the others' results, by model."""
