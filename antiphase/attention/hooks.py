"""Observing or replacing every attention call of a model within a ``with`` block.

There are two protocols. An *observer* gets each call and what the model computed; the model's results do not change. A
*transform* gets each call and returns the heads' outputs. Both work with any layer that uses transformers' attention
interface. Blocks nest: an inner transform gets the results of an outer one from ``call.own()``. If the inner one does
not call it, an outer observer sees the inner one's outputs, and an outer transform that should change the layer raises
an error. Compiled models compute what a block inserts without compiling it.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.attention.caches import cache_in
from antiphase.attention.calls import AttentionCall, AttentionKind, kind_of
from antiphase.attention.forward_pass import ForwardPass, SequenceState, begin_pass, follow, release
from antiphase.attention.interface import INSIDE, REPLACEMENT_PREFIX, differential_function, heads_inside
from antiphase.base.errors import InputError, named
from antiphase.layers.functions import AttentionFunction, is_differential

_NUMBERS = count()
"""Numbers of the blocks."""


class Observer(Protocol):
    """Observes the calls of a model."""

    def __call__(self, call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        """
        Args:
            heads: (B, N, heads, dv), computed by the model.
            weights: (B, heads, N, M), signed in differential heads, if the model's function returns them.
        """


class Transform(Protocol):
    """Replaces the computation of a model's calls."""

    def __call__(self, call: AttentionCall) -> Tensor:
        """The heads' outputs (B, N, heads, dv); ``call.own()`` returns the model's."""


@contextmanager
def observed(
    model: PreTrainedModel, observer: Observer, *, once: bool = False, encoder_decoder: bool = False
) -> Iterator[None]:
    """Pass every attention call within the block to ``observer``, but for those that other threads make, and those of
    layers that replace others within it.

    Args:
        once: refuse layers that are called more than once in a forward pass.
        encoder_decoder: also accept encoder–decoders, whose two parts use the same layer numbers.

    Raises:
        InputError: the model is an encoder–decoder.
        ValueError: attention does not use transformers' interface, or attends to another sequence.
    """

    thread = threading.get_ident()

    def observe(call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if threading.get_ident() == thread:
            observer(call, heads, weights)

    def handle(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        heads, weights = call.own()
        observe(call, heads, weights)
        return heads, weights

    if not encoder_decoder:
        refuse_encoder_decoder(model)
    passes = _Passes(model, SequenceState, once=once, anything=encoder_decoder)
    with _installed(model, handle, passes, observer=observe):
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
    """Compute every attention call within the block with ``transform``.

    Args:
        layers: layers that must be called exactly once in every forward pass; None means no requirement.
        state: class of the state kept with the sequences of a cache.
        check: called before each forward pass; an error that it raises stops the pass before anything is computed or
            cached.

    Raises:
        InputError: the model is an encoder–decoder, or one of ``layers`` has no attention.
        ValueError: attention does not use transformers' interface, or attends to another sequence.
    """
    refuse_encoder_decoder(model)
    passes = _Passes(model, state, once=layers is not None, expected=layers or (), check=check)
    with _installed(model, lambda call: (transform(call), None), passes):
        yield


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Whether a model runs an encoder and a decoder; its encoder alone does not, whatever the configuration says."""
    return "decoder_input_ids" in inspect.signature(model.base_model.forward).parameters


def refuse_encoder_decoder(model: PreTrainedModel) -> None:
    """
    Raises:
        InputError: the model is an encoder–decoder, whose two parts use the same layer numbers.
    """
    if is_encoder_decoder(model):
        raise InputError(
            f"attention of models of type {model.config.model_type} cannot be measured or changed as a whole, because "
            "encoder and decoder use the same layer numbers",
            "measure model.get_encoder(), or use attention_maps (antiphase look)",
        )


def refuse_other_interfaces(model: PreTrainedModel) -> None:
    """
    Raises:
        ValueError: the model computes attention in its own code alone, so that no other function can see it.
    """
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} does not use transformers' attention interface, so attention of models of type "
            f"{model.config.model_type} can be neither read nor changed; that of models which use it can, such as "
            "llama, gpt2, gemma2, bert or t5"
        )


@contextmanager
def wrapped_attention(model: PreTrainedModel, wrap: Callable[[AttentionFunction], AttentionFunction]) -> Iterator[None]:
    """Replace the model's attention function by ``wrap(function)`` within the block, and restore it even after errors.

    The kind of mask stays that of the original implementation.

    Raises:
        ValueError: the model's attention function cannot be changed, or it was changed within the block by something
            that did not restore it.
    """
    original = model.config._attn_implementation
    refuse_other_interfaces(model)
    wrapped = wrap(_function_of(model, original))
    name = f"{REPLACEMENT_PREFIX}{next(_NUMBERS)}"
    masks = AttentionMaskInterface._global_mapping
    mask = masks.get(original)
    AttentionInterface.register(name, wrapped)
    if mask is not None:  # without one, transformers passes no mask, as it did to the original
        AttentionMaskInterface.register(name, mask)
    restore = restorer(model)
    try:
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            raise ValueError(f"{type(model).__name__} did not accept another attention function")
        yield
        if model.config._attn_implementation != name:
            raise ValueError(
                f"blocks around one {type(model).__name__} must end in the opposite order of their start; another one, "
                "perhaps of another thread, was open when this one ended, or set_attn_implementation was called"
            )
    finally:
        if not original.startswith(REPLACEMENT_PREFIX) or original in AttentionInterface._global_mapping:
            restore()
        del AttentionInterface._global_mapping[name]
        masks.pop(name, None)


def restorer(model: PreTrainedModel) -> Callable[[], None]:
    """What gives every part of a model the attention implementation back that it has now.

    A model for images or sound may have parts that run eager code only, besides a text model that does not.
    """
    parts = {id(one): one for module in model.modules() if isinstance(module, PreTrainedModel)
             for one in _configurations(module.config)}  # fmt: skip
    before = [(one, one._attn_implementation) for one in parts.values()]

    def restore() -> None:
        for one, name in before:
            one._attn_implementation = {"": name}  # a name alone would count for its parts too

    return restore


def _configurations(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            yield from _configurations(part)


@contextmanager
def unchanged(model: PreTrainedModel) -> Iterator[None]:
    """Let the model compute its own attention within the block, unobserved, whatever blocks are around it."""
    found, function = list[_Progress](), ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation)
    while isinstance(function, _Reader):
        found, function = [*found, function.passes.here], function.function
    before = [one.is_paused for one in found]
    for one in found:
        one.is_paused = True
    try:
        yield
    finally:
        for one, was in zip(found, before, strict=True):
            one.is_paused = was


def _function_of(model: PreTrainedModel, implementation: str) -> AttentionFunction:
    """The function that the model calls under ``implementation``; ``eager`` is defined in the model's own module."""
    if any(is_differential(layer) for layer in model.modules()):
        return differential_function(implementation)
    if implementation != "eager":
        return ALL_ATTENTION_FUNCTIONS[implementation]
    for layer in model.modules():
        home = sys.modules[type(layer).__module__]
        if hasattr(home, "eager_attention_forward") and (hasattr(layer, "scaling") or hasattr(layer, "is_causal")):
            return home.eager_attention_forward
    raise ValueError(
        f"{type(model).__name__} has no eager attention function, so models of type {model.config.model_type} show no "
        "attention that could be measured or changed; recurrent and convolutional models have none"
    )


# ------------------------------------------------------------------------------------------ the inserted function


Handler = Callable[[AttentionCall], tuple[Tensor, Tensor | None]]
"""Computes for a call the heads' outputs, before any further processing by the function, and the weights or None."""


@contextmanager
def _installed(
    model: PreTrainedModel, handle: Handler, passes: _Passes, *, observer: Observer | None = None
) -> Iterator[None]:
    handles = [
        handle
        for module in passes.signatures  # OPT's language model calls parts of its base model
        for handle in (
            module.register_forward_pre_hook(passes.before, with_kwargs=True),
            module.register_forward_hook(passes.after),
        )
    ]
    try:
        with wrapped_attention(model, lambda function: _Reader(function, handle, passes, observer)):
            yield
    finally:
        for one in handles:
            one.remove()
        release(passes.number)


class _Progress(threading.local):
    """Where a thread's forward pass is: several threads may run one model at the same time."""

    now: ForwardPass | None = None
    calls = 0
    """Number of attention calls so far."""
    is_paused = False
    """Whether the model computes its own attention for the moment."""


class _Passes:
    """Tracks the forward passes of a model.

    A pass begins with the model and again with its base model, and ends with the innermost of them.
    """

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
        self.state, self.once, self.anything = state, once, anything
        self.name = f"{type(model).__name__} (type {model.config.model_type})"
        self.expected, self.check = frozenset(expected), check
        self.shared = dict(enumerate(getattr(model.config, "hybrid_layer_ids", ())))
        """Numbers of Zamba2's layers with attention, by call: they share modules, which have no number."""
        self.number = next(_NUMBERS)
        self.modules = set(model.modules())
        """Models may share a configuration, and with it the function."""
        self.signatures = {module: inspect.signature(module.forward) for module in (model, model.base_model)}
        self.here = _Progress()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} cannot be copied while its attention is read or changed; copy it elsewhere")

    @torch.compiler.disable
    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.here.is_paused:
            return
        bound = self.signatures[module].bind_partial(*args, **kwargs).arguments
        given = {} if self.anything else {**bound, **bound.get("kwargs", {})}
        self.here.now = begin_pass(given, self.number, self.state)
        self.check(self.here.now)
        cache = cache_in(given)
        if isinstance(cache, Cache):
            follow(cache, self.number, self.here.now.state)

    @torch.compiler.disable
    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Attach the state of the sequences to a cache that the forward pass created."""
        if self.here.now is None:  # the base model has ended the pass
            return
        if not self.here.now.layers:
            raise ValueError(f"{self.name} never called the attention function of the interface")
        silent = sorted(self.expected - set(self.here.now.layers))
        if silent:
            raise InputError(
                f"layer {silent[0]} of {self.name} has no attention that could be changed",
                f"remove it from the plan ({named('layers')} of a search or study)",
            )
        parts = output if isinstance(output, tuple) else (cache_in(output) if isinstance(output, Mapping) else None,)
        for cache in parts:
            if isinstance(cache, Cache) and not self.anything:
                follow(cache, self.number, self.here.now.state)
        self.here.now = None

    def enter(self, module: nn.Module, query: Tensor, kind: AttentionKind) -> tuple[int, bool]:
        """Register a call; return the layer's number and whether this is the second call, for the other half of the
        values, of a kind that makes two.

        Raises:
            ValueError: a layer is called again although it must be called only once.
        """
        self.here.calls += 1
        number = getattr(module, "layer_idx", None)
        if self.here.now is None:
            return max(0, int(number or 0)), False
        if number is not None and number < 0:
            number = self.shared.get(len(self.here.now.layers))
        again, self.here.now.query = kind.calls_twice and query is self.here.now.query, query
        layer = self.here.now.layers[-1] if again else len(self.here.now.layers) if number is None else int(number)
        if not again:
            if self.once and layer in self.here.now.layers:
                raise ValueError(
                    f"layer {layer} of {self.name} attends more than once in a forward pass, so that its calls cannot "
                    "be told apart; antiphase evaluate measures the model as it is"
                )
            self.here.now.layers.append(layer)
        return layer, again


class _Reader:
    """The attention function that interprets each call and passes it on."""

    def __init__(
        self, function: AttentionFunction, handle: Handler, passes: _Passes, observer: Observer | None
    ) -> None:
        self.function, self.handle, self.passes, self.observer = function, handle, passes, observer
        self.kinds: dict[nn.Module, AttentionKind] = {}

    @torch.compiler.disable
    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        if self.passes.here.is_paused or module not in self.passes.modules:
            return self.function(module, query, key, value, attention_mask, **kwargs)
        call, heads, weights = self._handled(module, query, key, value, attention_mask, kwargs)
        return call.finish(heads).contiguous(), weights  # some layers call view on it, as on transformers' own

    def heads(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs before further processing by the model's function, and the weights or None."""
        if module not in self.passes.modules:
            return self._own(kind_of(module))(module, query, key, value, attention_mask, **kwargs)
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
        if module not in self.kinds:
            self.kinds[module] = kind_of(module)
        kind = self.kinds[module]
        layer, again = self.passes.enter(module, query, kind)
        own = partial(self._own(kind), module, query, key, value, attention_mask, **kwargs)
        call = AttentionCall(
            module, layer, kind, query, key, value, attention_mask, kwargs, own, self.passes.here.now, again
        )
        outer = self._outer(module)
        before = outer.passes.here.calls if outer is not None else 0
        heads, weights = self.handle(call)
        if outer is not None and outer.passes.here.calls == before:
            outer.bypassed(call, heads)
        return call, heads, weights

    def bypassed(self, inner: AttentionCall, heads: Tensor) -> None:
        """A nested block computed a call without ``call.own()``.

        Raises:
            ValueError: this block should have changed that layer.
        """
        layer, again = self.passes.enter(inner.module, inner.query, inner.kind)
        if self.observer is not None:
            self.observer(replace(inner, layer=layer, forward=self.passes.here.now, is_second_half=again), heads, None)
        elif not self.passes.expected or layer in self.passes.expected:
            raise ValueError(
                f"layer {layer} is changed by two blocks, and the inner one does not start from what the outer one "
                "computes; change it in one of them"
            )
        if (outer := self._outer(inner.module)) is not None:
            outer.bypassed(inner, heads)

    def _outer(self, module: nn.Module) -> _Reader | None:
        """The next outer block around the module's model; between them may be blocks of models that share its
        configuration.
        """
        outer = self.function
        while isinstance(outer, _Reader) and module not in outer.passes.modules:
            outer = outer.function
        return outer if isinstance(outer, _Reader) else None

    def _own(self, kind: AttentionKind) -> AttentionFunction:
        """The function that the model would have called, for the heads' outputs."""
        if isinstance(self.function, _Reader):  # nested blocks
            return self.function.heads
        if not kind.finishes:
            return self.function
        if self.function is not ALL_ATTENTION_FUNCTIONS[INSIDE]:
            raise ValueError("another attention function is installed in this model, so its heads cannot be read")
        return heads_inside
