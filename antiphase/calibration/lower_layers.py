"""Cache of the layers below a calibrated one, which calibration does not change: they run only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

MOST_BYTES = 2**31
"""Size of the stored inputs from which on further sequences are not stored, and go through all layers every time."""


class LowerLayerCache:
    """Stores the input of a layer in each forward pass of a computation, in order to repeat it from there on.

    Sequences that begin after ``most_bytes`` are stored go through all layers every time.
    """

    def __init__(self, model: PreTrainedModel, *, most_bytes: int = MOST_BYTES) -> None:
        self.layers, self.most_bytes = decoder_layers(model), most_bytes
        self.start = 0
        self._entering: list[Tensor] = []  # inputs of layer ``start``, by forward pass
        self._marks: list[tuple[torch.Size, float]] = []  # of the inputs of layer 0
        self._gives_tuple = False

    @contextmanager
    def record(self, start: int) -> Iterator[None]:
        """Store the inputs of layer ``start`` while the computation runs once; layers already cached are skipped.

        The layers from ``start`` on are skipped too, so the computation's own result has no meaning.
        """
        if start < self.start:
            raise ValueError(f"layer {start} is below layer {self.start}, where the cached work starts")
        entering: list[Tensor] = []
        marks: list[tuple[torch.Size, float]] = []
        size, is_full = 0, False

        def mark(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal is_full
            cache = _cache_of(args, kwargs)
            begins = cache is None or not cache.get_seq_length()
            is_full = is_full or (begins and size >= self.most_bytes)
            marks.append(_mark(_hidden(args, kwargs)))

        def see_kind(module: nn.Module, args: Any, output: Any) -> None:
            self._gives_tuple = isinstance(output, tuple)

        def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal size
            if not is_full:
                entering.append(_hidden(args, kwargs).detach())
                size += entering[-1].nbytes

        with self.skipped(), ExitStack() as stack:
            for hook in (
                self.layers[0].register_forward_pre_hook(mark, with_kwargs=True, prepend=True),
                self.layers[0].register_forward_hook(see_kind),
                self.layers[start].register_forward_pre_hook(keep, with_kwargs=True),
            ):
                stack.callback(hook.remove)
            with self._passed_through(range(max(start, 1), len(self.layers)), lambda: True):
                yield
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

        def is_stored() -> bool:
            return passes <= len(self._entering)

        def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal passes
            if passes >= len(self._marks) or _mark(_hidden(args, kwargs)) != self._marks[passes]:
                raise ValueError(
                    "lower layers cannot be cached, because the score's inputs depend on the model's answers; use the "
                    'method "exhaustive"'
                )
            passes += 1

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not is_stored():
                return None
            remembered = self._entering[passes - 1]
            if "hidden_states" in kwargs:
                return args, {**kwargs, "hidden_states": remembered}
            return (remembered, *args[1:]), kwargs

        with ExitStack() as stack:
            stack.callback(self.layers[0].register_forward_pre_hook(check, with_kwargs=True).remove)
            stack.callback(self.layers[self.start].register_forward_pre_hook(enter, with_kwargs=True).remove)
            with self._passed_through(range(self.start), is_stored):
                yield

    @contextmanager
    def _passed_through(self, numbers: range, when: Callable[[], bool]) -> Iterator[None]:
        """Let some layers return their input in forward passes where ``when()``; a cache keeps its lengths."""
        some = [(number, self.layers[number]) for number in numbers]
        before = [layer.__dict__.get("forward") for _, layer in some]  # accelerate has its own there
        try:
            for number, layer in some:
                layer.forward = partial(self._forward, layer, layer.forward, number, when)
            yield
        finally:
            for (_, layer), own in zip(some, before, strict=True):
                layer.__dict__.pop("forward", None)
                if own is not None:
                    layer.forward = own

    def _forward(
        self,
        layer: nn.Module,
        own: Callable[..., Any],
        number: int,
        when: Callable[[], bool],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not when():
            return own(*args, **kwargs)
        hidden, cache = _hidden(args, kwargs), _cache_of(args, kwargs)
        if cache is not None:
            nothing = hidden.new_zeros(len(hidden), 1, hidden.shape[1], 1)
            cache.update(nothing, nothing, number)
        return (hidden,) if self._gives_tuple else hidden


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


def _cache_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cache | None:
    """The cache among a layer's arguments, which not all architectures give the same name."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Cache)), None)


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    return found


def _mark(hidden: Tensor) -> tuple[torch.Size, float]:
    return hidden.shape, float(hidden.detach().double().sum())
