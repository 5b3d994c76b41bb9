"""Commands made from settings: an option for each field, with the field's name, help and default."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Annotated, Any

import typer

from antiphase.cli.options import OutputOption, ResumeOption, numbers
from antiphase.flags import Flag, Settings, flags_of

Run = Callable[..., None]
"""Called with the settings, and with ``output`` and ``resume``."""


def command_of(kind: type[Settings], run: Run) -> Callable[..., None]:
    """A function that typer makes a command of; its help is the docstring of the settings."""
    hints = typing.get_type_hints(kind)
    own = {field.name: field for field in fields(kind)}
    options = {name: _Option(field, hints[name], flags_of(kind)[name]) for name, field in own.items()}

    def command(**given: Any) -> None:
        output, resume = given.pop("output"), given.pop("resume")
        run(kind(**{name: options[name].read(value) for name, value in given.items()}), output=output, resume=resume)

    parameters = {name: option.parameter() for name, option in options.items()}
    first = [name for name, option in options.items() if option.is_argument]
    last = [name for name in ("seed", "device") if name in parameters]
    middle = [name for name in parameters if name not in (*first, *last)]
    ordered = [
        *(parameters[name] for name in first),
        _parameter("output", OutputOption),
        *(parameters[name] for name in (*middle, *last)),
        _parameter("resume", ResumeOption, default=False),
    ]
    command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {one.name: one.annotation for one in ordered}
    command.__doc__ = inspect.cleandoc(kind.__doc__ or "")
    return command


class _Option:
    """One field as typer knows it."""

    def __init__(self, field: Field[Any], hint: Any, flag: Flag) -> None:
        self.field, self.flag = field, flag
        kinds = [part for part in (typing.get_args(hint) or (hint,)) if part is not NoneType]
        is_list = typing.get_origin(hint) not in (None, typing.Union) and issubclass(typing.get_origin(hint), Sequence)
        self.kind = kinds[0]
        self.is_repeated = is_list and not flag.separated
        self.is_argument = not flag.name.startswith("--")

    def parameter(self) -> inspect.Parameter:
        flag, default = self.flag, self.field.default
        if self.is_argument:
            argument = typer.Argument(metavar=flag.name, help=flag.help)
            kind = list[self.kind] if self.is_repeated else self.kind  # type: ignore[name-defined]  # a type by value
            return _parameter(self.field.name, Annotated[kind, argument])
        shown = default not in (MISSING, None, ())
        names = [flag.name] if flag.alias is None else [flag.name, flag.alias]
        option = typer.Option(*names, help=flag.help, show_default=shown, **self._bounds())
        if default is MISSING:
            needed = list[self.kind] if self.is_repeated else self.kind  # type: ignore[name-defined]  # a type by value
            return _parameter(self.field.name, Annotated[needed, option])
        if self.is_repeated:
            several = list[self.kind] | None  # type: ignore[name-defined]  # a type by value
            return _parameter(self.field.name, Annotated[several, option], default=None)
        if flag.separated:
            assert isinstance(default, tuple)
            text = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in default) or None
            return _parameter(self.field.name, Annotated[str | None, option], default=text)
        kind = self.kind if default is not None else self.kind | None
        return _parameter(self.field.name, Annotated[kind, option], default=default)

    def _bounds(self) -> dict[str, Any]:
        """Those of a seed are the parser's own; others are checked with the settings."""
        return {"min": self.flag.least, "max": self.flag.most} if self.field.name == "seed" else {}

    def read(self, value: Any) -> Any:
        """What the field holds for what the command line gave."""
        if self.flag.separated:
            return () if value is None else numbers(self.flag.name, value, self.kind)
        return (value or ()) if self.is_repeated else value


def _parameter(name: str, annotation: Any, *, default: Any = MISSING) -> inspect.Parameter:
    given = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=annotation)
