"""Scores of the earlier models."""
