"""Text and tasks: corpora, tokenizers, packed tokens, retrieval, labelled text, demonstrations."""
