"""Evidence: studies of trained models, a real model and a GPU; run as ``python -m experiments.NAME``."""
