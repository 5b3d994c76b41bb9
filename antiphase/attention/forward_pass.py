"""The forward pass of an attention call, and the state that a ``with`` block keeps with a cache between passes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache

from antiphase.attention.caches import cache_in

STATES = "_antiphase_states"
"""Attribute of a followed cache: the state of each block, by the block's number."""
_FOLLOWED: WeakSet[Cache] = WeakSet()


@dataclass
class SequenceState:
    """Tensors that belong to the sequences of a cache (sequences first), by name and layer."""

    kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """``real`` (B, M) bool, if only masks per query tell tokens from padding; subclasses keep further tensors."""
    is_whole: bool = True
    """Whether the block saw the sequences from the start: no keys were cached before its first pass."""

    def seen(self, layer: int, keys: Tensor, total: int) -> Tensor:
        """Which of all tokens (B, total) any query of this or an earlier call sees, given keys (B, M) of this call."""
        now = torch.nn.functional.pad(keys, (max(0, total - keys.shape[1]), 0))[:, :total]
        earlier = self.kept.get(("real", layer))
        if earlier is not None:
            now = now | torch.nn.functional.pad(earlier, (0, total - earlier.shape[1]))
        self.kept["real", layer] = now
        return now

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences, in this order."""
        for name, tensor in self.kept.items():
            self.kept[name] = tensor[rows.to(tensor.device)]

    def repeat(self, repeats: int) -> None:
        """Repeat each sequence this many times, consecutively."""
        for name, tensor in self.kept.items():
            self.kept[name] = tensor.repeat_interleave(repeats, dim=0)

    def check_crop(self) -> None:
        """
        Raises:
            ValueError: the last tokens cannot be removed.
        """

    def crop(self, length: int) -> None:
        """Keep only the first ``length`` tokens."""


@dataclass
class ForwardPass:
    """Information about a forward pass that an attention function does not get."""

    input_ids: Tensor | None = None
    """(B, N), if the model was given token ids."""
    real: Tensor | None = None
    """(B, all keys) bool: tokens that are not padding; None if all are, or if only masks per query show it."""
    past: int = 0
    """Number of keys from earlier passes."""
    state: SequenceState = field(default_factory=SequenceState)
    """State of the sequences, which is kept with their cache."""
    layers: list[int] = field(default_factory=list)
    """Layers called so far, in the order of their calls."""
    query: Tensor | None = None
    """Query of the last call."""
    masks_by_key: list[tuple[Tensor | BlockMask | None, tuple[bool, int | None], Tensor | None]] = field(
        default_factory=list
    )
    """Masks per query, causality and window of layers, and equivalent masks per key or None. Layers share their masks,
    and layers with and without a window may share one.
    """


def begin_pass(given: Mapping[str, Any], number: int, state: type[SequenceState]) -> ForwardPass:
    """A forward pass of block ``number`` with these arguments of the model.

    Raises:
        ValueError: the model attends to another sequence.
    """
    if given.get("encoder_hidden_states") is not None:
        raise ValueError("attention to another sequence (encoder_hidden_states) cannot be measured or changed")
    cache, mask, ids = cache_in(given), given.get("attention_mask"), given.get("input_ids")
    past = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
    known = getattr(cache, STATES, {}).get(number) if past else None
    return ForwardPass(
        input_ids=ids,
        real=mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None,
        past=past,
        state=state(is_whole=past == 0) if known is None else known,
    )


def follow(cache: Cache, number: int, state: SequenceState) -> None:
    """Apply every later change of the cache's sequences to the state as well, until the block is released."""
    if not hasattr(cache, STATES):
        setattr(cache, STATES, {})
        cache.__class__ = _followed(type(cache))  # type: ignore[arg-type]  # a class is hashable
        _FOLLOWED.add(cache)
    getattr(cache, STATES)[number] = state


def release(number: int) -> None:
    """Drop the states of a block that ends. A cache without any other is an ordinary one of its own class again."""
    for cache in list(_FOLLOWED):
        states = getattr(cache, STATES)
        states.pop(number, None)
        if not states:
            _FOLLOWED.discard(cache)
            delattr(cache, STATES)
            cache.__class__ = type(cache).__bases__[1]


class _Followed:
    """Overrides of a followed cache for methods that change which sequences or tokens it holds."""

    def _states(self) -> list[SequenceState]:
        return list(getattr(self, STATES).values())

    def __reduce__(self) -> Any:  # what another process gets is of the cache's own class and has no states
        plain = {name: value for name, value in vars(self).items() if name != STATES}
        return object.__new__, (type(self).__bases__[1],), plain

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = object.__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))
        _FOLLOWED.add(twin)
        return twin

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[misc]  # a method of the cache's own class
        for state in self._states():
            state.select(beam_idx)

    def batch_select_indices(self, indices: Any) -> None:
        super().batch_select_indices(indices)  # type: ignore[misc]  # a method of the cache's own class
        for state in self._states():
            state.select(torch.as_tensor(indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]  # a method of the cache's own class
        for state in self._states():
            state.repeat(repeats)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        for state in self._states():
            state.check_crop()
        super().crop(*args, **kwargs)  # type: ignore[misc]  # a method of the cache's own class
        for state in self._states():
            state.crop(self.get_seq_length())  # type: ignore[attr-defined]  # a method of the cache's own class


@functools.cache
def _followed(kind: type[Cache]) -> type[Cache]:
    """The subclass of a cache class for followed caches, with the same name."""
    return type(kind.__name__, (_Followed, kind), {"__module__": kind.__module__})
