"""Top-level commands that train and use the earlier models, one folder each."""
