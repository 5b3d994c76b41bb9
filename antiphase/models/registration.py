"""The Auto classes of transformers learn this project's models."""

from __future__ import annotations

from typing import Any

from antiphase.models.classic_configs import (
    CONFIGURATIONS,
    ConvolutionConfig,
    RecurrentConfig,
    SequenceToSequenceConfig,
    VanillaConfig,
)
from antiphase.models.configuration import AntiphaseConfig


def register_configuration() -> None:
    """``AutoConfig`` knows the model types."""
    from transformers.models.auto.configuration_auto import AutoConfig

    kinds: tuple[Any, ...] = (AntiphaseConfig, *CONFIGURATIONS)
    for kind in kinds:
        AutoConfig.register(kind.model_type, kind, exist_ok=True)


def register_models() -> None:
    """The Auto classes of models know the model of each configuration."""
    from transformers.models.auto.modeling_auto import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSequenceClassification,
    )

    from antiphase.models import convolution, recurrent, sequence_to_sequence, transformer, vanilla

    register_configuration()
    models: dict[Any, dict[Any, Any]] = {
        AntiphaseConfig: {
            AutoModel: transformer.AntiphaseModel,
            AutoModelForCausalLM: transformer.AntiphaseForCausalLM,
            AutoModelForSequenceClassification: transformer.AntiphaseForSequenceClassification,
        },
        RecurrentConfig: {
            AutoModel: recurrent.RecurrentModel,
            AutoModelForCausalLM: recurrent.RecurrentForCausalLM,
            AutoModelForSequenceClassification: recurrent.RecurrentForSequenceClassification,
        },
        ConvolutionConfig: {
            AutoModel: convolution.ConvolutionModel,
            AutoModelForSequenceClassification: convolution.ConvolutionForSequenceClassification,
        },
        VanillaConfig: {
            AutoModel: vanilla.VanillaModel,
            AutoModelForCausalLM: vanilla.VanillaForCausalLM,
            AutoModelForMaskedLM: vanilla.VanillaForMaskedLM,
            AutoModelForSequenceClassification: vanilla.VanillaForSequenceClassification,
        },
        SequenceToSequenceConfig: {
            AutoModel: sequence_to_sequence.SequenceToSequenceModel,
            AutoModelForSeq2SeqLM: sequence_to_sequence.SequenceToSequenceForConditionalGeneration,
        },
    }
    for kind, by_auto in models.items():
        for auto, model in by_auto.items():
            auto.register(kind, model, exist_ok=True)
