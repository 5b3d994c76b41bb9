"""Attention layers for any PyTorch model: plain modules that depend only on torch and take an attention function."""
