"""Groups of commands that are made when they are asked for: settings of the others are not even imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup


def late_group(
    makers: Mapping[str, Callable[[], Callable[..., None]]], panels: Mapping[str, Sequence[str]] | None = None
) -> type[TyperGroup]:
    """A class of group for typer, with a function per name that makes its command.

    Args:
        panels: names of commands by the heading under which the help shows them, in its order.
    """
    headings = {name: heading for heading, names in (panels or {}).items() for name in names}

    class LateGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            late: dict[str, Any] = dict.fromkeys(makers)
            known = {**late, **self.commands}
            self.commands = {name: known[name] for name in headings or known}

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in self.commands and self.commands[cmd_name] is None:
                app = typer.Typer(add_completion=False, rich_markup_mode="rich")
                app.command(cmd_name, rich_help_panel=headings.get(cmd_name))(makers[cmd_name]())
                self.commands[cmd_name] = typer.main.get_command(app)
            return super().get_command(ctx, cmd_name)

    return LateGroup
