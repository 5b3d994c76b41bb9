"""The attention rows of chosen queries, in every layer, both maps of each head apart. Memory is linear in length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention_kinds import (
    has_two_keys,
    is_differential,
    lambda_afterwards,
    layer_number,
    refuse_repeated,
    subtracts_afterwards,
)
from antiphase.errors import NonFiniteError
from antiphase.interface import (
    AttentionFunction,
    boolean_mask,
    layer_is_causal,
    refuse_unknown,
    softmax_weights,
    swapped,
)
from antiphase.ops.reference import softmax_maps
from antiphase.ops.shapes import Shapes, statistics_dtype


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer: B sequences, P queries, M keys."""

    maps: Tensor
    """(B, heads, S, P, M): S = 2 maps of a differential head, 1 of a softmax head; each row sums to one."""
    lam: Tensor | None
    """(1|B, 1|heads, 1|P), None for softmax attention."""
    layer: int
    """The model's number of the layer, 0-based: there may be layers without attention between."""

    def weights(self) -> Tensor:
        """What multiplies the values: (B, heads, P, M), signed for differential attention."""
        if self.lam is None:
            return self.maps[:, :, 0]
        return self.maps[:, :, 0] - self.lam.unsqueeze(-1) * self.maps[:, :, 1]


@torch.no_grad()
def attention_rows(model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> list[LayerRows]:
    """Attention of the queries at ``positions`` in every layer, in order, on the CPU.

    Args:
        input_ids: (B, N) without padding.
        positions: (B, P), 0-based.

    Raises:
        InputError: a model whose attention cannot be read (``refuse_unread``).
        ValueError: attention that does not go through transformers' interface, or arguments (such as ``softcap``) that
            would change the rows.
        NonFiniteError: weights or λ that are not finite.
    """
    found: list[LayerRows] = []
    queries: list[Tensor] = []  # of the last call
    positions = positions.to(model.device)

    def wrap(function: AttentionFunction) -> AttentionFunction:
        def observe(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
        ) -> tuple[Tensor, Tensor | None]:
            if not (queries and query is queries[0]):  # DiffLlama calls twice with the same queries, once a half of V
                rows, _, _ = rows_at(positions, module, query, key, attention_mask, kwargs)
                maps, lam = rows.maps, rows.lam
                if subtracts_afterwards(module):  # map i + H is subtracted from map i
                    maps = maps[:, :, 0].unflatten(1, (2, -1)).transpose(1, 2)
                    lam = lambda_afterwards(module).view(1, 1, 1)
                number = layer_number(module, len(found))
                found.append(LayerRows(maps.cpu(), None if lam is None else lam.cpu(), number))
            queries[:] = [query]
            return function(module, query, key, value, attention_mask, **kwargs)

        return observe

    with swapped(model, wrap):
        model.base_model(input_ids=input_ids.to(model.device), use_cache=False)
    refuse_repeated(model, [one.layer for one in found])
    return found


def rows_at(
    positions: Tensor,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[LayerRows, Tensor, Tensor | None]:
    """Of one call of the attention function: rows of the queries at (B, P), those queries, and what they see.

    Raises:
        ValueError: arguments that would change the rows.
        NonFiniteError: weights or λ that are not finite.
    """
    known = ("lam", "scaling", "sliding_window", "dropout", *(() if is_differential(module) else ("s_aux",)))
    refuse_unknown({name: given for name, given in kwargs.items() if name not in known})
    chosen = query.gather(2, positions[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[-1]))
    visible = _visible(
        module, attention_mask, positions, query.shape[2], key.shape[2], sliding_window=kwargs.get("sliding_window")
    )
    lam = kwargs.get("lam")
    if lam is not None and lam.dim() and lam.shape[-1] > 1:
        lam = lam.expand(len(query), -1, -1).gather(2, positions[:, None].expand(-1, lam.shape[-2], -1))
    found = rows_of(module, chosen, key, visible, {**kwargs, "lam": lam})
    if not bool(found.maps.isfinite().all()) or (found.lam is not None and not bool(found.lam.isfinite().all())):
        raise NonFiniteError("its attention is NaN or infinite, so it measures nothing")
    return found, chosen, visible


def rows_of(module: nn.Module, query: Tensor, key: Tensor, visible: Tensor | None, kwargs: dict[str, Any]) -> LayerRows:
    """Rows of queries (B, maps, P, d) over those of the keys (B, key maps, M, d) that each sees, (B, 1|maps, P, M).

    ``kwargs`` are the call's, with λ (1|B, 1|H, 1|P) of these queries.
    """
    batch, maps, queries, width = query.shape
    scale, lam = kwargs.get("scaling"), kwargs.get("lam")
    if not is_differential(module):
        weights = softmax_weights(
            query, key, visible, is_causal=False, sliding_window=None, scale=scale, s_aux=kwargs.get("s_aux")
        )
        return LayerRows(weights.unsqueeze(2), None, layer_number(module, 0))
    assert lam is not None
    key_maps = 2 if has_two_keys(module) else 1
    shapes = Shapes(
        batch=batch, heads=maps // 2, value_heads=key.shape[1] // key_maps, key_maps=key_maps,
        queries=queries, keys=key.shape[2], width=width, value_width=key_maps * width,
    )  # fmt: skip
    both = softmax_maps(
        query, key, visible, is_causal=False, sliding_window=None, scale=scale or width**-0.5, shapes=shapes
    )
    lam = lam.detach().to(statistics_dtype(lam.dtype))
    return LayerRows(both, lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)), layer_number(module, 0))


def _visible(
    module: nn.Module,
    attention_mask: Tensor | None,
    positions: Tensor,
    length: int,
    keys: int,
    *,
    sliding_window: int | None,
) -> Tensor | None:
    """Which keys each chosen query sees, (B, 1, P, M)."""
    mask = None if attention_mask is None else boolean_mask(attention_mask)
    if mask is not None and mask.shape[-2] > 1:  # a mask by query carries causality and window itself
        mask = mask.expand(len(positions), -1, -1, -1)
        return mask.gather(2, positions[:, None, :, None].expand(-1, mask.shape[1], -1, keys))
    if not layer_is_causal(module, attention_mask):
        return mask
    distance = positions[:, None, :, None] + (keys - length) - torch.arange(keys, device=positions.device)
    causal = distance >= 0
    if sliding_window is not None:
        causal &= distance < sliding_window
    return causal if mask is None else causal & mask
