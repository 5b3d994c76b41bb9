"""Registers this project's language models with the Auto classes of transformers."""

from __future__ import annotations

from antiphase.models.configuration import AntiphaseConfig


def register_configuration() -> None:
    """Register the model type with ``AutoConfig``."""
    from transformers.models.auto.configuration_auto import AutoConfig

    AutoConfig.register(AntiphaseConfig.model_type, AntiphaseConfig, exist_ok=True)


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
    AutoModelForSequenceClassification.register(
        AntiphaseConfig, transformer.AntiphaseForSequenceClassification, exist_ok=True
    )
    AutoModelForTokenClassification.register(
        AntiphaseConfig, transformer.AntiphaseForTokenClassification, exist_ok=True
    )
