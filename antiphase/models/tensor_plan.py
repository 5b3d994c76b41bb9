"""Which weights of a decoder several processes can divide by heads and channels, in transformers' names."""

from __future__ import annotations

from typing import Any

from antiphase.layers.mlp import LEARNED
from antiphase.models.variants import needs, option

COLUMNS = "colwise"
"""Divided outputs."""
ROWS = "rowwise"
"""Divided inputs, whose sums are added up."""
SHARED = "replicated_with_grad_allreduce"
"""Whole weights, which each process uses for its heads."""


def divides_mlp(config: Any) -> bool:
    """Whether channels of the MLP can be divided: its activation looks at each one alone."""
    return config.hidden_act not in LEARNED


def tensor_plan(config: Any) -> dict[str, str] | None:
    """The style of each module that is divided, by its name in the base model; None if heads cannot be divided.

    Processes take heads and channels of the MLP as they stand in a row (Shoeybi et al., 1909.08053, section 3), so each
    head's two maps, keys and halves of values stay together. λ vectors of V1, norms of queries and keys, and biases of
    sums are whole everywhere. What counts heads outside a projection cannot be divided: sinks, an offset of λ for each
    head, DEX, shared second maps, pairs that read different keys, and a norm of all queries together. An MLP with
    PolyNorm, whose mean is over all channels, is whole everywhere.
    """
    alone = config.whole_qk_norm or any(option(config, name) for name in ("dex_heads", "num_noise_heads"))
    if alone or needs(config) or config.attention_type == "differential_v2_across":
        return None
    if config.attention_type == "differential" and option(config, "lambda_form") == "head":
        return None
    plan = dict.fromkeys(("q_proj", "k_proj", "v_proj"), COLUMNS)
    if option(config, "output_gate"):
        plan["output_gate"] = COLUMNS
    if config.attention_type == "differential_v2" and option(config, "lambda_form") != "fixed":
        plan["lambda_proj"] = COLUMNS
    if option(config, "head_norm"):
        plan["head_norm"] = SHARED
    if config.use_qk_norm:
        plan |= {"q_norm": SHARED, "k_norm": SHARED}
    plan["o_proj"] = ROWS
    mlp = {"gate_proj": COLUMNS} if config.gated_mlp else {}
    mlp = mlp | {"up_proj": COLUMNS, "down_proj": ROWS} if divides_mlp(config) else {}
    return {
        **{f"layers.*.self_attn.{name}": style for name, style in plan.items()},
        **{f"layers.*.mlp.{name}": style for name, style in mlp.items()},
    }
