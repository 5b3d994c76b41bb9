"""The Auto classes of transformers learn this project's models."""

from __future__ import annotations

from antiphase.models.configuration import AntiphaseConfig


def register_configuration() -> None:
    """``AutoConfig`` knows ``model_type`` "antiphase"."""
    from transformers.models.auto.configuration_auto import AutoConfig

    AutoConfig.register(AntiphaseConfig.model_type, AntiphaseConfig, exist_ok=True)


def register_models() -> None:
    """``AutoModel``, ``AutoModelForCausalLM`` and ``AutoModelForSequenceClassification`` know the decoder."""
    from transformers.models.auto.modeling_auto import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
    )

    from antiphase.models.transformer import (
        AntiphaseForCausalLM,
        AntiphaseForSequenceClassification,
        AntiphaseModel,
    )

    register_configuration()
    AutoModel.register(AntiphaseConfig, AntiphaseModel, exist_ok=True)
    AutoModelForCausalLM.register(AntiphaseConfig, AntiphaseForCausalLM, exist_ok=True)
    AutoModelForSequenceClassification.register(AntiphaseConfig, AntiphaseForSequenceClassification, exist_ok=True)
