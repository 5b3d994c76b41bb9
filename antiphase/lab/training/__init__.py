"""One training run: from settings to a model, its metrics and a record."""
