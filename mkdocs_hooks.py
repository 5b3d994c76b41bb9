"""What the site has beside its pages: the README as first page, records, examples, formulas as MathML.

Only ``mathematics.md`` has formulas: ``$…$`` in a line, and ``$$`` on lines of their own around a block.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

PAGE = "mathematics.md"
BLOCK, INLINE = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL), re.compile(r"\$([^$\n]+)\$")


FOLDERS = ("records", "examples")
"""Folders of the repository; a page links to ``../records/NAME``, in the site to ``records/NAME``."""


def on_files(files: Any, config: Any) -> Any:
    """Called by MkDocs with the files of the site."""
    for path in sorted(path for folder in FOLDERS for path in Path(folder).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            files.append(File(path.as_posix(), ".", config.site_dir, use_directory_urls=False))
    files.append(File.generated(config, "index.md", content=first_page()))
    return files


def first_page() -> str:
    """The README with its links seen from ``docs``; what lies outside of the site is named without a link."""
    text = Path("README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\([A-Z]+\.md\)", r"\1", text)


def on_page_markdown(markdown: str, page: Any, **context: Any) -> str:
    """Called by MkDocs with the text of each page."""
    for folder in FOLDERS:
        markdown = markdown.replace(f"](../{folder}/", f"]({folder}/").replace(f"](../../{folder}/", f"](../{folder}/")
    if page.file.src_uri != PAGE:
        return markdown
    if any(line.count("$") % 2 for line in markdown.splitlines()):
        raise PluginError(f"{PAGE}: a formula begins in a line and does not end there")
    markdown = BLOCK.sub(lambda found: convert(found[1], display="block"), markdown)
    # The span keeps Markdown from taking a formula that begins a line for a block of its own
    return INLINE.sub(lambda found: f"<span>{convert(found[1])}</span>", markdown)
