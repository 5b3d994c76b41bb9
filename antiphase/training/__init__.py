"""One training run: settings in, a model, its metrics and a record out."""
