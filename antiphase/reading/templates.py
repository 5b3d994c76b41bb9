"""Jinja templates from files: they run no Python, and are stopped when they take too much time or memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from antiphase.reading.limits import BoundError, bounded_work

LARGEST_POWER = 1 << 16
"""Bits of a power: a larger one is computed for minutes, in one step that nothing can stop."""
UNUSABLE = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, NameError)
"""What a template raises besides Jinja's own errors, bounds included; NameError for a number such as 1e400."""


class _BoundedTemplate(Template):
    def render(self, *args: Any, **kwargs: Any) -> str:
        with bounded_work():
            return super().render(*args, **kwargs)


class BoundedTemplates(SandboxedEnvironment):
    """Jinja's sandbox with bounds: no access to Python's own attributes, no endless loops, no texts of gigabytes.

    Raises:
        BoundError: compiling or rendering took too long, or too much memory.
    """

    intercepted_binops = frozenset({"**"})
    template_class = _BoundedTemplate

    def from_string(self, source: Any, *args: Any, **kwargs: Any) -> Template:
        """A template; constants are computed here already."""
        with bounded_work():
            return super().from_string(source, *args, **kwargs)

    def expression(self, source: str) -> Callable[[Mapping[str, Any]], Any]:
        """A function of values by name; None where one is missing."""
        with bounded_work():
            compiled = self.compile_expression(source, undefined_to_none=True)

        def evaluate(values: Mapping[str, Any]) -> Any:
            with bounded_work():
                return compiled(values)

        return evaluate

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A power, unless it is too large."""
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > LARGEST_POWER:
            raise BoundError("a power in it is too large")
        return super().call_binop(context, operator, left, right)


class Templates(ImmutableSandboxedEnvironment, BoundedTemplates):
    """The same, and templates change none of the values that they are given."""
