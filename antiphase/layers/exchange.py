"""Sequences divided over processes: around an attention function, its heads are divided instead.

Outside, each of C processes has N/C neighbouring tokens of every head. Inside, it has all N tokens of 1/C of the heads,
so that any attention function, mask and window serves (Jacobs et al., DeepSpeed Ulysses, 2309.14509, section 3.1).

Legend: B batch, n = N/C tokens of a process, d width of a map, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.distributed_c10d import GroupName

from antiphase.layers.functions import AttentionFunction, has_two_keys, is_differential
from antiphase.ops.shapes import autocast_dtype


@dataclass(frozen=True)
class Exchange:
    """The processes that divide the sequences of a forward pass.

    All of them make the same calls in the same order. Gradients flow through the exchange: the sum of a parameter's
    gradients over the processes is its gradient of the sum of their losses.
    """

    group: str
    """Name of the process group (``ProcessGroup.group_name``)."""
    count: int
    """Number of processes, C."""
    rank: int
    """Place of this process, and of its tokens, among them."""

    def own(self, whole: Tensor, dim: int = 1) -> Tensor:
        """This process's tokens of whole sequences.

        Raises:
            ValueError: the processes do not divide the tokens evenly.
        """
        size = whole.shape[dim]
        if size % self.count:
            raise ValueError(f"{self.count} processes do not divide {size} tokens evenly; pad the sequences")
        return whole.narrow(dim, self.rank * (size // self.count), size // self.count)

    def around(self, function: AttentionFunction) -> AttentionFunction:
        """An attention function for n of N tokens, whose mask is for all N; it returns no weights."""

        def exchanged(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None,
            *,
            lam: Tensor | None = None,
            s_aux: Tensor | None = None,
            **kwargs: Any,
        ) -> tuple[Tensor, None]:
            extra = {}
            if lam is not None:
                extra["lam"] = self._lambda(lam, query)
            if s_aux is not None:
                extra["s_aux"] = self._part(s_aux, 0)
            query, key, value = self._heads(module, query, key, value)
            with grouped(module, query.shape[1] // key.shape[1]):
                out, _ = function(module, query, key, value, attention_mask, **extra, **kwargs)
            return self._tokens(out), None

        return exchanged

    def _heads(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All tokens of this process's maps: (B, maps, n, d) to (B, maps / C, N, d), and so with key maps."""
        maps = 2 if is_differential(module) else 1
        shared = 2 if has_two_keys(module) else 1
        check_heads(query.shape[1] // maps, key.shape[1] // shared, self.count)
        copies = max(1, self.count * shared // key.shape[1])
        given = [query, *(_repeated(one, shared, copies) for one in (key, value))]
        if (dtype := autocast_dtype(*given)) is not None:  # the function would round them to this, too
            given = [one.to(dtype) for one in given]
        sizes = [one.shape[1] // self.count for one in given]
        joined = torch.cat([one.unflatten(1, (self.count, -1)) for one in given], dim=2)  # (B, C, own maps, n, d)
        first, second, third = self._swapped(joined).movedim(0, 2).flatten(2, 3).split(sizes, dim=1)
        return first, second, third

    def _tokens(self, out: Tensor) -> Tensor:
        """This process's tokens of all heads: (B, N, H / C, width) to (B, n, H, width)."""
        return self._swapped(out.unflatten(1, (self.count, -1))).movedim(0, 2).flatten(2, 3)

    def _lambda(self, lam: Tensor, query: Tensor) -> Tensor:
        """λ of this process's heads: one number for all as it is, (H, 1), or (B, H, n) to (B, H / C, N)."""
        if lam.dim() < 2 or lam.shape[-2:] == (1, 1):
            return lam
        if lam.shape[-1] == 1 and query.shape[2] > 1:
            return self._part(lam, lam.dim() - 2)
        wide = lam.expand(len(query), query.shape[1] // 2, -1).unflatten(1, (self.count, -1))
        return self._swapped(wide).movedim(0, 2).flatten(2, 3)

    def _part(self, value: Tensor, dim: int) -> Tensor:
        """This process's part of a dimension."""
        return value.chunk(self.count, dim)[self.rank]

    def _swapped(self, value: Tensor) -> Tensor:
        """Send part c of dimension 1, of size C, to process c; what process c has sent is part c of dimension 0."""
        parts = value.movedim(1, 0).contiguous()
        return wait_tensor(all_to_all_single_autograd(parts, None, None, GroupName(self.group)))


def check_heads(heads: int, groups: int, count: int) -> None:
    """
    Args:
        heads: of a layer.
        groups: value heads, each with its keys, that they share.
        count: processes.

    Raises:
        ValueError: the processes do not divide the heads.
    """
    if heads % count or (groups % count and count % groups):
        shared = "" if groups == heads else f" with {groups} value heads"
        raise ValueError(f"{count} processes do not divide {heads} heads{shared}")


@contextmanager
def grouped(module: Any, groups: int) -> Iterator[None]:
    """Within the block, a layer tells functions that ask it that so many maps share a key."""
    before = module.num_key_value_groups
    module.num_key_value_groups = groups
    try:
        yield
    finally:
        module.num_key_value_groups = before


def _repeated(value: Tensor, together: int, copies: int) -> Tensor:
    """(B, key maps, n, d) with each value head several times in a row, as often as processes need it."""
    if copies == 1:
        return value
    return value.unflatten(1, (-1, together)).repeat_interleave(copies, dim=1).flatten(1, 2)
