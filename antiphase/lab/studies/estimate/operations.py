"""Operations of a forward pass, counted from a model on the meta device."""

from __future__ import annotations

from torch import nn

from antiphase.lab.studies.estimate.formulas import maps, query_width, shared_width
from antiphase.models.transformer import AntiphaseForCausalLM


def forward_flops(model: AntiphaseForCausalLM, length: int, *, causal: bool = True) -> float:
    """Operations of one token's forward pass in sequences of a length: 2 for each weight of a product, and attention.

    A product of a query with a key of width d, and of a weight with a value, takes 2 d each; a token sees (N + 1) / 2
    keys on average. Maps are subtracted before they meet the values, as ``antiphase.ops`` does it; where heads share
    second maps, each of those meets the values once more. Sliding windows are not counted: every layer sees all.
    """
    config = model.config
    weights = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    keys = (length + 1) / 2 if causal else length
    width = query_width(config)
    values = width // 2 if config.attention_type == "differential_v2" else width + shared_width(config)
    return 2 * weights + config.num_hidden_layers * 2 * keys * (maps(config) * config.head_dim + values)
