"""A record of ``antiphase extend`` is of kind ``train``."""

from antiphase.lab.studies.train.presentation import PRESENTATION

__all__ = ["PRESENTATION"]
