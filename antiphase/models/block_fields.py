"""Fields of a configuration in which blocks of other decoders differ from Llama's, and their checks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from antiphase.base.errors import InputError, nearest


@dataclass(kw_only=True, init=False)
class BlockFields:
    """Fields of ``AntiphaseConfig`` and of ``model.`` in a preset that make blocks those of another decoder.

    Their defaults are Llama's values. The class is a part of those two and is never made alone.
    """

    hidden_act: str = "silu"
    """Activation of the MLP: "silu", "relu", "gelu", GELU by tanh under any of its names in transformers
    ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), or "poly_norm", which has parameters (2411.03884).
    """
    gated_mlp: bool = True
    """Whether the MLP has a gate (SwiGLU, with "silu")."""
    mlp_bias: bool = False
    """Whether the products of the MLP have biases."""
    attention_bias: bool = False
    """Whether all four projections of attention have biases."""
    qkv_bias: bool = False
    """Whether only queries, keys and values have biases, as in Qwen2."""
    use_qk_norm: bool = False
    """Whether queries and keys are normalized by an RMSNorm before they are rotated, as in Qwen3; its ε is
    ``rms_norm_eps``, and all maps of a layer share its weights.
    """
    whole_qk_norm: bool = False
    """Whether that norm is of all maps of a layer together, each with its own weights, as in OLMo 2."""
    norm_type: str = "rms_norm"
    """Norms of the residual stream, with ε ``rms_norm_eps``: "rms_norm", "zero_centered_rms_norm" (the weight is stored
    less 1, as in Gemma) or "layer_norm" (with biases, as in GPT-NeoX).
    """
    norm_position: Literal["before", "after"] = "before"
    """Whether attention and MLP have their norms before them, or after them, as in OLMo 2."""
    use_parallel_residual: bool = False
    """Whether attention and MLP read the same residual stream, as in GPT-NeoX."""


BLOCK: Mapping[str, Any] = MappingProxyType({item.name: item.default for item in fields(BlockFields)})
"""Their values in Llama, which configurations do not store, so that the files of such models stay as they are."""
ROTATED = "partial_rotary_factor"
"""Key in ``rope_parameters``: the share of a map's channels that positions rotate, from the first on."""


def check_block(given: Mapping[str, Any], names: Mapping[str, Collection[str]]) -> None:
    """
    Args:
        names: those that a field may give, by the field.

    Raises:
        InputError: a value is invalid; the message names the field.
    """
    choices = {name: get_args(kind) for name, kind in get_type_hints(BlockFields).items() if get_args(kind)}
    for name, known in {**names, **choices}.items():
        value = given[name]
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}")
    for name, default in BLOCK.items():
        if isinstance(default, bool) and not isinstance(given[name], bool):
            raise InputError(f"{name} must be true or false, got {given[name]!r}")
    if given["attention_bias"] and given["qkv_bias"]:
        raise InputError("qkv_bias cannot be combined with attention_bias, which adds biases to all four projections")
    if given["whole_qk_norm"] and not given["use_qk_norm"]:
        raise InputError("whole_qk_norm needs use_qk_norm")


def with_scaling(parameters: Mapping[str, Any], scaling: Mapping[str, Any], *, theta: float | None) -> dict[str, Any]:
    """``rope_parameters`` as older configurations spell them, in ``rope_scaling`` and ``rope_theta``."""
    base = parameters.get("rope_theta", 10000.0) if theta is None else theta
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return {"rope_theta": base, **{name: value for name, value in scaling.items() if name != "type"}, "rope_type": kind}


def checked_rope(parameters: Mapping[str, Any], *, head_dim: int, kinds: Collection[str]) -> dict[str, Any]:
    """A copy of ``rope_parameters``, because transformers completes them in place; without the factor if it is 1.

    Raises:
        InputError: the base or the factor is no number above 0; the kind is unknown; the share of rotated channels is
            no number up to 1, or not even two channels; or there are parameters for each kind of layer.
    """
    found = dict(parameters)
    if nested := [name for name, value in found.items() if isinstance(value, Mapping)]:
        raise InputError(f"rope_parameters has values of its own for {', '.join(nested)}", "all layers have the same")
    theta = found.get("rope_theta", 1.0)
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta < math.inf:
        raise InputError(f"rope_theta must be a number above 0, got {theta!r}")
    kind = found.get("rope_type", "default")
    if kind not in kinds:
        raise InputError(f"rope_type must be one of {', '.join(kinds)}, got {kind!r}")
    factor = found.get("factor", 1.0 if kind in ("default", "longrope", "proportional") else None)
    if factor is None and (kind in ("default", "longrope") or (kind == "yarn" and "factor" in found)):
        factor = 1.0  # transformers divides the lengths
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
        raise InputError(f"factor of rope_parameters must be a number above 0, got {factor!r}")
    share = found.get(ROTATED, 1.0)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1 or head_dim * share < 2:
        raise InputError(
            f"{ROTATED} must be a number up to 1 that leaves 2 or more of the {head_dim} channels, got {share!r}"
        )
    if share == 1:
        found.pop(ROTATED, None)
    return found


def of_block(config: Any) -> dict[str, Any]:
    """The values of these fields in a configuration."""
    return {name: getattr(config, name) for name in BLOCK}


def departures(config: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields, except some, in which a configuration differs from Llama's, with their values."""
    found = {name: value for name, value in of_block(config).items() if value != BLOCK[name]}
    if ROTATED in config.rope_parameters:
        found[ROTATED] = config.rope_parameters[ROTATED]
    return {name: value for name, value in found.items() if name not in without}
