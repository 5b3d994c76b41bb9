"""Training by epochs."""
