"""Selected maps of an attention call, grouped by key, for code that computes, changes and multiplies maps.

Legend: B sequences, G groups of maps with one key, R maps per group, N queries, M keys, d, dv widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.calls import AttentionCall
from antiphase.attention.forward_pass import ForwardPass
from antiphase.base.errors import InputError
from antiphase.layers.masks import carries_positions
from antiphase.ops.decoding import FEW_ROWS
from antiphase.ops.shapes import positions_mask, statistics_dtype

ONE_MASK = "changing attention needs one attention mask for all heads"


@dataclass(frozen=True)
class ChosenMaps:
    """Selected maps of one call: tensors, visibility and real tokens."""

    query: Tensor
    """(B, G, R, N, d)."""
    key: Tensor
    """(B, G, M, d)."""
    value: Tensor
    """(B, G, M, dv)."""
    mask: Tensor | None
    """Boolean (1|B, 1, 1|N, M), True = may attend."""
    is_causal: bool
    """Whether causality applies in addition to the mask; the last query is aligned with the last key."""
    sliding_window: int | None
    scale: float
    real: Tensor
    """(B, M) bool: keys that are tokens and not padding."""
    places: Tensor
    """(N,) index of each query among the keys."""
    before: Tensor
    """(B,) number of tokens that a sliding cache has dropped."""
    chosen: Tensor
    """(G, R, 1) bool: maps to be changed. The others are included because outputs are differences of maps."""

    @property
    def first(self) -> Tensor:
        """(B,) key of the first token; -1 if it was dropped."""
        return torch.where(self.before > 0, -1, self.real.long().argmax(1))

    @property
    def few(self) -> bool:
        """Whether there are so few queries that their maps are small compared with keys and values (decoding)."""
        return self.query.shape[2] * self.query.shape[3] <= FEW_ROWS

    @property
    def real_queries(self) -> Tensor:
        """(B, N) bool."""
        return self.real[:, self.places]

    @property
    def is_ordered(self) -> bool:
        """Whether a query never sees a key after its own."""
        return self.is_causal or bool(self.sliding_window)  # the mask includes a window that is not causal

    def hide(self, weights: Tensor, sequence: int, rows: Tensor, keys: Tensor) -> None:
        """Zero the weights (n, m) of queries (n,) of one sequence on keys (m,) that they do not see.

        Both are in ascending order.
        """
        if self.sliding_window or (self.mask is not None and self.mask.shape[2] > 1):
            weights.masked_fill_(~self.visible(sequence, rows, keys), 0.0)
            return
        if self.mask is not None:
            hidden = ~self.mask[sequence if len(self.mask) > 1 else 0, 0, 0, keys]
            weights.index_fill_(1, hidden.nonzero()[:, 0], 0.0)
        if self.is_causal:
            start = int(torch.searchsorted(keys, self.places[rows[0]], right=True))
            weights[:, start:].masked_fill_(keys[start:] > self.places[rows, None], 0.0)

    def visible(self, sequence: int, rows: Tensor, keys: Tensor) -> Tensor:
        """(n, m) bool: which of the keys (m,) the queries (n,) of one sequence see."""
        distance = self.places[rows, None] - keys
        found = torch.ones_like(distance, dtype=torch.bool)
        if self.is_ordered:
            found = distance >= 0
        if self.sliding_window:
            found &= distance < self.sliding_window
        if self.mask is not None:
            mask = self.mask[sequence if len(self.mask) > 1 else 0, 0]  # (1|N, M)
            found &= (mask[rows] if len(mask) > 1 else mask)[:, keys]
        return found

    def scores(self) -> Tensor:
        """Scaled scores (B, G, R, N, M); -inf if a query does not see a key."""
        keys = torch.arange(self.key.shape[2], device=self.key.device)
        rows = torch.arange(len(self.places), device=keys.device)
        batch, groups, repeats, length, width = self.query.shape
        scores = self.query.reshape(batch, groups, -1, width) @ self.key.transpose(-1, -2)
        scores = scores.view(batch, groups, repeats, length, -1).to(statistics_dtype(self.query.dtype)) * self.scale
        visible = torch.stack([self.visible(b, rows, keys) for b in range(batch)])[:, None, None]  # (B, 1, 1, N, M)
        return scores.masked_fill(~visible, float("-inf"))

    def weights(self) -> Tensor:
        """The complete maps (B, G, R, N, M); a row that sees no key is zero."""
        return softmax_of(self.scores())

    def multiply(self, weights: Tensor) -> Tensor:
        """Outputs (B, G, R, N, dv) of weights (B, G, R, N, M)."""
        flat = weights.to(self.value.dtype).flatten(2, 3)
        return (flat @ self.value).view(*weights.shape[:-1], -1)


def softmax_of(scores: Tensor) -> Tensor:
    """Softmax of scores (..., N, M), which are -inf where hidden; a row that sees no key is zero."""
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)


def outputs_by_map(outputs: Tensor) -> Tensor:
    """(B, G, R, N, dv) as (B, N, maps, dv)."""
    return outputs.flatten(1, 2).transpose(1, 2)


class _WithoutGradient(torch.autograd.Function):
    """Outputs of changed maps, which raise an error when their gradient is requested."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *inputs: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("changed attention has no gradient; train the model outside the block")


@dataclass(frozen=True)
class GroupedMaps:
    """Only the tensors, which suffice for a decoding step."""

    query: Tensor
    """(B, G, R, N, d)."""
    key: Tensor
    """(B, G, M, d)."""
    value: Tensor
    """(B, G, M, dv)."""
    chosen: Tensor
    """(G, R, 1) bool."""


class MapChoice:
    """The selection of maps to change, by layer."""

    def __init__(self, maps: Mapping[int, Sequence[int]] | None) -> None:
        """
        Args:
            maps: 0-based maps by 0-based layer; None means all.
        """
        self._maps = maps
        self._indices: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def maps(self, call: AttentionCall) -> Sequence[int]:
        """The selected maps of a call's layer."""
        return range(call.maps) if self._maps is None else self._maps.get(call.layer, ())

    def changed(self, call: AttentionCall, form: Callable[[ChosenMaps], Tensor]) -> Tensor:
        """The heads' outputs (B, N, heads, dv) of a call, with those of its selected maps recomputed, without gradient.

        Args:
            form: computes the outputs (B, G, R, N, dv) of maps.
        """
        return self.replaced(call, lambda: form(self.chosen(call)))

    def replaced(self, call: AttentionCall, form: Callable[[], Tensor]) -> Tensor:
        """Like ``changed``, for outputs (B, G, R, N, dv) of the selected maps that are computed in another way."""
        maps = self.maps(call)
        if not maps:
            return call.own()[0]
        with torch.no_grad():
            outputs = outputs_by_map(form())
        if torch.is_grad_enabled():
            outputs = _WithoutGradient.apply(outputs, call.query, call.key, call.value)
        return call.replaced(outputs, maps)

    def grouped(self, call: AttentionCall) -> GroupedMaps:
        """The selected maps of a layer, or all of them if the attention function subtracts."""
        maps, is_chosen = self._of(call)
        query, key, count = call.query, call.key, call.maps
        if call.kind.subtracts and call.kind.key_maps == 2:
            numbers = torch.arange(count, device=query.device)
            of_value = numbers // (count // call.values.shape[1])
            keys = 2 * of_value + numbers % 2
            return GroupedMaps(query.unsqueeze(2), key[:, keys], call.values[:, of_value], is_chosen[:, None, None])
        groups = key.shape[1]
        if call.kind.subtracts or len(maps) == count:
            return GroupedMaps(query.unflatten(1, (groups, -1)), key, call.value, is_chosen.view(groups, -1, 1))
        of_map = maps // (count // groups)
        return GroupedMaps(
            query[:, maps].unsqueeze(2), key[:, of_map], call.value[:, of_map], is_chosen[maps, None, None]
        )

    def chosen(self, call: AttentionCall) -> ChosenMaps:
        """The selected maps, with visibility and real tokens.

        Raises:
            ValueError: there is a mask per head or an unsupported argument, or the layer was called without its model.
        """
        call.refuse_unread()
        forward = call.forward
        if forward is None:
            raise ValueError("the model's layers were called without the model, so caches and padding are unknown")
        return _with_visible(call, forward, self.grouped(call))

    def _of(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """The selected maps (chosen,) int64, and whether each map is selected, (maps,) bool."""
        name = call.layer, call.query.device
        if name not in self._indices:
            given = self.maps(call)
            if given[-1] >= call.maps:  # layers may differ, and a configuration may tell of an encoder that is absent
                raise InputError(
                    f"the plan names head {given[-1]} of layer {call.layer}, but heads of this layer are 0 to "
                    f"{call.maps - 1}"
                )
            maps = torch.tensor(list(given), device=call.query.device)
            is_chosen = torch.zeros(call.maps, dtype=torch.bool, device=call.query.device)
            self._indices[name] = maps, is_chosen.index_fill_(0, maps, True)
        return self._indices[name]


def _with_visible(call: AttentionCall, forward: ForwardPass, grouped: GroupedMaps) -> ChosenMaps:
    batch, _, _, length, _ = grouped.query.shape
    total = forward.past + length
    if call.attention_mask is None and grouped.key.shape[2] > total:  # empty slots of a static cache
        grouped = replace(grouped, key=grouped.key[:, :, :total], value=grouped.value[:, :, :total])
    keys = grouped.key.shape[2]
    mask, is_causal, window = call.mask, call.is_causal, call.declared_window
    if mask is not None and mask.shape[1] > 1:
        raise ValueError(ONE_MASK)
    seen = mask[:, 0].any(1) if mask is not None and carries_positions(mask, length) else None  # (1|B, M)
    if seen is not None:
        assert mask is not None
        by_key = _by_key(forward, call, mask)
        if by_key is None:
            window = None
        else:
            mask, is_causal = by_key, call.hides_later_keys and length > 1
    if forward.real is not None:
        real = forward.real[:, :total]
    else:
        real = grouped.query.new_ones(batch, total, dtype=torch.bool)
        if seen is not None:
            real = forward.state.seen(call.layer, seen.expand(batch, -1), total)
    before = real[:, : max(0, total - keys)].sum(1)
    places = torch.arange(length, device=real.device) + min(total, keys) - length
    real = real[:, max(0, total - keys) :]
    return ChosenMaps(
        query=grouped.query, key=grouped.key, value=grouped.value, mask=mask, is_causal=is_causal,
        sliding_window=window, scale=call.scale, real=torch.nn.functional.pad(real, (0, keys - real.shape[1])),
        before=before, places=places, chosen=grouped.chosen,
    )  # fmt: skip


def _by_key(forward: ForwardPass, call: AttentionCall, mask: Tensor) -> Tensor | None:
    """A per-query mask (1|B, 1, N, M) as a per-key one (1|B, 1, 1, M), if causality and window cover the rest.

    This avoids computing blocks above the diagonal.
    """
    given, is_causal = call.attention_mask, call.hides_later_keys
    rest = is_causal, call.arguments.get("sliding_window")
    for known, known_rest, by_key in forward.masks_by_key:
        if known is given and known_rest == rest:
            return by_key
    found = mask.any(2, keepdim=True)
    positions = positions_mask(
        *mask.shape[2:], is_causal=is_causal, sliding_window=call.declared_window, device=mask.device
    )
    is_rest = torch.equal(mask, found.expand_as(mask) if positions is None else found & positions)
    forward.masks_by_key.append((given, rest, found if is_rest else None))
    return found if is_rest else None
