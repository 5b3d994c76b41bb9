"""Cache of the layers below a calibrated one, which calibration does not change: they run only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel


class LowerLayerCache:
    """Stores the input of a layer in each forward pass of a computation, in order to repeat it from there on."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.layers = decoder_layers(model)
        self.start = 0
        self._entering: list[Tensor] = []  # inputs of layer ``start``, by forward pass
        self._marks: list[tuple[torch.Size, float]] = []  # of the inputs of layer 0
        self._gives_tuple = False

    @contextmanager
    def record(self, start: int) -> Iterator[None]:
        """Run the computation once, skipping layers that are already cached, and store the inputs of layer start."""
        if start < self.start:
            raise ValueError(f"layer {start} is below layer {self.start}, where the cached work starts")
        entering: list[Tensor] = []
        marks: list[tuple[torch.Size, float]] = []

        def see_kind(module: nn.Module, args: Any, output: Any) -> None:
            self._gives_tuple = isinstance(output, tuple)

        handles = [
            self.layers[0].register_forward_hook(see_kind),
            self.layers[0].register_forward_pre_hook(
                lambda module, args, kwargs: marks.append(_mark(_hidden(args, kwargs))), with_kwargs=True
            ),
            self.layers[start].register_forward_pre_hook(
                lambda module, args, kwargs: entering.append(_hidden(args, kwargs).detach()), with_kwargs=True
            ),
        ]
        try:
            with self.skipped():
                yield
        finally:
            for handle in handles:
                handle.remove()
        self.start, self._entering, self._marks = start, entering, marks

    @contextmanager
    def skipped(self) -> Iterator[None]:
        """Skip the layers below ``start``, which return their input, and give layer ``start`` its stored input.

        Raises:
            ValueError: the computation's inputs differ from those that were recorded.
        """
        if self.start == 0:
            yield
            return
        passes = 0

        def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if passes >= len(self._marks) or _mark(_hidden(args, kwargs)) != self._marks[passes]:
                raise ValueError(
                    "lower layers cannot be cached, because the score's inputs depend on the model's answers; use the "
                    'method "exhaustive"'
                )

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal passes
            passes += 1
            remembered = self._entering[passes - 1]
            if "hidden_states" in kwargs:
                return args, {**kwargs, "hidden_states": remembered}
            return (remembered, *args[1:]), kwargs

        handles = [
            self.layers[0].register_forward_pre_hook(check, with_kwargs=True),
            self.layers[self.start].register_forward_pre_hook(enter, with_kwargs=True),
        ]
        below = list(self.layers[: self.start])
        try:
            for index, layer in enumerate(below):
                layer.forward = _pass_through(layer, index, gives_tuple=self._gives_tuple)
            yield
        finally:
            for layer in below:
                layer.__dict__.pop("forward", None)
            for handle in handles:
                handle.remove()


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The model's list of layers, in which layer i contains the attention module with ``layer_idx`` i.

    Raises:
        ValueError: there is no such list.
    """
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) and all(
            any(getattr(part, "layer_idx", None) == index for part in layer.modules())
            for index, layer in enumerate(module)
        ):  # fmt: skip
            return module
    raise ValueError(f"{type(model).__name__} has no list of numbered layers")


def _pass_through(layer: nn.Module, index: int, *, gives_tuple: bool) -> Callable[..., Any]:
    """A forward function that returns its input and keeps the lengths of a cache correct."""
    signature = inspect.signature(layer.forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = _hidden(args, kwargs)
        cache = signature.bind_partial(*args, **kwargs).arguments.get("past_key_values")
        if isinstance(cache, Cache):
            nothing = hidden.new_zeros(len(hidden), 1, hidden.shape[1], 1)
            cache.update(nothing, nothing, index)
        return (hidden,) if gives_tuple else hidden

    return forward


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    return found


def _mark(hidden: Tensor) -> tuple[torch.Size, float]:
    return hidden.shape, float(hidden.detach().double().sum())
