"""The steady form of what a command printed and wrote: without times, versions and the machine; and without numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOLATILE = {
    "created", "written", "environment", "sha256", "claim.sha256", "seconds", "train_seconds", "training_seconds",
    "tokens_per_second", "samples_per_second", "sentences_per_second", "peak_memory", "peak_gpu_memory",
}  # fmt: skip
"""Keys of JSON whose values depend on the clock or the machine; ``sha256`` is the digest of all of a record."""
SAID = re.compile(r"\b(output|sentence): .*")
"""Ends of a record's keys whose words another processor may choose: a model's, or which arm is ahead."""
MEASURED = re.compile(
    r"Training speed|Peak memory|Wall-clock seconds|Tokens per second|Seconds|claim\.sha256|revision|antiphase"
)
"""Beginnings of rows and columns of a page with such values."""
STEADY = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?( UTC)?", "<time>"),
    (r"data:[\w/+.-]+;base64,[\w+/=]+", "<figure>"),
    (r"\b[\d.,]+ (s|seconds|minutes|min)\)$", "<duration>)"),
    (r"^\S+: ([\d,]+ of [\d,]+, .*|about .* left)\n", ""),  # progress: which of it is printed depends on the clock
)
"""What differs in texts between two runs, and what stands for it."""
WRITTEN_OUT = {".yaml", ".md", ".txt", ".html", ".log", ".json", ".jsonl"}
"""Files whose text is compared; of others it is the digest."""
LARGEST = 1 << 18
"""Characters of such a text; of a longer one it is the digest too."""


def steady(text: str) -> str:
    """A text without what differs between two runs."""
    for pattern, name in STEADY:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def printed_steadily(text: str) -> str:
    """The same of what was printed; of a table with rates the words, because its widths depend on them."""
    text = steady(text)
    if "Training speed" in text:
        text = re.sub(r"^ *(Training|Peak) .*", lambda row: re.sub(r"[\d,]+", "#", row[0]), text, flags=re.MULTILINE)
        text = re.sub(r" (?=[A-Z•])", "\n", " ".join(text.replace("─", "").split()))
    return text


def page_steadily(page: str) -> str:
    """The same of a page: a line for each element, and no values in cells with rates and times."""

    def table(found: re.Match[str]) -> str:
        columns = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', found[0], re.DOTALL)
        return re.sub(r"<tr>.*?</tr>", lambda row: cells(row[0], columns), found[0], flags=re.DOTALL)

    def cells(row: str, columns: list[str]) -> str:
        first, *others = re.split(r"(?=<td)", row)
        name = re.sub(r"<.*?>", "", first).strip()
        shown = [
            re.sub(r">[^<>]+<", ">#<", cell) if MEASURED.match(name) or MEASURED.match(column) else cell
            for cell, column in zip(others, [*columns[1:], *[""] * len(others)], strict=False)
        ]
        return "".join([first, *shown])

    page = re.sub(r"<table>.*?</table>", table, page, flags=re.DOTALL)
    return steady(re.sub(r"(?<=>)(?=<(?:tr|p|li|h\d|section|figure|td|th)\b)", "\n", page))


def state_of(printed: str, folder: Path) -> str:
    """What was printed, and each file with its text or digest."""
    lines = [printed_steadily(printed)]
    for path in files(folder):
        lines += [f"-- {path.relative_to(folder)}", contents(path)]
    return "".join(f"{line}\n" for line in lines)


def files(folder: Path) -> list[Path]:
    """Sorted; without locks."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def contents(path: Path) -> str:
    """The steady text of a file, or its digest."""
    content = path.read_bytes()
    text = content.decode() if path.suffix in WRITTEN_OUT else ""
    match path.suffix:
        case ".json" | ".jsonl":
            rows = [text] if path.suffix == ".json" else text.splitlines()
            trees = [unchanging(json.loads(row)) for row in rows]
            text = "\n".join(json.dumps(tree, indent=1, ensure_ascii=False) for tree in trees)
        case ".html":
            text = page_steadily(text)
        case ".log":
            text = printed_steadily(text)
    return text if 0 < len(text) < LARGEST else f"sha256 {hashlib.sha256(text.encode() or content).hexdigest()}"


def unchanging(tree: Any, is_volatile: bool = False) -> Any:
    """JSON with ``...`` for values of ``VOLATILE``."""
    if isinstance(tree, dict):
        return {key: unchanging(one, is_volatile or key in VOLATILE) for key, one in tree.items()}
    if isinstance(tree, list):
        return [unchanging(one, is_volatile) for one in tree]
    return "..." if is_volatile else tree


def form_of(printed: str, folder: Path) -> str:
    """Exit code, names of files, and keys of records with their types and strings; of records of a kind, the first."""
    lines, kinds = [printed.partition("\n")[0]], set()
    for path in files(folder):
        lines.append(f"-- {path.relative_to(folder)}")
        tree = unchanging(json.loads(path.read_text(encoding="utf-8"))) if path.suffix == ".json" else None
        if isinstance(tree, dict) and {"kind", "values", "format"} <= tree.keys() and tree["kind"] not in kinds:
            kinds.add(tree["kind"])
            lines += sorted({SAID.sub(r'\1: "..."', leaf) for leaf in leaves(tree)})
    return "".join(f"{line}\n" for line in lines)


def leaves(tree: Any, path: str = "") -> Iterator[str]:
    """A line for each value, by its keys, with ``#`` for numbers; items of a list are one."""
    if isinstance(tree, dict) and tree:
        for key, one in tree.items():
            yield from leaves(one, f"{path}.{key}" if path else key)
    elif isinstance(tree, list) and tree:
        for one in tree:
            yield from leaves(one, f"{path}[]")
    else:
        is_number = isinstance(tree, (int, float)) and not isinstance(tree, bool)
        text = "#" if is_number else json.dumps(tree, ensure_ascii=False)
        yield f"{path}: {re.sub(r'[0-9a-f]{32,}|[0-9][0-9.,]*', '#', text)}"


def sections(text: str) -> dict[str, list[str]]:
    """Lines below each heading ``== NAME``."""
    parts = re.split(r"^== ", text, flags=re.MULTILINE)[1:]
    return {title: rest.splitlines() for title, _, rest in (part.partition("\n") for part in parts)}
