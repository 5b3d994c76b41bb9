"""Merges definitions from the modules of a package into one file: the given ones, and all that they use.

Definitions keep their text, comments included; modules follow each other as they import each other.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

Place = tuple[str, str]
"""Module and name of a definition."""
WIDTH = 120


@dataclass
class Source:
    """The definitions and imports of a module."""

    name: str
    lines: list[str]
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    """Statements by the name that they define; the text in quotes behind a variable belongs to it."""
    own: dict[str, Place] = field(default_factory=dict)
    """What is imported from the package, by its name here."""
    foreign: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Module and import clause of what is imported from elsewhere, by its name here."""

    @classmethod
    def of(cls, name: str, package: str) -> Source:
        """Read a module."""
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text(encoding="utf-8")
        found = cls(name, text.splitlines())
        last: list[ast.stmt] | None = None
        for node in ast.parse(text).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found._read_import(node, package)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.definitions[node.name] = [node]
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                last = [node]
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.definitions |= {target.id: last for target in targets if isinstance(target, ast.Name)}
                continue
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last is not None:
                last.append(node)
            last = None
        return found

    def _read_import(self, node: ast.Import | ast.ImportFrom, package: str) -> None:
        for alias in node.names:
            local = alias.asname or alias.name
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
                self.own[local] = (str(node.module), alias.name)
            else:
                clause = alias.name + (f" as {alias.asname}" if alias.asname else "")
                self.foreign[local] = (node.module or "" if isinstance(node, ast.ImportFrom) else "", clause)


class Merger:
    """Collects what some definitions need.

    Args:
        package: name of the package whose modules are merged; what they import from elsewhere stays an import.
        replaced: definitions, as "module.name", that others stand in for.
        dropped: methods, as "module.Class.method", that are left out, and functions whose calls are, where such a call
            is a whole statement.
    """

    def __init__(self, package: str, replaced: Mapping[str, str], dropped: Iterable[str]) -> None:
        self.package, self.replaced, self.dropped = package, replaced, frozenset(dropped)
        self.sources: dict[str, Source] = {}
        self.wanted: dict[Place, None] = {}
        self.imports: dict[str, set[str]] = {}
        self.aliases: dict[str, dict[str, Place]] = {}

    def add(self, roots: Iterable[Place]) -> None:
        """Collect definitions, with all that they use."""
        waiting = [*roots]
        while waiting:
            place = waiting.pop()
            if place not in self.wanted:
                self.wanted[place] = None
                waiting += self._used(*place)

    def _source(self, module: str) -> Source:
        if module not in self.sources:
            self.sources[module] = Source.of(module, self.package)
        return self.sources[module]

    def _used(self, module: str, name: str) -> Iterator[Place]:
        source = self._source(module)
        if name not in source.definitions:
            raise LookupError(f"{module} does not define {name}")
        for used in sorted({node.id for node in self._names(module, name)}):
            place = self._found(source, used)
            if place is not None:
                yield place
            elif used in source.foreign:
                origin, clause = source.foreign[used]
                self.imports.setdefault(origin, set()).add(clause)

    def _found(self, source: Source, used: str) -> Place | None:
        """The definition of a name in a module, or what stands in for it."""
        place = (source.name, used) if used in source.definitions else source.own.get(used)
        if place is None:
            return None
        if ".".join(place) in self.replaced:
            module, _, name = self.replaced[".".join(place)].rpartition(".")
            place = module, name
        if place[1] != used:
            self.aliases.setdefault(source.name, {})[used] = place
        return place

    def _names(self, module: str, name: str) -> Iterator[ast.Name]:
        """The names in a definition, without those of dropped parts."""
        left_out = {id(node) for part in self._left_out(module, name) for node in ast.walk(part)}
        for statement in self._source(module).definitions[name]:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and id(node) not in left_out:
                    yield node

    def _left_out(self, module: str, name: str) -> Iterator[ast.stmt]:
        source = self._source(module)
        for node in (inner for statement in source.definitions[name] for inner in ast.walk(statement)):
            if isinstance(node, ast.FunctionDef) and f"{module}.{name}.{node.name}" in self.dropped:
                yield node
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                place = source.own.get(function.id) if isinstance(function, ast.Name) else None
                if place is not None and ".".join(place) in self.dropped:
                    yield node

    # ------------------------------------------------------------------------------------------ writing

    def text(self) -> str:
        """Imports, then the definitions module by module."""
        parts = [self._import_lines()]
        names = self._final_names()
        for module in self._ordered({module for module, _ in self.wanted}):
            parts.append(f"# {'-' * (WIDTH - 4 - len(module))} {module}")
            source = self._source(module)
            for local, place in sorted(self.aliases.get(module, {}).items()):
                parts.append(f"{local} = {names[place]}")
            written: set[int] = set()
            for name, statements in source.definitions.items():
                if (module, name) in self.wanted and id(statements) not in written:
                    written.add(id(statements))
                    parts.append(self._definition(module, name, names))
        return _spaced(parts)

    def _final_names(self) -> dict[Place, str]:
        """Names in the file: their own; a constant's with that of its module where an earlier one has taken it."""
        found: dict[Place, str] = {}
        for module in self._ordered({module for module, _ in self.wanted}):
            for name in self._source(module).definitions:
                if (module, name) in self.wanted:
                    taken = name in found.values()
                    if taken and not name.isupper():
                        raise LookupError(f"two definitions have the name {name}; one of them is in {module}")
                    found[module, name] = f"{name}_{module.rpartition('.')[2].upper()}" if taken else name
        return found

    def _ordered(self, modules: set[str]) -> list[str]:
        """Modules, each behind those that it imports.

        One that stands in for others may come before what it imports, which it uses only inside functions.
        """
        done: dict[str, None] = {}
        standing_in = {place.rpartition(".")[0] for place in self.replaced.values()}

        def visit(module: str) -> None:
            if module in done:
                return
            if module not in standing_in:
                for place in [*self._source(module).own.values(), *self.aliases.get(module, {}).values()]:
                    if place[0] in modules and place[0] != module:
                        visit(place[0])
            done[module] = None

        for module in sorted(modules):
            visit(module)
        return [*done]

    def _definition(self, module: str, name: str, names: Mapping[Place, str]) -> str:
        """The text of a definition, with the comment above it and without dropped parts."""
        source = self._source(module)
        statements = source.definitions[name]
        first, last = _first_line(statements[0]), statements[-1].end_lineno or 0
        while source.lines[first - 2].startswith("#") and first > 1:
            first -= 1
        lines = {number: source.lines[number - 1] for number in range(first, last + 1)}
        if names[module, name] != name:
            head = statements[0].lineno
            lines[head] = lines[head].replace(name, names[module, name], 1)
        edits = [
            (node, names[place])
            for node in self._names(module, name)
            if (place := (module, node.id)) in names and names[place] != node.id and isinstance(node.ctx, ast.Load)
        ]
        for node, new in sorted(edits, key=lambda edit: -edit[0].col_offset):
            start = len(lines[node.lineno].encode()[: node.col_offset].decode())
            lines[node.lineno] = lines[node.lineno][:start] + new + lines[node.lineno][start + len(node.id) :]
        for part in self._left_out(module, name):
            begin, end = _first_line(part), part.end_lineno or 0
            while isinstance(part, ast.FunctionDef) and not lines.get(begin - 1, "text").strip():
                begin -= 1
            for number in range(begin, end + 1):
                lines.pop(number, None)
        return "\n".join(lines.values())

    def _import_lines(self) -> str:
        plain = sorted(f"import {clause}" for clause in self.imports.get("", ()))
        chosen = [(module, sorted(clauses, key=_place)) for module, clauses in sorted(self.imports.items()) if module]
        lines = [*plain, *(_import_line(module, clauses) for module, clauses in chosen)]
        standard = [line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
        others = [line for line in lines if line not in standard]
        return "\n".join([*standard, "", *others])


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _place(clause: str) -> tuple[bool, bool, str]:
    """Constants, then classes, then the rest, each by the alphabet."""
    return not clause.isupper(), clause[0].islower(), clause.lower()


def _import_line(module: str, clauses: list[str]) -> str:
    line = f"from {module} import {', '.join(clauses)}"
    return line if len(line) <= WIDTH else f"from {module} import (\n    " + ",\n    ".join(clauses) + ",\n)"


def _spaced(parts: list[str]) -> str:
    """The parts with blank lines as usual: two around functions and classes, none between variables."""
    text = parts[0]
    for before, part in pairwise(parts):
        both_variables = not any(one.startswith(("def ", "class ", "@", "# -")) for one in (before, part))
        text += ("\n\n" if before is parts[0] else "\n" if both_variables else "\n\n\n") + part
    return text + "\n"
