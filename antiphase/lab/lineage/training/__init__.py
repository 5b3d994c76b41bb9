"""Training of the earlier models in epochs."""
