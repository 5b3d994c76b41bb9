"""One call of a model's attention function, interpreted for everything that measures or changes attention.

Legend: B sequences, N queries, M keys, d width of a map, G groups of maps that share their keys, R heads per group, S
maps per head (1, or 2 in differential heads), H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from antiphase.attention.forward_pass import ForwardPass
from antiphase.attention.interface import differential_part
from antiphase.layers.differential import DifferentialHeads
from antiphase.layers.functions import has_two_keys, is_differential, join_halves, refuse_unknown, split_halves
from antiphase.layers.masks import layer_is_causal, visible_keys


class Pairing(Enum):
    """Which maps of a layer form a head."""

    NONE = "none"
    """Every map is a head."""
    NEIGHBOURS = "neighbours"
    """Maps 2i and 2i + 1 are head i."""
    HALVES = "halves"
    """Maps i and i + H are head i."""

    def by_map(self, grouped: Tensor) -> Tensor:
        """(B, G, R, S, ...) as (B, maps, ...), in the model's own order."""
        return (grouped.movedim(3, 1) if self is Pairing.HALVES else grouped).flatten(1, 3)


@dataclass(frozen=True)
class AttentionKind:
    """Properties that all calls of a layer share."""

    pairing: Pairing
    key_maps: int
    """Keys per head: 2 if each map has its own key, 1 if its maps share one."""
    subtracts: bool
    """Whether the attention function itself subtracts the second map of each head and so returns H outputs."""
    finishes: bool = False
    """Whether it also normalizes the heads' outputs, with ``module.differential``."""
    calls_twice: bool = False
    """Whether the layer calls the attention function once for each half of the values, with the same queries."""


SOFTMAX = AttentionKind(Pairing.NONE, key_maps=1, subtracts=False)
V1 = AttentionKind(Pairing.NEIGHBOURS, key_maps=2, subtracts=True)
V2 = AttentionKind(Pairing.NEIGHBOURS, key_maps=1, subtracts=True)
INSIDE = AttentionKind(Pairing.NEIGHBOURS, key_maps=2, subtracts=True, finishes=True)
"""V1 in the layers of ``differential_config``, whose attention function subtracts and normalizes."""
DIFFLLAMA = AttentionKind(Pairing.HALVES, key_maps=2, subtracts=False, calls_twice=True)
"""DiffLlama: the layer subtracts after two calls of the function, one for each half of the values."""


DIFFLLAMA_LAYER = ("transformers.models.diffllama.modeling_diffllama", "DiffLlamaAttention")
"""Module and name of DiffLlama's class, which need not be imported in order to recognize it."""


def kind_of(module: nn.Module) -> AttentionKind:
    """The kind of an attention layer: what it declares, or what its class is known to be.

    The variant ``differential_v2_across`` counts as softmax attention: its maps multiply different values, so there is
    no difference of maps.
    """
    if is_differential(module):
        return V1 if has_two_keys(module) else V2
    if isinstance(getattr(module, "differential", None), DifferentialHeads):
        return INSIDE
    is_diffllama = DIFFLLAMA_LAYER in {(one.__module__, one.__name__) for one in type(module).__mro__}
    return DIFFLLAMA if is_diffllama else SOFTMAX


@dataclass(frozen=True)
class AttentionCall:
    """One call of a layer's attention function."""

    module: nn.Module
    """The attention layer."""
    layer: int
    """The model's number of the layer, 0-based; the model may also have layers without attention."""
    kind: AttentionKind
    query: Tensor
    """(B, maps, N, d)."""
    key: Tensor
    """(B, key maps, M, d), in the layout of the cache."""
    value: Tensor
    """(B, value heads or halves of them, M, dv), in the layout of the cache."""
    attention_mask: Tensor | BlockMask | None
    """As the layer passed it; see ``mask``."""
    arguments: Mapping[str, Any]
    """The keyword arguments that the layer passed."""
    own: Callable[[], tuple[Tensor, Tensor | None]]
    """Computes what the model would have computed: the heads' outputs (B, N, heads, dv), before any further processing
    by the attention function (``finish``), and the weights if it returns them.
    """
    forward: ForwardPass | None = None
    """The forward pass of the call; None if the layer was called without its model."""
    is_second_half: bool = False
    """Whether the previous call of this layer had the same queries and keys and the other half of the values."""

    # ------------------------------------------------------------------------------------------ computation

    @property
    def maps(self) -> int:
        """Number of softmax maps in the layer."""
        return self.query.shape[1]

    @cached_property
    def lam(self) -> Tensor | None:
        """λ, (1|B, 1|H, 1|N); None in softmax layers."""
        module = self.module
        lam: Tensor
        if self.kind is INSIDE:
            lam = differential_part(module)()
        elif self.kind is DIFFLLAMA:
            lam = _diffllama_lambda(module)
        elif self.kind.subtracts:
            lam = self.arguments["lam"]
        else:
            return None
        return lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape))

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        scale: float | None = self.arguments.get("scaling")
        return self.query.shape[-1] ** -0.5 if scale is None else scale

    @cached_property
    def values(self) -> Tensor:
        """Whole value heads (B, value heads, M, dv)."""
        return join_halves(self.value) if self.kind.subtracts and self.kind.key_maps == 2 else self.value

    def unread(self, *also_read: str) -> dict[str, Any]:
        """The arguments of the call besides λ, scale, window, causality and ``also_read``."""
        read = ("lam", "scaling", "sliding_window", "is_causal", *also_read)
        return {name: given for name, given in self.arguments.items() if name not in read}

    def refuse_unread(self, *also_read: str) -> None:
        """Refuse arguments that change the result but are not taken into account.

        Args:
            also_read: names of further arguments, besides λ, scale and window, that the caller takes into account.

        Raises:
            ValueError: there is such an argument; the message names it.
        """
        kind = getattr(getattr(self.module, "config", None), "model_type", None)
        refuse_unknown(
            self.unread(*also_read),
            self.module,
            what=f"measuring or changing attention of {f'models of type {kind}' if kind else 'this model'}",
            otherwise="antiphase evaluate measures the model as it is",
        )

    def refuse_other_keys(self) -> None:
        """Refuse keys other than the queries' own tokens: another sequence's, or the compressed ones of DeepSeek V4.

        Raises:
            ValueError: there are more or fewer keys than queries.
        """
        keys, queries = self.key.shape[2], self.query.shape[2]
        if keys != queries:
            raise ValueError(
                f"{type(self.module).__name__} attends to {keys} keys with {queries} queries; keys that are not the "
                "text's own tokens are not measured; antiphase evaluate measures the model as it is"
            )

    # ------------------------------------------------------------------------------------------ visibility

    @cached_property
    def _visible(self) -> tuple[Tensor | None, bool, int | None]:
        window = self.arguments.get("sliding_window")
        given = self.arguments.get("is_causal")
        return visible_keys(self.module, self.attention_mask, self.query, self.key, window, given)

    @property
    def hides_later_keys(self) -> bool:
        """Whether the layer is causal (``masks.layer_is_causal``), whatever part of that its mask has."""
        return layer_is_causal(self.module, self.attention_mask, self.arguments.get("is_causal"))

    @property
    def mask(self) -> Tensor | None:
        """Boolean, broadcastable to (B, maps, N, M), True = may attend.

        Raises:
            ValueError: the mask is additive and holds a bias.
        """
        return self._visible[0]

    @property
    def is_causal(self) -> bool:
        """Whether causality must be applied in addition to the mask, with the last query aligned with the last key."""
        return self._visible[1]

    @property
    def sliding_window(self) -> int | None:
        """The window that must be applied in addition to the mask."""
        return self._visible[2]

    @property
    def declared_window(self) -> int | None:
        """The window that a causal layer declared, even if its mask already includes it."""
        window: int | None = self.arguments.get("sliding_window")
        return window if self.hides_later_keys else None

    @property
    def is_step(self) -> bool:
        """Whether this is a decoding step: one query after keys of earlier calls."""
        return self.query.shape[2] == 1 and self.forward is not None and self.forward.past > 0

    # ------------------------------------------------------------------------------------------ maps by heads

    def by_group(self) -> tuple[Tensor, Tensor]:
        """Queries (B, G, R, S, N, d) and keys (B, G, 1|S, M, d), with the maps of a head next to each other."""
        if self.kind.pairing is Pairing.NONE:
            return self.query.unflatten(1, (self.key.shape[1], -1, 1)), self.key.unsqueeze(2)
        groups = self.key.shape[1] // self.kind.key_maps
        if self.kind.pairing is Pairing.NEIGHBOURS:
            return self.query.unflatten(1, (groups, -1, 2)), self.key.unflatten(1, (groups, self.kind.key_maps))
        query = self.query.unflatten(1, (2, groups, -1)).movedim(1, 3)
        return query, self.key.unflatten(1, (2, groups)).transpose(1, 2)

    # ------------------------------------------------------------------------------------------ outputs

    def heads_of(self, outputs: Tensor) -> Tensor:
        """The heads' outputs (B, N, heads, dv) from those of all maps, subtracted if the attention function would."""
        if not self.kind.subtracts:
            return outputs
        assert self.lam is not None
        first, second = outputs.unflatten(2, (-1, 2)).unbind(3)
        return (first - self.lam.transpose(1, 2).unsqueeze(-1) * second).to(self.query.dtype)

    def replaced(self, outputs: Tensor, maps: Sequence[int]) -> Tensor:
        """The heads' outputs (B, N, heads, dv) with those of some maps replaced.

        Args:
            outputs: (B, N, maps, dv) of ``maps``, or of all maps if the attention function subtracts.
        """
        if self.kind.subtracts or len(maps) == self.maps:
            return self.heads_of(outputs)
        heads = self.own()[0].clone()
        heads[:, :, list(maps)] = outputs
        return heads

    def finish(self, heads: Tensor) -> Tensor:
        """The attention function's return value for heads' outputs (B, N, heads, dv)."""
        if not self.kind.finishes:
            return heads
        finished: Tensor = differential_part(self.module).finish(heads)
        return split_halves(finished.to(self.query.dtype))


def _diffllama_lambda(module: nn.Module) -> Tensor:
    """λ of DiffLlama's layers, 0-d."""
    first, second = (
        torch.exp((getattr(module, f"lambda_q{i}").float() * getattr(module, f"lambda_k{i}").float()).sum())
        for i in (1, 2)
    )
    return first - second + float(module.lambda_init)  # type: ignore[arg-type]  # a number in DiffLlama
