"""Registers the earlier models with the Auto classes of transformers."""

from __future__ import annotations

from typing import Any

from antiphase.lab.lineage.models.configs import (
    CONFIGURATIONS,
    ConvolutionConfig,
    RecurrentConfig,
    SequenceToSequenceConfig,
    VanillaConfig,
)
from antiphase.models.registration import register_causal_name


def register_configurations() -> None:
    """Register the model types with ``AutoConfig``."""
    from transformers.models.auto.configuration_auto import AutoConfig

    for kind in CONFIGURATIONS:
        AutoConfig.register(kind.model_type, kind, exist_ok=True)


def register_models() -> None:
    """Register the models with the Auto classes of models."""
    from transformers.models.auto.modeling_auto import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSequenceClassification,
    )

    from antiphase.lab.lineage.models import convolution, recurrent, sequence_to_sequence, vanilla

    register_configurations()
    models: dict[Any, dict[Any, Any]] = {
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
            if auto is AutoModelForCausalLM:
                register_causal_name(model)
