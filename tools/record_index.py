"""The index of all records: what each is, the revision that made it, and the pages that link to it.

Usage: python -m tools.record_index
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from antiphase.base.records import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RECORDS, INDEX = ROOT / "records", ROOT / "records" / "README.md"
HEAD = """# Records

Every number on a page of this project comes from one of these files; each says by which command it was made. A file of
lines (`.jsonl`) has a run a line. `python -m tools.record_index` writes this list.

| record | kind | revision | pages |
|---|---|---|---|
"""


def main() -> None:
    """Write the index."""
    write_atomically(INDEX, index().encode())


def index() -> str:
    """The text of ``records/README.md``."""
    pages = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in _pages()}
    rows = []
    for path in sorted([*RECORDS.rglob("*.json"), *RECORDS.rglob("*.jsonl")]):
        name = path.relative_to(RECORDS).as_posix()
        kind, revision = _kind(path)
        folder = name.rpartition("/")[0] or name
        linked = re.compile(rf"records/({re.escape(name)}|{re.escape(folder)}([`) ]|/STUDY))")
        using = [f"[{page}](../{page})" for page, text in pages.items() if linked.search(text)]
        rows.append(f"| [{name}]({name}) | {kind} | {revision} | {', '.join(using)} |\n")
    return HEAD + "".join(rows)


def _pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def _kind(path: Path) -> tuple[str, str]:
    """What a file holds, and the revision of its record, or those of its lines."""
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines()]
        revisions = list(dict.fromkeys(line.get("environment", line)["revision"] for line in lines))
        return "runs", ", ".join(revisions[:: max(1, len(revisions) - 1)])
    tree = json.loads(text)
    return tree.get("kind", path.stem), tree.get("environment", tree).get("revision", "")


if __name__ == "__main__":
    main()
