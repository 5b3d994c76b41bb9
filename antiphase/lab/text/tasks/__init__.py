"""Tasks: prompts with possible answers, made from labelled rows or plain text, and their scores."""
