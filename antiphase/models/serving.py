"""What a server with a paged cache of its own needs: each kind of attention as one call of ordinary grouped attention.

Legend: N tokens of all texts in a row, d width of a map, H heads, S second maps, G value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from antiphase.base.errors import InputError
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.functions import apart, has_two_keys, is_differential, join_halves, subtracted
from antiphase.models.tensor_plan import tensor_plan
from antiphase.models.variants import needs

NARROWEST, STEP = 32, 16
"""Width of the narrowest maps that servers have kernels for, and of what others are multiples; zeros fill them up."""
BY_LONGEST_TEXT = ("dynamic", "longrope")
"""Rotary positions that depend on the longest text of a batch."""


@dataclass(frozen=True)
class PagedSizes:
    """Sizes of a layer's ordinary attention.

    Args:
        queries: query heads.
        groups: heads of keys and values in the cache.
        width: of each of them.
    """

    queries: int
    groups: int
    width: int


def paged_sizes(layer: AttentionLayer, *, processes: int = 1) -> PagedSizes:
    """The sizes in one of several processes that divide the heads."""
    queries, groups, width = layer.num_attention_heads, layer.k_proj.out_features // layer.head_dim, layer.head_dim
    if is_differential(layer):
        queries = queries // 2 + queries // 2 // getattr(layer, "heads_per_noise", 1)
    if has_two_keys(layer):
        groups, width = groups // 2, 2 * width
    stored = max(NARROWEST, -(-width // STEP) * STEP)
    return PagedSizes(queries // processes, groups // processes, stored)


class PagedAttention(nn.Module):
    """The attention function of a layer on ordinary grouped attention, which is called once.

    V1 has keys k₁ and k₂ of width d for each value of width 2d. They are stored as one key (k₁, k₂), and queries
    (q₁, 0) and (0, q₂) of width 2d read their half of it: the cache is as large as that of softmax attention.

    Args:
        ordinary: queries (N, heads · width), keys and values (N, G · width) to outputs (N, heads · width), query
            head i with key ⌊i G / heads⌋; it keeps keys and values of earlier calls.
        width: of a stored head, from ``paged_sizes``.
    """

    def __init__(self, ordinary: Callable[[Tensor, Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.ordinary, self.width = ordinary, width

    def forward(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        *,
        lam: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """As ``antiphase_attention``, for one row (1, maps, N, d); mask, scale and window are those of ``ordinary``."""
        if lam is None:
            return self._outputs(query, key, value), None
        two_keys, width = has_two_keys(layer), query.shape[-1]
        (first, _), (second, _) = apart(query, key, getattr(layer, "heads_per_noise", 1), two_keys=two_keys)
        if two_keys:
            first, second = pad(first, (0, width)), pad(second, (width, 0))  # (1, H, N, 2d), (1, S, N, 2d)
            key, value = join_halves(key), join_halves(value)  # (1, G, N, 2d)
        groups = key.shape[1]
        by_group = [maps.unflatten(1, (groups, -1)) for maps in (first, second)]
        out = self._outputs(torch.cat(by_group, dim=2).flatten(1, 2), key, value).unflatten(2, (groups, -1))
        parts = out.split([maps.shape[2] for maps in by_group], dim=3)  # (1, N, G, H / G and S / G, width)
        first, second = (part.flatten(2, 3) for part in parts)
        return subtracted(first, second, lam), None

    def _outputs(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Outputs (1, N, heads, width) of queries (1, heads, N, width), keys and values (1, G, N, width)."""
        width = query.shape[-1]
        rows = (pad(x[0], (0, self.width - width)).transpose(0, 1).flatten(1) for x in (query, key, value))
        return self.ordinary(*rows).unflatten(-1, (query.shape[1], self.width))[None, ..., :width]


def refuse_unserved(config: Any, *, processes: int = 1, decoder: str | None = None) -> None:
    """
    Args:
        processes: how many divide the heads.
        decoder: the only class of models that is served, by its name; None if the caller has looked.

    Raises:
        InputError: a server's ordinary attention, or texts of different lengths in one batch, would change what the
            model computes; the message names the field.
    """
    for model in config.architectures or ():
        if decoder not in (None, model):
            raise InputError(f"{model} cannot be served, only {decoder}", "use it in transformers")
    for named in needs(config).values():
        raise InputError(f"{named} cannot be served: weights would be those of softmax", "use generate of transformers")
    kind = config.rope_parameters["rope_type"]
    if kind in BY_LONGEST_TEXT:
        raise InputError(
            f"rope_type {kind} cannot be served: positions would depend on the longest text of a batch",
            "use generate of transformers",
        )
    if processes == 1:
        return
    if tensor_plan(config) is None:
        raise InputError(
            f"the heads of this {config.attention_type} model cannot be divided by {processes} processes",
            "serve it with tensor_parallel_size 1",
        )
    groups = config.num_key_value_heads // (2 if config.attention_type == "differential" else 1)
    if groups % processes:
        raise InputError(
            f"{processes} processes cannot divide {groups} heads of values",
            f"choose a tensor_parallel_size that divides {groups}",
        )
