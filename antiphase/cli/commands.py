"""Commands made from settings: an option for each field, with the field's name, help and default."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Annotated, Any

import typer

from antiphase.cli.options import (
    JsonOption,
    NewOutputOption,
    OptionalOutputOption,
    OutputOption,
    QuickOption,
    ResumeOption,
    numbers,
    ranges,
)
from antiphase.lab.settings.flags import Flag, Settings, flags_of

Run = Callable[..., None]
"""Called with the settings, and with ``output``, ``resume`` and ``as_json``."""
OUTPUTS = {"resumable": OutputOption, "new": NewOutputOption, "optional": OptionalOutputOption}


def command_of(kind: type[Settings], run: Run) -> Callable[..., None]:
    """A function that typer turns into a command; its help is the docstring of the settings."""
    hints = typing.get_type_hints(kind)
    own = {field.name: field for field in fields(kind)}
    options = {name: _Option(field, hints[name], flags_of(kind)[name], kind.quick) for name, field in own.items()}

    def command(**given: Any) -> None:
        output, resume = given.pop("output"), given.pop("resume", False)
        as_json = given["as_json"] if "as_json" in own else given.pop("as_json")
        replaced = kind.quick if given.pop("quick", False) else {}
        values = {name: options[name].read(value) for name, value in given.items()}
        kept = {name: value for name, value in values.items() if name not in kind.quick or given[name] is not None}
        run(kind(**{**replaced, **kept}), output=output, resume=resume, as_json=as_json)

    parameters = {name: option.parameter() for name, option in options.items()}
    first = [name for name, option in options.items() if option.is_argument]
    last = [name for name in ("seed", "device") if name in parameters]
    middle = [name for name in parameters if name not in (*first, *last)]
    own_flags = flags_of(kind)  # --set, which changes anything else, comes after the flags, and where it is done last
    middle.sort(key=lambda name: (own_flags[name].places, name in ("settings", "changes")))
    ordered = [
        *(parameters[name] for name in first),
        _parameter("output", OUTPUTS[kind.folder], **({"default": None} if kind.folder == "optional" else {})),
        *(parameters[name] for name in middle),
        *([_parameter("quick", QuickOption, default=False)] if kind.quick else []),
        *(parameters[name] for name in last),
        *([] if "as_json" in own else [_parameter("as_json", JsonOption, default=False)]),
        *([_parameter("resume", ResumeOption, default=False)] if kind.folder == "resumable" else []),
    ]
    command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {one.name: one.annotation for one in ordered}
    command.__doc__ = inspect.cleandoc(kind.__doc__ or "")
    return command


class _Option:
    """One field as a parameter of typer."""

    def __init__(self, field: Field[Any], hint: Any, flag: Flag, quick: Mapping[str, Any]) -> None:
        self.field, self.flag, self.quick = field, flag, quick
        if typing.get_origin(hint) is UnionType:
            (hint,) = [part for part in typing.get_args(hint) if part is not NoneType]
        is_list = isinstance(typing.get_origin(hint), type) and issubclass(typing.get_origin(hint), Sequence)
        self.kind = typing.get_args(hint)[0] if is_list else hint
        self.is_repeated = is_list and (flag.repeated or not flag.separated)
        self.is_argument = not flag.name.startswith("--")

    def parameter(self) -> inspect.Parameter:
        flag, default = self.flag, self.field.default
        if self.is_argument:
            argument = typer.Argument(metavar=flag.name, help=flag.help)
            kind = list[self.kind] if self.is_repeated else self.kind  # type: ignore[name-defined]  # a type by value
            return _parameter(self.field.name, Annotated[kind, argument])
        shown = self._shown()
        name = f"{flag.name}/{flag.name.replace('--', '--no-', 1)}" if default is True else flag.name
        names = [name] if flag.alias is None else [name, flag.alias]
        option = typer.Option(*names, help=flag.help, show_default=shown, **self._bounds())
        if default is MISSING:
            one = str if flag.separated else self.kind
            needed = list[one] if self.is_repeated else one  # type: ignore[valid-type]  # a type by value
            return _parameter(self.field.name, Annotated[needed, option])
        if self.is_repeated:
            several = list[self.kind] | None  # type: ignore[name-defined]  # a type by value
            return _parameter(self.field.name, Annotated[several, option], default=None)
        if flag.separated:
            text = None if self.field.name in self.quick else self._text(default) or None
            return _parameter(self.field.name, Annotated[str | None, option], default=text)
        if self.field.name in self.quick:
            default = None
        kind = self.kind if default is not None else self.kind | None
        return _parameter(self.field.name, Annotated[kind, option], default=default)

    def _shown(self) -> bool | str:
        """The default as the help shows it."""
        default = self.field.default
        text = self.flag.default_text if self.flag.default_text is not None else self._text(default)
        if self.field.name in self.quick:
            return f"{text}, --quick {self._text(self.quick[self.field.name])}"
        if self.flag.default_text is not None:
            return self.flag.default_text or False
        if self.is_repeated and self.flag.separated:
            return text
        return default not in (None, (), MISSING)

    def _text(self, value: Any) -> str:
        """A value as it is written on the command line."""
        if isinstance(value, tuple):
            return ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
        return "" if value is None else str(value)

    def _bounds(self) -> dict[str, Any]:
        """Those of a seed are the parser's own; others are checked with the settings."""
        return {"min": self.flag.least, "max": self.flag.most} if self.field.name == "seed" else {}

    def read(self, value: Any) -> Any:
        """The field's value for what the command line gave."""
        if self.flag.separated:
            given = value if isinstance(value, list) else [] if value is None else [value]
            return [one for text in given for one in self._listed(text)] or self.field.default
        return (value or ()) if self.is_repeated else value

    def _listed(self, text: str) -> list[Any]:
        if self.flag.ranges:
            return ranges(self.flag.name, text)
        if self.kind is str:
            return [part.strip() for part in text.split(",")]
        return numbers(self.flag.name, text, self.kind)


def _parameter(name: str, annotation: Any, *, default: Any = MISSING) -> inspect.Parameter:
    given = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=annotation)
