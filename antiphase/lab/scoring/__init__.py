"""Scores of one model: log-likelihoods, losses, constrained answers, retrieval, and attention allocation."""
