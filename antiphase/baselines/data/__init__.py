"""What they learn from: labelled texts, pairs of sentences, generated sentences."""
