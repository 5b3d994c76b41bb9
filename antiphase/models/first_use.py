"""Actions to run before the Auto classes see a configuration of ours, registered by the module with the models."""

from __future__ import annotations

from collections.abc import Callable

_ACTIONS: list[Callable[[], None]] = []


def before_first_use(action: Callable[[], None]) -> None:
    """Run ``action`` whenever a configuration is created; it may run several times."""
    _ACTIONS.append(action)


def register_models() -> None:
    """Run the actions; called when a configuration is created and not earlier, see ``antiphase/__init__.py``."""
    for action in _ACTIONS:
        action()
