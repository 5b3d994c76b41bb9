"""The base of all attention layers: projections, positions, cache, the call of the attention function, norm and gate.

Legend: B batch, N new tokens, M keys, d width of a map, H heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol, TypedDict

import torch
from torch import Tensor, nn

from antiphase.base.errors import InputError
from antiphase.layers.exchange import Exchange
from antiphase.layers.functions import AttentionFunction, antiphase_attention, is_differential
from antiphase.layers.marks import mark_first_weight, mark_residual_output
from antiphase.layers.norm import RMSNorm
from antiphase.layers.positions import rotate

SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads")


def check_counts(given: Mapping[str, Any], names: Iterable[str], *, optional: Iterable[str] = ()) -> None:
    """
    Raises:
        InputError: an argument is not a whole number of at least 1 (or None, if it is optional); the message names it.
    """
    for name in (*names, *(name for name in optional if given.get(name) is not None)):
        value = given[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")


class KeyValueCache(Protocol):
    """Keys and values of earlier calls, with the interface of transformers' caches."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Add keys and values (B, key maps, N, d) of a layer; return all of them, (B, key maps, M, d)."""


class CommonArguments(TypedDict, total=False):
    """Keyword arguments of every layer; see ``AttentionLayer``."""

    num_key_value_heads: int | None
    head_dim: int | None
    context_size: int | None
    layer_idx: int | None
    is_causal: bool
    bias: bool
    output_bias: bool | None
    qk_norm_eps: float | None
    whole_qk_norm: bool
    sliding_window: int | None
    attention: AttentionFunction
    head_norm_eps: float
    head_norm_init: float


class AttentionLayer(nn.Module):
    """Projections, attention and output projection of grouped maps; the base class of all kinds of attention.

    Args:
        hidden_size: width of the input and the output.
        num_attention_heads: softmax maps of the layer.
        queries: number of query vectors of width d per token.
        outputs: number of output vectors of width d per token, over all heads.
        num_key_value_heads: number of key maps; None means the default of the kind of attention.
        head_dim: d; None means ``hidden_size / num_attention_heads``.
        context_size: width of another sequence to attend to; None means ``hidden_size``.
        layer_idx: 0-based depth of the layer, which sets λinit as published, and its index in a cache, which needs it;
            None means λinit = 0.8.
        is_causal: a query sees its own position and those before it; the last query is aligned with the last key. An
            encoder and a layer that attends to a context need False.
        bias: whether the projections have biases.
        output_bias: whether the output projection has one; None means as the others.
        qk_norm_eps: ε of an RMSNorm of each query and each key before they are rotated, whose weights all maps of the
            layer share, as in Qwen3; None means no norm.
        whole_qk_norm: whether that norm is of all queries of a token together, and of all its keys, as in OLMo 2.
        sliding_window: a token sees itself and the ``sliding_window - 1`` before it; None means all tokens before it.
        attention: the attention function (``functions.py``): the fast operator, ``eager_attention``, which also returns
            the weights, or any function with the signature of transformers' attention interface.
        head_norm_eps: ε of the norm of each head's output.
        head_norm_init: initial weight of that norm.

    Raises:
        InputError: an argument has a wrong value; the message names it.
    """

    attention_form: ClassVar[str] = "softmax"
    """The form of attention that attention functions compute for this layer; see ``form_of``."""
    zero_at_start: ClassVar[tuple[str, ...]] = ()
    """Parameters initialized to 0, so that the layer starts in its published form."""
    kept_in_fp32: ClassVar[tuple[str, ...]] = ()
    """Parameters that stay in fp32 in a half-precision model."""
    by_layer: ClassVar[Mapping[str, str]] = {}
    """Arguments for which a configuration may list a value for each layer, and what such a value is."""

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        queries: int,
        outputs: int,
        layer_idx: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        context_size: int | None = None,
        is_causal: bool = True,
        bias: bool = False,
        output_bias: bool | None = None,
        qk_norm_eps: float | None = None,
        whole_qk_norm: bool = False,
        sliding_window: int | None = None,
        attention: AttentionFunction = antiphase_attention,
        head_norm_eps: float = 1e-5,
        head_norm_init: float = 1.0,
    ) -> None:
        super().__init__()
        assert num_key_value_heads is not None  # ``checked`` has filled it in
        self.is_causal, self.layer_idx, self.sliding_window = is_causal, layer_idx, sliding_window
        self.attention = attention
        self.num_attention_heads = num_attention_heads
        self.head_dim = width = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.scaling = width**-0.5
        self.num_key_value_groups = num_attention_heads // num_key_value_heads
        self.head_norm_eps, self.head_norm_init = head_norm_eps, head_norm_init
        source = hidden_size if context_size is None else context_size
        self.q_proj = nn.Linear(hidden_size, queries * width, bias=bias)
        self.k_proj = nn.Linear(source, num_key_value_heads * width, bias=bias)
        self.v_proj = nn.Linear(source, num_key_value_heads * width, bias=bias)
        self.o_proj = nn.Linear(outputs * width, hidden_size, bias=bias if output_bias is None else output_bias)
        mark_residual_output(self.o_proj)
        if whole_qk_norm and qk_norm_eps is None:
            raise InputError("whole_qk_norm needs qk_norm_eps, the ε of that norm")
        widths = (queries * width, num_key_value_heads * width) if whole_qk_norm else (width, width)
        self.q_norm, self.k_norm = (None if qk_norm_eps is None else RMSNorm(size, qk_norm_eps) for size in widths)

    def _add_norm_and_gate(self, *, head_norm: bool, output_gate: bool, width: int, factor: float = 1.0) -> None:
        """Add a norm of each head's output, ``width`` wide, with a constant factor, and an output gate."""
        self.has_head_norm, self.has_output_gate = head_norm, output_gate
        if head_norm:
            self.head_norm = RMSNorm(width, self.head_norm_eps, factor, is_rounded=not output_gate)
            mark_first_weight(self.head_norm, self.head_norm_init)
            nn.init.constant_(self.head_norm.weight, self.head_norm_init)
        if output_gate:
            self.output_gate = nn.Linear(self.q_proj.in_features, self.o_proj.in_features, bias=False)

    # ------------------------------------------------------------------------------------------ arguments

    @classmethod
    @cache
    def options(cls) -> dict[str, Any]:
        """Names and defaults of the keyword arguments."""
        return {
            parameter.name: parameter.default
            for kind in reversed(cls.__mro__) if "__init__" in vars(kind) and issubclass(kind, AttentionLayer)
            for parameter in inspect.signature(kind.__init__).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
        }  # fmt: skip

    @classmethod
    def default_key_value_heads(cls, given: Mapping[str, Any]) -> int:
        """The number of key maps if none is given."""
        check_counts(given, ["num_attention_heads"])
        maps: int = given["num_attention_heads"]
        return maps

    @classmethod
    def checked(cls, **given: Any) -> CommonArguments:
        """The arguments common to all layers, after all checks, with the number of key maps filled in."""
        common = {name: value for name, value in given.items() if name in CommonArguments.__annotations__}
        if given.get("num_key_value_heads") is None:
            common["num_key_value_heads"] = given["num_key_value_heads"] = cls.default_key_value_heads(given)
        cls.check(given)
        taken = inspect.signature(given.get("attention", antiphase_attention)).parameters
        for argument, named in cls.needs(given).items():
            if argument not in taken:
                raise InputError(f"{named} needs an attention function with a parameter {argument}, as eager_attention")
        return CommonArguments(**common)  # type: ignore[typeddict-item]  # selected by these names

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """
        Args:
            given: arguments of the layer, or fields of a configuration for one of its layers, by name.

        Raises:
            InputError: a value is invalid; the message names the argument.
        """
        check_counts(given, SIZES, optional=("head_dim", "sliding_window", "context_size"))
        if (given.get("layer_idx") or 0) < 0:
            raise InputError(f"layer_idx must not be below 0, got {given['layer_idx']}")
        hidden, maps, key_maps = (given[name] for name in SIZES)
        if given.get("head_dim") is None and hidden % maps:
            raise InputError(
                f"num_attention_heads ({maps}) does not divide hidden_size ({hidden})",
                "change one of them or set head_dim",
            )
        if maps % key_maps:
            raise InputError(f"num_key_value_heads ({key_maps}) does not divide num_attention_heads ({maps})")
        for name, default in cls.options().items():
            value = given.get(name)
            if isinstance(default, bool) and value is not None and not isinstance(value, bool):
                raise InputError(f"{name} must be true or false, got {value!r}")

    @classmethod
    def needs(cls, given: Mapping[str, Any]) -> dict[str, str]:
        """Arguments that the layer passes to the attention function, besides λ, each with the option that asks for it.

        An attention function that lacks such a parameter may ignore it without a word, so it is refused.

        Args:
            given: arguments of the layer, by name.
        """
        return {}

    @torch.no_grad()
    def reset_added(self) -> None:
        """Initialize what a layer has besides its projections, norm and gate."""
        for name in self.zero_at_start:
            if isinstance(getattr(self, name, None), nn.Parameter):
                nn.init.zeros_(getattr(self, name))

    def at_step(self, step: int) -> None:
        """Set the training step, for layers that anneal something."""

    # ------------------------------------------------------------------------------------------ computation

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: KeyValueCache | None = None,
        context: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N, hidden) to (B, N, hidden), and the weights if the attention function returns them, else None.

        Args:
            position_embeddings: cosines and sines (1|B, N, r) of rotary positions, which the first r ≤ d channels get;
                None means no positions.
            attention_mask: boolean, True = may attend: (B, 1, 1, M) for padding, or (1|B, 1, N, M), which must then
                include causality and window; or any other mask that the attention function takes.
            past_key_values: keys and values of earlier calls; these are added to it.
            context: (B, M, context width) of another sequence to attend to, the same at every step; None means
                self-attention.
            kwargs: passed to the attention function, but for ``exchange``: the processes that divide the sequences, of
                which ``hidden_states`` and ``position_embeddings`` hold this one's tokens and the mask holds all.

        Raises:
            ValueError: both a cache and a context are given, a causal layer gets a context, or the attention function
                does not fit this layer's form.
        """
        query = self._queries(hidden_states)  # (B, maps, N, d)
        if context is None:
            key, value = self._keys(hidden_states), self._maps(self.v_proj(hidden_states))
            if position_embeddings is not None:
                query, key = (rotate(maps, *position_embeddings) for maps in (query, key))
            if past_key_values is not None:
                key, value = self._cached(key, value, past_key_values)
        else:
            key, value = self._keys_of_context(context, past_key_values)
        out, weights = self._attend(query, key, value, attention_mask, hidden_states, **kwargs)
        out = out.flatten(2)
        if self.has_output_gate:
            out = out * torch.sigmoid(self.output_gate(hidden_states))
        return self.o_proj(out), weights

    def attention_function(self) -> AttentionFunction:
        """The attention function to use in this call."""
        return self.attention

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        hidden_states: Tensor,
        *,
        exchange: Exchange | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs (B, N, heads, width) before gate and output projection, and the weights or None."""
        function = self.attention_function()
        if exchange is not None:
            function = exchange.around(function)
        out, weights = function(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0,
            sliding_window=self.sliding_window, **self._extra(hidden_states), **kwargs,
        )  # fmt: skip
        heads = query.shape[1] // (2 if is_differential(self) else 1)
        if out.shape[2] != heads:
            raise ValueError(
                f"the attention function gave {out.shape[2]} outputs for {heads} heads; that of a differential layer "
                "must subtract the maps of each head, as subtracting(function) does for V2 with an ordinary one"
            )
        return self._finish(out, hidden_states), weights

    def _queries(self, hidden_states: Tensor) -> Tensor:
        """(B, N, hidden) to (B, maps, N, d)."""
        return self._maps(self.q_proj(hidden_states), self.q_norm)

    def _keys(self, source: Tensor) -> Tensor:
        """(B, M, width of the source) to (B, key maps, M, d)."""
        return self._maps(self.k_proj(source), self.k_norm)

    def _maps(self, projected: Tensor, norm: RMSNorm | None = None) -> Tensor:
        """(B, N, maps · d) as (B, maps, N, d), normalized if there is a norm: each map, or all together."""
        if norm is not None:
            projected = norm(projected.unflatten(-1, (-1, *norm.normalized_shape))).flatten(-2)
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _cached(self, key: Tensor, value: Tensor, cache: KeyValueCache) -> tuple[Tensor, Tensor]:
        """Keys and values (B, key maps, M, d), with those of earlier calls first."""
        if self.layer_idx is None:
            raise ValueError("a cache keeps the keys of every layer apart: give each layer its layer_idx, from 0")
        return cache.update(key, value, self.layer_idx)

    def _keys_of_context(self, context: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values (B, key maps, M, d) of another sequence."""
        if cache is not None:
            raise ValueError("past_key_values cannot be combined with a context, which is the same at every step")
        if self.is_causal:
            raise ValueError(
                "a causal layer cannot attend to a context, whose tokens do not follow its own; make it with "
                "is_causal=False"
            )
        return self._keys(context), self._maps(self.v_proj(context))

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        """Arguments of the attention function besides those of softmax attention."""
        return {}

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        """Process the heads' outputs (B, N, heads, width) before gate and output projection."""
        return self.head_norm(out) if self.has_head_norm else out
