"""How large the code is: lines of code by package, files over 500 lines, functions over 60 lines.

Lines of code are those with a token that is neither comment nor docstring; files are counted whole.

Usage: python benchmarks/code_size.py
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
BESIDE_THE_CORE = ("baselines", "viewer", "benchmarks")
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of the docstrings of the module, its classes and functions."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, Function)) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def code_lines(path: Path) -> set[int]:
    """Numbers of the lines with code."""
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in SILENT]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return lines - docstring_lines(ast.parse(path.read_text(encoding="utf-8")))


def long_functions(path: Path, lines: set[int]) -> Iterator[tuple[str, int]]:
    """Functions of more lines of code than a screen has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            size = len(lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if size > LONGEST_FUNCTION:
                yield node.name, size


def main() -> None:
    """Print the counts."""
    console = Console(soft_wrap=True, highlight=False)
    for name in ("antiphase", "tests"):
        packages: Counter[str] = Counter()
        for path in sorted((ROOT / name).rglob("*.py")):
            lines = code_lines(path)
            place = path.relative_to(ROOT / name)
            packages[place.parts[0] if len(place.parts) > 1 else "modules"] += len(lines)
            whole = len(path.read_text(encoding="utf-8").splitlines())
            if whole > LONGEST_FILE:
                console.print(f"{path.relative_to(ROOT)}: {whole} lines")
            for function, size in long_functions(path, lines):
                console.print(f"{path.relative_to(ROOT)}: {function} has {size} lines of code")
        core = sum(packages.values()) - sum(packages[package] for package in BESIDE_THE_CORE)
        of_core = f", {core:,} of them without {', '.join(BESIDE_THE_CORE)}" if name == "antiphase" else ""
        console.print(f"{name}: {sum(packages.values()):,} lines of code{of_core}")
        console.print("  " + ", ".join(f"{package} {count:,}" for package, count in packages.most_common()))


if __name__ == "__main__":
    main()
