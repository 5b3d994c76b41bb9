"""What must be done before the Auto classes meet a configuration of ours; who knows the models hands it in."""

from __future__ import annotations

from collections.abc import Callable

_ACTIONS: list[Callable[[], None]] = []


def before_first_use(action: Callable[[], None]) -> None:
    """Have ``action``, which may be repeated, done whenever a configuration is made."""
    _ACTIONS.append(action)


def register_models() -> None:
    """Before the Auto classes can meet a configuration, and not earlier: see ``antiphase/__init__.py``."""
    for action in _ACTIONS:
        action()
