"""The attention viewer: every map of a model on one text, in an interactive page."""
