"""Names of fields on the command line: ``--text-field`` for ``text_field``, ``MODEL`` for ``model``."""

from __future__ import annotations

import re

ARGUMENTS = frozenset({"model", "run", "source", "target"})
"""Fields that are positional arguments."""
OTHERS = {"settings": "--set", "as_json": "--json", "text_target": "--target"}
"""Flags that are not called as their fields are."""


def flag_of(field: str) -> str:
    """How the command line names a field; what is no name of a field stays as it is."""
    if field in ARGUMENTS:
        return field.upper()
    return OTHERS.get(field) or (f"--{field.replace('_', '-')}" if re.fullmatch("[a-z][a-z0-9_]*", field) else field)
