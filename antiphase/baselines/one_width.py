"""The models of the line from recurrent networks to differential attention, of one width, as studies compare them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antiphase.baselines import names
from antiphase.baselines.classifiers import CLASSIFIERS, Classifier
from antiphase.baselines.models.configs import ConvolutionConfig, RecurrentConfig, VanillaConfig

WIDTH = 64
SIZES: dict[type, dict[str, Any]] = {
    RecurrentConfig: {"embedding_size": WIDTH, "hidden_size": WIDTH, "dropout": 0.0},
    ConvolutionConfig: {"embedding_size": WIDTH, "num_filters": WIDTH, "dropout": 0.0},
    VanillaConfig: {"hidden_size": WIDTH, "dropout": 0.0},
}
"""In the place of those of ``antiphase classify``: sentences are made as many as needed, so nothing is dropped out."""


def one_width_classifiers() -> dict[str, Classifier]:
    """The models of ``--models`` by name, in the order of the line."""
    return {
        name: replace(CLASSIFIERS[name], sizes={**CLASSIFIERS[name].sizes, **SIZES[CLASSIFIERS[name].config]})
        for name in names.CLASSIFIERS
    }
