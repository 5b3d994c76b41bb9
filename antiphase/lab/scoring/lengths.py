"""How many tokens a model reads."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel


def positions_of(config: PreTrainedConfig) -> int | None:
    """The number of positions of a model; None means no limit, for which XLNet has -1."""
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if found is None or found < 0 else found


def context_length(model: PreTrainedModel) -> int | None:
    """The largest number of tokens that a model reads; None means no limit.

    RoBERTa and its relatives count positions from ``padding_idx + 1``, so that not all of them can be used.
    """
    found = positions_of(model.config)
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    padding = next((getattr(table, "padding_idx", None) for table in tables), None)
    return found if found is None or padding is None else found - padding - 1


def readable_length(model: PreTrainedModel) -> int | None:
    """The largest number of tokens that a model can read at all; None where RoPE continues, however poor the result."""
    has_rope = getattr(model.config.get_text_config(), "rope_parameters", None) is not None
    return None if has_rope else context_length(model)
