"""Formulas of the documentation as MathML, which browsers draw themselves: no script, nothing loaded from elsewhere.

Only ``mathematics.md`` has formulas: ``$…$`` in a line, and ``$$`` on lines of their own around a block.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

PAGE = "mathematics.md"
BLOCK, INLINE = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL), re.compile(r"\$([^$\n]+)\$")


def on_page_markdown(markdown: str, page: Any, **context: Any) -> str:
    """Called by MkDocs with the text of each page."""
    if page.file.src_uri != PAGE:
        return markdown
    if any(line.count("$") % 2 for line in markdown.splitlines()):
        raise PluginError(f"{PAGE}: a formula begins in a line and does not end there")
    markdown = BLOCK.sub(lambda found: convert(found[1], display="block"), markdown)
    # The span keeps Markdown from taking a formula that begins a line for a block of its own
    return INLINE.sub(lambda found: f"<span>{convert(found[1])}</span>", markdown)
