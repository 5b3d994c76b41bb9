"""Models of equal width, from recurrent networks to differential attention, for comparison in studies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antiphase.lab.lineage import names
from antiphase.lab.lineage.classifiers import CLASSIFIERS, Classifier
from antiphase.lab.lineage.models.configs import ConvolutionConfig, RecurrentConfig, VanillaConfig

WIDTH = 64
SIZES: dict[type, dict[str, Any]] = {
    RecurrentConfig: {"embedding_size": WIDTH, "hidden_size": WIDTH, "dropout": 0.0},
    ConvolutionConfig: {"embedding_size": WIDTH, "num_filters": WIDTH, "dropout": 0.0},
    VanillaConfig: {"hidden_size": WIDTH, "dropout": 0.0},
}
"""Replace the sizes of ``antiphase classify``: sentences are generated in any number, so there is no dropout."""


def one_width_classifiers() -> dict[str, Classifier]:
    """The models of ``--models`` by name, in historical order."""
    return {
        name: replace(CLASSIFIERS[name], sizes={**CLASSIFIERS[name].sizes, **SIZES[CLASSIFIERS[name].config]})
        for name in names.CLASSIFIERS
    }
