"""Jinja templates from files: they run no Python, and are stopped when they take too much time or memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

from jinja2 import Template, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from antiphase.base.limits import BoundError, bounded_work
from antiphase.base.trial import tried

LARGEST_POWER = 1 << 16
"""Bits of a power: a larger one is computed for minutes, in one step that nothing can stop."""
UNUSABLE = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, NameError)
"""What a template raises besides Jinja's own errors, bounds included; NameError for a number such as 1e400."""


PLAIN = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Const, nodes.If,
    nodes.CondExpr, nodes.Concat, nodes.Not, nodes.And, nodes.Or, nodes.Filter, nodes.Test, nodes.Add, nodes.List,
    nodes.Tuple, nodes.Compare, nodes.Operand, nodes.Call, nodes.Slice, nodes.Neg,
)  # fmt: skip
"""Parts of a template that cannot take long: what they build is no longer than the template and the values in it."""
PLAIN_NAMES = {
    "trim", "upper", "lower", "capitalize", "title", "length", "count", "string", "first", "last", "default", "d",
    "defined", "undefined", "none",
}  # fmt: skip
"""Filters and tests whose time is that of reading their value once."""
PLAIN_WITH_CONSTANTS = {"strip", "lstrip", "rstrip", "upper", "lower", "capitalize", "title", "split", "replace"}
"""Methods of texts, and the filter of that name, with constants only."""


class _BoundedTemplate(Template):
    is_plain = False

    def render(self, *args: Any, **kwargs: Any) -> str:
        return _bounded(lambda: super(_BoundedTemplate, self).render(*args, **kwargs), is_plain=self.is_plain)


def _bounded(work: Callable[[], Any], *, is_plain: bool) -> Any:
    """Work within the bounds: in a child process first, unless it cannot take long."""
    if not is_plain:
        return tried(work)
    with bounded_work():
        return work()


def _is_plain(tree: nodes.Node) -> bool:
    """Whether a template or expression reads values and writes them, as most do, and nothing else."""
    if isinstance(tree, (nodes.Filter, nodes.Test, nodes.Call)):
        called = tree.node if isinstance(tree, nodes.Call) else None
        name = called.attr if isinstance(called, nodes.Getattr) else getattr(tree, "name", None)
        has_constants = not (tree.dyn_args or tree.dyn_kwargs) and all(
            isinstance(one, nodes.Const) for one in tree.args
        )
        if not (name in PLAIN_NAMES and called is None) and not (name in PLAIN_WITH_CONSTANTS and has_constants):
            return False
    if isinstance(tree, nodes.Compare):  # two lists of lists may be compared without end
        sides = [isinstance(side, nodes.Const) for side in (tree.expr, *(operand.expr for operand in tree.ops))]
        if not all(map(any, pairwise(sides))):
            return False
    return isinstance(tree, PLAIN) and all(map(_is_plain, tree.iter_child_nodes()))


def _is_one_assignment(tree: nodes.Template) -> bool:
    """As Jinja writes an expression; several could each double a text."""
    only = tree.body[0] if len(tree.body) == 1 else None
    return isinstance(only, nodes.Assign) and _is_plain(only.node)


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
            tree = source if isinstance(source, nodes.Template) else self.parse(source)
            is_plain = _is_plain(tree) or _is_one_assignment(tree)
        made = _bounded(lambda: super(BoundedTemplates, self).from_string(source, *args, **kwargs), is_plain=is_plain)
        made.is_plain = is_plain
        return cast(Template, made)

    def expression(self, source: str) -> Callable[[Mapping[str, Any]], Any]:
        """A function of values by name; None where one is missing."""
        with bounded_work():
            is_plain = _is_plain(Parser(self, source, state="variable").parse_expression())
        compiled = _bounded(lambda: self.compile_expression(source, undefined_to_none=True), is_plain=is_plain)

        def evaluate(values: Mapping[str, Any]) -> Any:
            return _bounded(lambda: compiled(values), is_plain=is_plain)

        return evaluate

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A power, unless it is too large."""
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > LARGEST_POWER:
            raise BoundError("a power in it is too large")
        return super().call_binop(context, operator, left, right)


class Templates(ImmutableSandboxedEnvironment, BoundedTemplates):
    """The same, and templates change none of the values that they are given."""
