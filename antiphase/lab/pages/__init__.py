"""Records → tables, figures and one self-contained HTML page. Reads records only and never imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphase.lab.pages.figures import save_figures
    from antiphase.lab.pages.html import write_report
    from antiphase.lab.pages.terminal import print_summary

__all__ = ["print_summary", "save_figures", "write_report"]

_HOMES = {"print_summary": "terminal", "save_figures": "figures", "write_report": "html"}


def __getattr__(name: str) -> Any:
    """Public names on first use, so that a terminal table does not pay for matplotlib."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
