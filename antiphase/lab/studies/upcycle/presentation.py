"""A record of ``antiphase upcycle`` is of kind ``compare``."""

from antiphase.lab.studies.compare.presentation import PRESENTATION

__all__ = ["PRESENTATION"]
