"""How large the house is, and how large it may be: lines of code by package, words of Markdown, and the budget of both.

Lines of code are those with a token that is neither comment nor docstring. Files over 500 lines, counted whole, and
functions over 60 lines of code are named. The budget stands in ``pyproject.toml``, and a test holds it.

Usage: python -m tools.code_size
"""

from __future__ import annotations

import ast
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "antiphase": "antiphase",
    "tests": "tests",
    "benchmarks": "benchmarks",
    "experiments": "benchmarks",
    "tools": "benchmarks",
    "examples": "benchmarks",
}
"""Folders, and the part of the budget to which they count."""
WORDS = "words"
WRITTEN = ("docs", "antiphase", "tests")
"""Folders with pages of Markdown, and the repository's own."""
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


def sizes() -> dict[str, Counter[str]]:
    """Lines of code of each part by package, and words of Markdown by file."""
    found: dict[str, Counter[str]] = {part: Counter() for part in budget()}
    for folder, part in PARTS.items():
        for path in (ROOT / folder).rglob("*.py"):
            below = path.relative_to(ROOT / folder).parts
            found[part][below[0] if len(below) > 1 else "modules"] += len(code_lines(path))
    pages = [*ROOT.glob("*.md"), *(path for folder in WRITTEN for path in (ROOT / folder).rglob("*.md"))]
    for path in pages:
        found[WORDS][str(path.relative_to(ROOT))] += len(path.read_text(encoding="utf-8").split())
    return found


def budget() -> dict[str, int]:
    """The most that each part may have."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(settings["tool"]["antiphase"]["budget"])


def main() -> None:
    """Print the counts."""
    console = Console(soft_wrap=True, highlight=False)
    for path in sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py")):
        whole = len(path.read_text(encoding="utf-8").splitlines())
        if whole > LONGEST_FILE:
            console.print(f"{path.relative_to(ROOT)}: {whole} lines")
        for function, size in long_functions(path, code_lines(path)):
            console.print(f"{path.relative_to(ROOT)}: {function} has {size} lines of code")
    most = budget()
    for part, count in sizes().items():
        total = count.total()
        console.print(f"{part}: {total:,} of {most[part]:,} ({most[part] - total:+,} left)")
        console.print("  " + ", ".join(f"{name} {own:,}" for name, own in count.most_common(24)))


if __name__ == "__main__":
    main()
