"""A record of ``antiphase extend`` is of kind ``train``."""

from antiphase.studies.train.presentation import PRESENTATION

__all__ = ["PRESENTATION"]
