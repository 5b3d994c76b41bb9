"""Attention inside a model, observed through transformers' attention interface without changing the model's code."""
