"""Actions that wait for the first configuration of ours, before the Auto classes see it, or for a module's import.

The package registers its models and attention functions in this way, without importing them or transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ACTIONS: list[Callable[[], None]] = []
_AWAITED: dict[str, Callable[[], None]] = {}


def before_first_use(action: Callable[[], None]) -> None:
    """Run ``action`` whenever a configuration is created; it may run several times."""
    _ACTIONS.append(action)


def register_models() -> None:
    """Run the actions; called when a configuration is created and not earlier, see ``antiphase/__init__.py``."""
    for action in _ACTIONS:
        action()


def after_import(module: str, action: Callable[[], None]) -> None:
    """Run ``action`` once, right after the module's code has run; now if it is already imported."""
    if module in sys.modules:
        action()
        return
    _AWAITED[module] = action
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder:
    """Finds awaited modules as the other finders do, and has a loader run the action."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _AWAITED:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # has what a loader has
        return spec


class _Loader:
    """Another loader, with the action behind it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _AWAITED.pop(module.__name__, lambda: None)()


_FINDER = _Finder()
