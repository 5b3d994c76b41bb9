"""Texts with a common beginning: its keys and values are computed and stored once, and no text has a copy of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall
from antiphase.attention.hooks import transformed
from antiphase.attention.last_tokens import LastTokens
from antiphase.attention.stored_keys import NUMBERS_AT_ONCE, among_copies, attended


class Beginning:
    """The stored beginning of texts, whose other tokens the model reads within ``continued``."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int]) -> None:
        """
        Args:
            ids: token ids of the beginning.

        Raises:
            ValueError: what the model computes for later tokens does not follow from the stored keys and values, a
                layer hides some of them, or the model takes no positions (``LastTokens``).
        """
        self.model, self.length = model, len(ids)
        self._calls = LastTokens(model, torch.tensor([ids]), torch.tensor([[len(ids) - 1]])).calls
        for call in self._calls:
            if call.window is not None or (call.visible is not None and not bool(call.visible.all())):
                raise ValueError(f"layer {call.number} of {type(model).__name__} does not see all earlier tokens")

    @property
    def tokens_at_once(self) -> int:
        """How many other tokens of texts are read at a time.

        Memory limits it, and the wasted part of attention, which is that of each text's tokens to the other texts'.
        """
        maps = max(call.query.shape[1] for call in self._calls)
        in_memory = (math.isqrt(self.length**2 + 4 * NUMBERS_AT_ONCE // maps) - self.length) // 2
        return min(self.length // 4, in_memory)

    @contextmanager
    def continued(self, real: Tensor) -> Iterator[None]:
        """Within the block, every token that the model reads also sees the beginning.

        Positions are to be passed to the model, and a cache, if there is one, holds only the texts' other tokens.

        Args:
            real: (texts, R) bool, which of the other tokens, those in the cache included, are not padding.
        """
        calls = iter(self._calls)

        def attention(call: AttentionCall) -> Tensor:
            texts, _, queries, _ = call.query.shape
            keys = call.key.shape[2]
            here = real.to(call.query.device)
            causal = here.new_ones(queries, keys).tril(keys - queries)
            own = (here[:, None] & causal)[None, None]  # (1, 1, texts, N, R)
            seen = here.new_ones(*own.shape[:-1], self.length)
            visible = torch.cat([seen, among_copies(own)], dim=-1).flatten(2, 3)
            return attended(next(calls), call, texts, visible)

        with transformed(self.model, attention):
            yield
