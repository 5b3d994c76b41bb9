"""A record of ``antiphase upcycle`` is of kind ``compare``."""

from antiphase.studies.compare.presentation import PRESENTATION

__all__ = ["PRESENTATION"]
