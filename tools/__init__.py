"""Checks of the whole project and what its pages are made with; run as ``python -m tools.NAME``."""
