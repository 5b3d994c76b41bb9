"""Groups of commands that are made when they are asked for: settings of the others are not even imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup


def late_group(makers: Mapping[str, Callable[[], Callable[..., None]]]) -> type[TyperGroup]:
    """A class of group for typer, with a function per name that makes its command; other commands come behind them."""

    class LateGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            late: dict[str, Any] = dict.fromkeys(makers)
            self.commands = {**late, **self.commands}

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in self.commands and self.commands[cmd_name] is None:
                app = typer.Typer(add_completion=False, rich_markup_mode="rich")
                app.command(cmd_name)(makers[cmd_name]())
                self.commands[cmd_name] = typer.main.get_command(app)
            return super().get_command(ctx, cmd_name)

    return LateGroup
