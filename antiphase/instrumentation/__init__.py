"""Observing and changing attention in any model that uses transformers' attention interface."""
