"""Which layers PEFT adapts in this project's models if it is not told: those that it adapts in Llama."""

from __future__ import annotations

import sys
from typing import Any

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "bert")
"""Architectures of ``differential_config``, whose own layers are adapted there."""


def register() -> None:
    """Add the model types to PEFT's tables; called when PEFT has been imported."""
    constants: Any = sys.modules["peft.utils.constants"]
    for name, table in vars(constants).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and isinstance(table, dict):
            for base in ARCHITECTURES:
                if base in table:
                    table.setdefault(f"differential_{base}", table[base])
    lora = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    for model_type in ("antiphase", "antiphase_vanilla", "antiphase_sequence_to_sequence"):
        lora.setdefault(model_type, ["q_proj", "v_proj"])
