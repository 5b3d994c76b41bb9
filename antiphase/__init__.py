"""antiphase: noise-cancelling attention for PyTorch and Hugging Face.

Public names are loaded on first use; importing this package imports neither torch nor transformers. The Auto classes of
transformers know the models, whichever of the two is imported first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from antiphase.models.first_use import after_import, before_first_use

if TYPE_CHECKING:
    from antiphase.attention.statistics import AttentionStatistics as AttentionStatistics
    from antiphase.attention.statistics import attention_statistics as attention_statistics
    from antiphase.base.errors import InputError as InputError
    from antiphase.calibration.apply import calibrated as calibrated
    from antiphase.calibration.plan import CalibrationPlan as CalibrationPlan
    from antiphase.calibration.search import search_calibration as search_calibration
    from antiphase.lab.lineage.models.configs import ConvolutionConfig as ConvolutionConfig
    from antiphase.lab.lineage.models.configs import RecurrentConfig as RecurrentConfig
    from antiphase.lab.lineage.models.configs import SequenceToSequenceConfig as SequenceToSequenceConfig
    from antiphase.lab.lineage.models.configs import VanillaConfig as VanillaConfig
    from antiphase.lab.lineage.models.word_vectors import set_word_vectors as set_word_vectors
    from antiphase.lab.measures.look.maps import Maps as Maps
    from antiphase.lab.measures.look.maps import look as look
    from antiphase.lab.pages.reading import Run as Run
    from antiphase.lab.pages.reading import read as read
    from antiphase.layers.drop_in import DifferentialAttention as DifferentialAttention
    from antiphase.layers.drop_in import DifferentialAttentionV2 as DifferentialAttentionV2
    from antiphase.models.configuration import AntiphaseConfig as AntiphaseConfig
    from antiphase.models.differential_configs import differential_config as differential_config
    from antiphase.models.transformer import AntiphaseForCausalLM as AntiphaseForCausalLM
    from antiphase.models.transformer import AntiphaseForSequenceClassification as AntiphaseForSequenceClassification
    from antiphase.models.transformer import AntiphaseForTokenClassification as AntiphaseForTokenClassification
    from antiphase.models.transformer import AntiphaseModel as AntiphaseModel
    from antiphase.ops.api import differential_attention as differential_attention

__version__ = "0.1.0"

_HOME = {
    "differential_attention": "antiphase.ops.api",
    "AntiphaseConfig": "antiphase.models.configuration",
    "AntiphaseModel": "antiphase.models.transformer",
    "AntiphaseForCausalLM": "antiphase.models.transformer",
    "AntiphaseForSequenceClassification": "antiphase.models.transformer",
    "AntiphaseForTokenClassification": "antiphase.models.transformer",
    "RecurrentConfig": "antiphase.lab.lineage.models.configs",
    "ConvolutionConfig": "antiphase.lab.lineage.models.configs",
    "VanillaConfig": "antiphase.lab.lineage.models.configs",
    "SequenceToSequenceConfig": "antiphase.lab.lineage.models.configs",
    "set_word_vectors": "antiphase.lab.lineage.models.word_vectors",
    "DifferentialAttention": "antiphase.layers.drop_in",
    "DifferentialAttentionV2": "antiphase.layers.drop_in",
    "differential_config": "antiphase.models.differential_configs",
    "look": "antiphase.lab.measures.look.maps",
    "Maps": "antiphase.lab.measures.look.maps",
    "read": "antiphase.lab.pages.reading",
    "Run": "antiphase.lab.pages.reading",
    "attention_statistics": "antiphase.attention.statistics",
    "AttentionStatistics": "antiphase.attention.statistics",
    "CalibrationPlan": "antiphase.calibration.plan",
    "calibrated": "antiphase.calibration.apply",
    "search_calibration": "antiphase.calibration.search",
    "InputError": "antiphase.base.errors",
}
_PACKAGES = frozenset({"calibration"})
"""Subpackages that are loaded on attribute access: ``antiphase.calibration.calibrate_map``."""

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"antiphase.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'antiphase' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _register_configuration() -> None:
    from antiphase.lab.lineage.models.registration import register_configurations
    from antiphase.models.registration import register_configuration

    register_configuration()
    register_configurations()


def _register_models() -> None:
    from antiphase.lab.lineage.models import registration as baselines
    from antiphase.models.registration import register_models

    register_models()
    baselines.register_models()


def _register_differential_configurations() -> None:
    importlib.import_module("antiphase.models.differential_configs")


def _register_attention() -> None:
    importlib.import_module("antiphase.attention.interface")


def _register_adapters() -> None:
    importlib.import_module("antiphase.models.adapters").register()


# The models are registered when the first AntiphaseConfig is created. Earlier, transformers may be half imported, and
# `from transformers import LlamaForCausalLM` would import our models in the middle of its own modules. For the same
# reason, the configurations of other architectures wait for the Auto classes of models.
before_first_use(_register_models)
after_import("transformers.models.auto.configuration_auto", _register_configuration)
after_import("transformers.models.auto.modeling_auto", _register_differential_configurations)
after_import("transformers.modeling_utils", _register_attention)
after_import("peft.utils.constants", _register_adapters)
