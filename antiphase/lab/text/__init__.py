"""Data: corpora, tokenizers, packed tokens, retrieval tasks, labelled text and in-context labels."""
