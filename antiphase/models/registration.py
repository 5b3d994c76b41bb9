"""Registers this project's language models with the Auto classes of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphase.models import first_use
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.source_configs import MotifConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def register_configuration() -> None:
    """Register the model type with ``AutoConfig``, and that of Motif, so that its own code is not asked for."""
    from transformers.models.auto.configuration_auto import AutoConfig

    AutoConfig.register(AntiphaseConfig.model_type, AntiphaseConfig, exist_ok=True)
    AutoConfig.register(MotifConfig.model_type, MotifConfig, exist_ok=True)


def register_causal_name(model: type[PreTrainedModel]) -> None:
    """Make transformers' ``Trainer`` shift the labels of this model when it smooths them.

    It shifts them for causal models, which it knows by the names of their classes.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model.config_class.model_type] = model.__name__


def register_models() -> None:
    """Register the models with the Auto classes of models."""
    from transformers.models.auto.modeling_auto import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    from antiphase.models import transformer

    register_configuration()
    AutoModel.register(AntiphaseConfig, transformer.AntiphaseModel, exist_ok=True)
    AutoModelForCausalLM.register(AntiphaseConfig, transformer.AntiphaseForCausalLM, exist_ok=True)
    register_causal_name(transformer.AntiphaseForCausalLM)
    AutoModelForSequenceClassification.register(
        AntiphaseConfig, transformer.AntiphaseForSequenceClassification, exist_ok=True
    )
    AutoModelForTokenClassification.register(
        AntiphaseConfig, transformer.AntiphaseForTokenClassification, exist_ok=True
    )


def register_with_vllm() -> None:
    """Register the decoders with vLLM, which imports their class when it serves one; vLLM calls this as its plugin.

    Classifiers come to the same class, which refuses them by name.
    """
    from vllm import ModelRegistry

    first_use.register_models()
    for head in ("CausalLM", "SequenceClassification", "TokenClassification"):
        ModelRegistry.register_model(f"AntiphaseFor{head}", "antiphase.models.vllm:AntiphaseForCausalLM")
