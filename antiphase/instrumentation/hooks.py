"""Looking at every attention call of a model, or computing it in another way, for the time of a ``with`` block.

Two protocols. An *observer* gets each call and what the model computed; the model's results stay as they are. A
*transform* gets each call and returns the heads' outputs. Both work on whatever goes through transformers' attention
interface. Blocks nest: an inner transform gets what an outer one computes by ``call.own()``. Where it does not ask for
that, an outer observer sees the inner one's outputs, and an outer transform that was to change the layer is refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.errors import InputError
from antiphase.instrumentation.calls import AttentionCall, AttentionKind, kind_of
from antiphase.instrumentation.forward import ForwardPass, SequenceState, begin_pass, follow
from antiphase.interface import INSIDE, SWAPPED, differential_function, heads_inside
from antiphase.layers.functions import AttentionFunction, is_differential

_NUMBERS = count()
"""Of blocks."""


class Observer(Protocol):
    """What looks at the calls of a model."""

    def __call__(self, call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        """
        Args:
            heads: (B, N, heads, dv) that the model computed.
            weights: (B, heads, N, M), signed in differential heads, where the model's function forms them.
        """


class Transform(Protocol):
    """What computes the calls of a model in another way."""

    def __call__(self, call: AttentionCall) -> Tensor:
        """The heads' outputs (B, N, heads, dv); ``call.own()`` has the model's."""


@contextmanager
def observed(
    model: PreTrainedModel, observer: Observer, *, once: bool = False, encoder_decoder: bool = False
) -> Iterator[None]:
    """Show every attention call within the block to ``observer``.

    Args:
        once: refuse layers that attend more than once in a forward pass.
        encoder_decoder: take such models too, whose encoder and decoder number their layers alike.

    Raises:
        InputError: an encoder–decoder.
        ValueError: attention that does not go through transformers' interface, or to another sequence.
    """

    def handle(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        heads, weights = call.own()
        observer(call, heads, weights)
        return heads, weights

    if not encoder_decoder:
        refuse_encoder_decoder(model)
    passes = _Passes(model, SequenceState, once=once, anything=encoder_decoder)
    with _installed(model, handle, passes, observer=observer):
        yield


@contextmanager
def transformed(
    model: PreTrainedModel,
    transform: Transform,
    *,
    layers: Collection[int] | None = None,
    state: type[SequenceState] = SequenceState,
    check: Callable[[ForwardPass], None] = lambda forward: None,
) -> Iterator[None]:
    """Let ``transform`` compute every attention call within the block.

    Args:
        layers: those that must attend, once each, in every forward pass; None: as it comes.
        state: what is kept beside the sequences of a cache.
        check: called before each forward pass; what it raises stops the pass before anything is computed or cached.

    Raises:
        InputError: an encoder–decoder, or a layer that does not attend.
        ValueError: attention that does not go through transformers' interface, or to another sequence.
    """
    refuse_encoder_decoder(model)
    passes = _Passes(model, state, once=layers is not None, expected=layers or (), check=check)
    with _installed(model, lambda call: (transform(call), None), passes):
        yield


def refuse_encoder_decoder(model: PreTrainedModel) -> None:
    """
    Raises:
        InputError: a model whose encoder and decoder number their layers alike.
    """
    if model.config.is_encoder_decoder:
        raise InputError(
            f"attention of a {model.config.model_type} model cannot be measured or changed, because encoder and "
            "decoder use the same layer numbers; use attention_maps (antiphase look)"
        )


@contextmanager
def wrapped_attention(model: PreTrainedModel, wrap: Callable[[AttentionFunction], AttentionFunction]) -> Iterator[None]:
    """Put ``wrap(function)`` in the place of the model's attention function; restored afterwards, also after errors.

    The kind of mask stays that of the implementation replaced.

    Raises:
        ValueError: the model cannot change its attention function.
    """
    original = model.config._attn_implementation
    if not model._can_set_attn_implementation():
        raise ValueError(f"{type(model).__name__} does not use transformers' attention interface")
    wrapped = wrap(_function_of(model, original))
    name = f"{SWAPPED}{next(_NUMBERS)}"
    masks = AttentionMaskInterface._global_mapping
    mask = masks.get(original)
    AttentionInterface.register(name, wrapped)
    if mask is not None:  # without one, transformers hands over no mask, to the function replaced as to this one
        AttentionMaskInterface.register(name, mask)
    try:
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            raise ValueError(f"{type(model).__name__} did not accept another attention function")
        yield
    finally:
        model.set_attn_implementation(original)
        del AttentionInterface._global_mapping[name]
        masks.pop(name, None)


def _function_of(model: PreTrainedModel, implementation: str) -> AttentionFunction:
    """The function that the model calls under ``implementation``; ``eager`` lives in the model's own module."""
    if any(is_differential(layer) for layer in model.modules()):
        return differential_function(implementation)
    if implementation != "eager":
        return ALL_ATTENTION_FUNCTIONS[implementation]
    for layer in model.modules():
        home = sys.modules[type(layer).__module__]
        if hasattr(home, "eager_attention_forward") and (hasattr(layer, "scaling") or hasattr(layer, "is_causal")):
            return home.eager_attention_forward
    raise ValueError(
        f"{type(model).__name__} has no eager attention function; recurrent and convolutional models have no attention"
    )


# ------------------------------------------------------------------------------------------ the function put in


Handler = Callable[[AttentionCall], tuple[Tensor, Tensor | None]]
"""A call to the heads' outputs, before what the function does to them besides, and weights where there are some."""


@contextmanager
def _installed(
    model: PreTrainedModel, handle: Handler, passes: _Passes, *, observer: Observer | None = None
) -> Iterator[None]:
    base = model.base_model
    handles = [
        base.register_forward_pre_hook(passes.before, with_kwargs=True),
        base.register_forward_hook(passes.after),
    ]
    try:
        with wrapped_attention(model, lambda function: _Reader(function, handle, passes, observer)):
            yield
    finally:
        for one in handles:
            one.remove()


class _Passes:
    """Follows the forward passes of a model."""

    def __init__(
        self,
        model: PreTrainedModel,
        state: type[SequenceState],
        *,
        once: bool,
        anything: bool = False,
        expected: Collection[int] = (),
        check: Callable[[ForwardPass], None] = lambda forward: None,
    ) -> None:
        self.name, self.state, self.once, self.anything = type(model).__name__, state, once, anything
        self.expected, self.check = frozenset(expected), check
        self.number = next(_NUMBERS)
        self.signature = inspect.signature(model.base_model.forward)
        self.now: ForwardPass | None = None
        self.calls = 0

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = self.signature.bind_partial(*args, **kwargs).arguments
        given = {} if self.anything else {**bound, **bound.get("kwargs", {})}
        self.now = begin_pass(given, self.number, self.state)
        self.check(self.now)
        cache = given.get("past_key_values")
        if isinstance(cache, Cache):
            follow(cache, self.number, self.now.state)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A cache that the forward pass has made keeps what belongs to its sequences."""
        assert self.now is not None
        if not self.now.layers:
            raise ValueError(f"{self.name} never called the attention function of the interface")
        silent = sorted(self.expected - set(self.now.layers))
        if silent:
            raise InputError(
                f"layer {silent[0]} of {self.name} has no attention that could be changed; remove it from the plan "
                "(--layers of a search or study)"
            )
        cache = getattr(output, "past_key_values", None)
        if isinstance(cache, Cache) and not self.anything:
            follow(cache, self.number, self.now.state)
        self.now = None

    def enter(self, module: nn.Module, query: Tensor) -> tuple[int, bool]:
        """A call: the layer's number, and whether it is the second with the same queries.

        Raises:
            ValueError: a layer attends again that must not.
        """
        self.calls += 1
        number = getattr(module, "layer_idx", None)
        if self.now is None:
            return int(number or 0), False
        again, self.now.query = query is self.now.query, query
        layer = self.now.layers[-1] if again else len(self.now.layers) if number is None else int(number)
        if not again:
            if self.once and layer in self.now.layers:
                raise ValueError(
                    f"layer {layer} of {self.name} attends more than once in a forward pass, so that its calls cannot "
                    "be told apart"
                )
            self.now.layers.append(layer)
        return layer, again


class _Reader:
    """The attention function that reads each call and hands it on."""

    def __init__(
        self, function: AttentionFunction, handle: Handler, passes: _Passes, observer: Observer | None
    ) -> None:
        self.function, self.handle, self.passes, self.observer = function, handle, passes, observer
        self.kinds: dict[nn.Module, AttentionKind] = {}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        call, heads, weights = self._handled(module, query, key, value, attention_mask, kwargs)
        return call.finish(heads), weights

    def heads(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The same, before what the attention function of the model does to the heads' outputs besides."""
        _, heads, weights = self._handled(module, query, key, value, attention_mask, kwargs)
        return heads, weights

    def _handled(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> tuple[AttentionCall, Tensor, Tensor | None]:
        layer, again = self.passes.enter(module, query)
        if module not in self.kinds:
            self.kinds[module] = kind_of(module)
        kind = self.kinds[module]
        own = partial(self._own(kind), module, query, key, value, attention_mask, **kwargs)
        call = AttentionCall(
            module, layer, kind, query, key, value, attention_mask, kwargs, own, self.passes.now, again
        )
        outer = self.function if isinstance(self.function, _Reader) else None
        before = outer.passes.calls if outer is not None else 0
        heads, weights = self.handle(call)
        if outer is not None and outer.passes.calls == before:
            outer.passed_over(call, heads)
        return call, heads, weights

    def passed_over(self, inner: AttentionCall, heads: Tensor) -> None:
        """A block within this one computed a call by itself.

        Raises:
            ValueError: this block was to change that layer.
        """
        layer, again = self.passes.enter(inner.module, inner.query)
        if self.observer is not None:
            self.observer(replace(inner, layer=layer, forward=self.passes.now, is_second_half=again), heads, None)
        elif not self.passes.expected or layer in self.passes.expected:
            raise ValueError(
                f"layer {layer} is changed by two blocks, and the inner one does not start from what the outer one "
                "computes; change it in one of them"
            )
        if isinstance(self.function, _Reader):
            self.function.passed_over(inner, heads)

    def _own(self, kind: AttentionKind) -> AttentionFunction:
        """What the model would have called, for heads' outputs."""
        if isinstance(self.function, _Reader):  # a block within a block
            return self.function.heads
        if not kind.finishes:
            return self.function
        if self.function is not ALL_ATTENTION_FUNCTIONS[INSIDE]:
            raise ValueError("another attention function is installed in this model, so its heads cannot be read")
        return heads_inside
