"""Tasks: prompts with what may follow them, made from labelled rows or from plain text, and their scores."""
