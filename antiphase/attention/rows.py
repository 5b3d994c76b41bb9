"""Attention rows of selected queries in every layer, with both maps of each head. Memory is linear in length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall, Pairing
from antiphase.attention.hooks import observed
from antiphase.attention.own_maps import changes_scores, shares, without_bias
from antiphase.base.errors import NonFiniteError
from antiphase.base.modes import evaluation_mode
from antiphase.layers.functions import softmax_weights
from antiphase.ops.reference import softmax_maps
from antiphase.ops.shapes import Shapes, statistics_dtype


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer: B sequences, P queries, M keys."""

    maps: Tensor
    """(B, heads, S, P, M): S = 2 maps of a differential head, 1 of a softmax head; each row sums to one."""
    lam: Tensor | None
    """(1|B, 1|heads, 1|P), or None for softmax attention."""
    layer: int
    """The model's number of the layer, 0-based; the model may also have layers without attention."""
    visible: Tensor | None = None
    """(1|B, 1|maps, 1|P, M) bool: the keys that each query sees; None: all."""

    def first(self) -> LayerRows:
        """The rows of the first query."""
        lam, visible = self.lam, self.visible
        return replace(
            self,
            maps=self.maps[:, :, :, :1],
            lam=None if lam is None else lam[..., :1],
            visible=None if visible is None else visible[:, :, :1],
        )

    def weights(self) -> Tensor:
        """The weights that multiply the values: (B, heads, P, M), signed for differential attention."""
        if self.lam is None:
            return self.maps[:, :, 0]
        return self.maps[:, :, 0] - self.lam.unsqueeze(-1) * self.maps[:, :, 1]


@torch.no_grad()
def attention_rows(model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> list[LayerRows]:
    """Attention of the queries at ``positions`` in every layer, in order, on the CPU.

    A layer that changes its scores (``own_maps``) forms whole maps, one layer at a time.

    Args:
        input_ids: (B, N) without padding.
        positions: (B, P), 0-based.

    Raises:
        InputError: the model is an encoder–decoder.
        ValueError: attention does not use transformers' interface, or has keys that are not the text's tokens.
        NonFiniteError: weights or λ are not finite.
    """
    found: list[LayerRows] = []
    positions = positions.to(model.device)

    def observe(call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if not call.is_second_half:
            found.append(rows_in(call, heads, positions))

    with evaluation_mode(model), observed(model, observe, once=True):
        model.base_model(input_ids=input_ids.to(model.device), use_cache=False)
    return found


def rows_in(call: AttentionCall, heads: Tensor, positions: Tensor) -> LayerRows:
    """The rows of a call's queries at positions (B, P), on the CPU, given the heads' outputs (B, N, heads, dv)."""
    is_own = changes_scores(call, "s_aux")
    return rows_of_heads(call, _own_rows(positions, call, heads) if is_own else rows_at(positions, call)[0])


def rows_of_heads(call: AttentionCall, rows: LayerRows) -> LayerRows:
    """The rows of ``rows_at`` on the CPU, by head even if the layer itself subtracts the second map of each head."""
    maps, lam, visible = rows.maps, rows.lam, rows.visible
    if call.kind.pairing is Pairing.HALVES:
        maps, lam = maps[:, :, 0].unflatten(1, (2, -1)).transpose(1, 2), call.lam
    return LayerRows(
        maps.cpu(), None if lam is None else lam.cpu(), call.layer, None if visible is None else visible.cpu()
    )


def rows_at(positions: Tensor, call: AttentionCall) -> tuple[LayerRows, Tensor, Tensor | None]:
    """Rows of a call's queries at positions (B, P), those queries, and a mask of the keys they see.

    A head has two maps here if the attention function subtracts them.

    Raises:
        ValueError: an argument would change the rows, or keys are not the text's tokens.
        NonFiniteError: weights or λ are not finite.
    """
    call.refuse_other_keys()
    call.refuse_unread("dropout", *(() if call.kind.subtracts else ("s_aux",)))
    query, lam = call.query, call.lam if call.kind.subtracts else None
    positions = positions.to(query.device)  # of a model on several devices
    chosen = query.gather(2, positions[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[-1]))
    visible = _visible(call, positions)
    if lam is not None and lam.shape[-1] > 1:
        lam = lam.expand(len(query), -1, -1).gather(2, positions[:, None].expand(-1, lam.shape[-2], -1))
    found = rows_of(call, chosen, call.key, visible, lam)
    if not bool(found.maps.isfinite().all()) or (found.lam is not None and not bool(found.lam.isfinite().all())):
        raise NonFiniteError("its attention is NaN or infinite, so it measures nothing")
    return found, chosen, visible


def _own_rows(positions: Tensor, call: AttentionCall, heads: Tensor) -> LayerRows:
    """Rows of a call that changes its scores, given the heads' outputs (B, N, heads, dv)."""
    call.refuse_other_keys()
    positions = positions.to(call.query.device)
    maps = shares(call, heads)
    places = positions[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[-1])
    rows = maps.gather(2, places).unsqueeze(2)
    return LayerRows(rows, None, call.layer, _visible(without_bias(call), positions))


def rows_of(call: AttentionCall, query: Tensor, key: Tensor, visible: Tensor | None, lam: Tensor | None) -> LayerRows:
    """Rows of queries (B, maps, P, d) over keys (B, key maps, M, d), given the ``visible`` keys (B, 1|maps, P, M).

    ``call`` determines how they are computed; ``lam`` (1|B, 1|H, 1|P) is λ of these queries.
    """
    if lam is None:
        weights = softmax_weights(
            query, key, visible, is_causal=False, sliding_window=None, scale=call.scale,
            s_aux=call.arguments.get("s_aux"),
        )  # fmt: skip
        return LayerRows(weights.unsqueeze(2), None, call.layer, visible)
    batch, maps, queries, width = query.shape
    key_maps = call.kind.key_maps
    shapes = Shapes(
        batch=batch, heads=maps // 2, value_heads=key.shape[1] // key_maps, key_maps=key_maps,
        queries=queries, keys=key.shape[2], width=width, value_width=key_maps * width,
    )  # fmt: skip
    both = softmax_maps(query, key, visible, is_causal=False, sliding_window=None, scale=call.scale, shapes=shapes)
    return LayerRows(both, lam.detach().to(statistics_dtype(lam.dtype)), call.layer, visible)


def _visible(call: AttentionCall, positions: Tensor) -> Tensor | None:
    """Which keys each selected query sees, (1|B, 1|maps, 1|P, M); None: all."""
    length, keys = call.query.shape[2], call.key.shape[2]
    mask, window = call.mask, call.sliding_window
    if mask is not None and mask.shape[-2] > 1:  # a mask per query already includes causality and window
        mask = mask.expand(len(positions), -1, -1, -1)
        return mask.gather(2, positions[:, None, :, None].expand(-1, mask.shape[1], -1, keys))
    if not call.is_causal and window is None:
        return mask
    distance = positions[:, None, :, None] + (keys - length) - torch.arange(keys, device=positions.device)
    causal = distance >= 0
    if window is not None:
        causal &= distance < window
    return causal if mask is None else causal & mask
