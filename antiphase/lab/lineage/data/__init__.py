"""Training data of the earlier models: labelled texts, sentence pairs, generated sentences."""
