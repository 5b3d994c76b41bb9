"""A table as Markdown."""

Rows = list[list[str]]


def markdown(rows: Rows) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"
