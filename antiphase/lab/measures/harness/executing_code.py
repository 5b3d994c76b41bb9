"""Which Python of lm-eval's own tasks can execute text: of rows, of a model, of a settings file, or of the Hub."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import lm_eval

OWN = Path(lm_eval.__file__).resolve().parent

EXECUTING = {"exec", "eval", "compile", "__import__"}
"""Builtin functions that make text run."""

METHODS = {"system", "popen", "posix_spawn", "import_module", "read_pickle", "parse_expr"}
"""Functions of modules that make text run, besides those whose names begin with exec or spawn."""

UNSAFE_MODULES = {
    "code", "codeop", "ctypes", "dbm", "doctest", "importlib", "marshal", "multiprocessing", "pdb", "pickle", "pkgutil",
    "pty", "runpy", "shelve", "subprocess", "timeit", "trace", "venv", "webbrowser", "zipimport",
}  # fmt: skip
"""Modules of the standard library that run text or other programs."""

PACKAGES = {
    "absl", "bs4", "datasets", "emoji", "fugashi", "fuzzywuzzy", "immutabledict", "iso639", "jieba", "jsonschema",
    "langcodes", "langdetect", "lm_eval", "neologdn", "nltk", "numpy", "packaging", "pandas", "pkg_resources",
    "pycountry", "regex", "requests", "rouge", "rouge_score", "sacrebleu", "scipy", "sklearn", "spacy", "torch", "tqdm",
    "transformers", "typing_extensions", "wonderwords", "word2number", "yaml",
}  # fmt: skip
"""Other packages that tasks may use without being trusted. ``evaluate`` runs scripts of the Hub; sympy's functions
evaluate text as Python. A package that is not here, such as one that a later task uses, needs trust."""


def executes(module: Path) -> str | None:
    """What in a Python file of lm-eval's tasks, or in others of its tasks that it imports, can execute text.

    Returns:
        What it is, in words; None if there is nothing.
    """
    seen: set[Path] = set()
    waiting = [module.resolve()]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        reason, imported = _read(path)
        if reason is not None:
            return f"{reason} in {path.relative_to(OWN.parent)}"
        waiting += imported
    return None


@cache
def _read(path: Path) -> tuple[str | None, tuple[Path, ...]]:
    """What in one file executes text, and the other files of lm-eval's tasks that it imports."""
    imported: list[Path] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        reason = None
        if isinstance(node, ast.Name) and node.id in EXECUTING:
            reason = node.id
        elif isinstance(node, ast.Attribute) and _runs(node.attr):
            reason = node.attr
        elif isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            reason = None if isinstance(node.value, ast.Constant) and node.value.value is False else node.arg
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in _modules(node, path):
                root = name.partition(".")[0]
                if isinstance(node, ast.ImportFrom) and any(_runs(alias.name) for alias in node.names):
                    reason = name
                elif name.startswith("lm_eval.tasks."):
                    imported += _files(name)
                elif name != "importlib.metadata" and not _computes(root):
                    reason = f"the package {root}"
        if reason is not None:
            return reason, ()
    return None, tuple(imported)


def _runs(name: str) -> bool:
    return name in EXECUTING - {"compile"} or name in METHODS or name.startswith(("exec", "spawn"))


def _computes(root: str) -> bool:
    return root in PACKAGES or (root in sys.stdlib_module_names and root not in UNSAFE_MODULES)


def _modules(node: ast.Import | ast.ImportFrom, path: Path) -> list[str]:
    """The modules that a statement may import, by their full names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    name = node.module or ""
    if node.level:
        above = path.parents[node.level - 1].relative_to(OWN.parent).parts
        name = ".".join((*above, *filter(None, [node.module])))
    return [name, *(f"{name}.{alias.name}" for alias in node.names if name.startswith("lm_eval.tasks"))]


def _files(name: str) -> list[Path]:
    """The file of a module of lm-eval; nothing if it is a name within a module."""
    place = OWN.parent.joinpath(*name.split("."))
    return [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
