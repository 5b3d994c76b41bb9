"""Complete attention maps of one text in every layer of any Hugging Face model; memory is layers × maps × N²."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall, Pairing, kind_of
from antiphase.attention.hooks import is_encoder_decoder, observed, refuse_other_interfaces, restorer
from antiphase.attention.interface import REPLACEMENT_PREFIX
from antiphase.attention.rows import rows_of
from antiphase.base.errors import NonFiniteError
from antiphase.base.modes import evaluation_mode
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.drop_in import DifferentialAttention, DifferentialAttentionV2
from antiphase.layers.functions import eager_attention
from antiphase.layers.masks import combine_mask


@dataclass(frozen=True)
class AttentionMaps:
    """The maps of one layer: H heads of S maps (1, or 2 in differential heads), N queries, M keys; fp32, on the CPU."""

    layer: int
    """The model's number of the layer, 0-based."""
    maps: Tensor
    """(H, S, N, M): softmax weights, nonnegative."""
    lam: Tensor | None
    """(H, N), or None if S is 1. The head's weights are maps[:, 0] - λ maps[:, 1]."""
    visible: Tensor
    """(N, M) bool: keys that each query may attend to."""
    part: str | None = None
    """For an encoder–decoder: ``encoder``, ``decoder`` (self-attention) or ``cross`` (cross-attention), else None."""

    def weights(self) -> Tensor:
        """The weights that multiply the values: (H, N, M), signed in differential heads."""
        if self.lam is None:
            return self.maps[:, 0]
        return self.maps[:, 0] - self.lam.unsqueeze(-1) * self.maps[:, 1]


@torch.no_grad()
def attention_maps(
    model: PreTrainedModel, input_ids: Tensor, decoder_input_ids: Tensor | None = None
) -> list[AttentionMaps]:
    """Attention maps of every layer on one text, in the order of the calls.

    The weights are those of the model's own eager attention, so they include everything it does to its scores (soft
    caps, sink logits, scale). Differential heads give both maps, in layers of this package and in DiffLlama, which
    subtracts map i + H from map i. The model is unchanged afterwards, even after an error.

    Example:
        >>> layers = attention_maps(model, input_ids)
        >>> layers[0].weights().shape  # (heads, queries, keys)

    Args:
        input_ids: (1, N), without padding.
        decoder_input_ids: (1, N'), the decoder's input for an encoder–decoder, beginning with the start token. Query n
            predicts token n of the target text.

    Raises:
        ValueError: the model's attention does not use transformers' interface, has no eager function, has a mask per
            head or keys that are not tokens, or is observed or changed by a block around this call; or
            ``decoder_input_ids`` are missing or not needed.
        NonFiniteError: weights or λ are not finite.
    """
    base = model.base_model
    is_pair = is_encoder_decoder(model)
    if is_pair != (decoder_input_ids is not None):
        raise ValueError(
            f"{type(model).__name__} is {'an' if is_pair else 'no'} encoder–decoder, so decoder_input_ids must "
            f"{'be given: the target text, beginning with the start token' if is_pair else 'be left out'}"
        )
    arguments: dict[str, Any] = {}
    for name, ids in (("input_ids", input_ids), ("decoder_input_ids", decoder_input_ids)):
        if ids is None:
            continue
        if ids.dim() != 2 or ids.shape[0] != 1:
            raise ValueError(f"{name} must be one text, (1, N), got shape {tuple(ids.shape)}")
        arguments[name] = ids.to(model.device)
    if "use_cache" in inspect.signature(base.forward).parameters or hasattr(base.config, "use_cache"):
        arguments["use_cache"] = False
    watch = _Watch(base.get_encoder() if is_pair else None)
    with evaluation_mode(model), _eager(model), observed(model, watch, encoder_decoder=True):
        base(**arguments)
    if is_pair and not any(one.part == "encoder" for one in watch.found):
        raise ValueError(f"the encoder of {type(model).__name__} does not use transformers' attention interface")
    return watch.found


@torch.no_grad()
def layer_maps(layer: nn.Module, hidden_states: Tensor, **arguments: Any) -> AttentionMaps:
    """The maps of one layer of this package, such as one in a model of your own.

    Args:
        layer: ``DifferentialAttention``, ``DifferentialAttentionV2`` or a layer of ``antiphase.layers``.
        hidden_states: (1, N, hidden).
        arguments: further arguments of the layer, such as ``context`` and ``attention_mask``.

    Raises:
        ValueError: it is no such layer, or there is more than one text.
        NonFiniteError: weights or λ are not finite.
    """
    if isinstance(layer, (DifferentialAttention, DifferentialAttentionV2)):
        layer = layer.inner
    if not isinstance(layer, AttentionLayer):
        raise ValueError(f"layer_maps needs an attention layer of antiphase, got {type(layer).__name__}")
    if len(hidden_states) != 1:
        raise ValueError(f"hidden_states must be (1, N, hidden), got {tuple(hidden_states.shape)}")
    watch, function = _Watch(None), layer.attention

    def watched(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        done = eager_attention(module, query, key, value, mask, **given)
        index, kind = layer.layer_idx or 0, kind_of(layer)
        watch(AttentionCall(layer, index, kind, query, key, value, mask, given, own=lambda: done), *done)
        return done

    layer.attention = watched
    try:
        layer(hidden_states, **arguments)
    finally:
        layer.attention = function
    return watch.found[0]


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """Switch the model to its eager implementation, which returns weights; differential models keep their own."""
    if any(kind_of(module).subtracts for module in model.modules()):
        yield
        return
    original = model.config._attn_implementation
    refuse_other_interfaces(model)
    if original.startswith(REPLACEMENT_PREFIX):
        raise ValueError("attention that a block observes or changes has no eager maps; read them outside the block")
    restore = restorer(model)
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        restore()


class _Watch:
    """Stores the weights of each call."""

    def __init__(self, encoder: nn.Module | None) -> None:
        self.encoder = None if encoder is None else set(encoder.modules())
        self.found: list[AttentionMaps] = []

    def __call__(self, call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        if call.is_second_half:
            return
        if self.encoder is None:
            call.refuse_other_keys()
        name, lam = type(call.module).__name__, call.lam
        visible = visible_pairs(call)
        part = self._part(call.module, visible)
        if part == "decoder":  # T5Gemma 2's decoder attends to both texts at once
            call.refuse_other_keys()
        if call.kind.subtracts:
            maps = rows_of(call, call.query, call.key, visible[None, None], lam).maps[0]
        elif weights is None:
            raise ValueError(f"the eager attention of {name} does not return its weights")
        elif call.kind.pairing is Pairing.HALVES:
            maps = weights[0].unflatten(0, (2, -1)).transpose(0, 1)
        else:
            maps = weights[0].unsqueeze(1)
            if call.arguments.get("s_aux") is not None and torch.allclose(
                total := maps.sum(-1), torch.ones_like(total)
            ):
                raise ValueError(f"the eager attention of {name} leaves its sink logits out of the weights it shows")
        maps = maps.float().cpu()  # (H, S, N, M)
        if lam is not None:
            lam = lam.detach().float().cpu().expand(1, len(maps), call.query.shape[2])[0]
        if not all(bool(part.isfinite().all()) for part in (maps, lam) if part is not None):
            raise NonFiniteError("its attention is NaN or infinite, so it cannot be shown")
        visible = visible.cpu()
        if bool(maps[:, :, ~visible].any()):
            raise ValueError(f"{name} has weight on keys hidden by its mask")
        self.found.append(AttentionMaps(call.layer, maps, lam, visible, part))

    def _part(self, module: nn.Module, visible: Tensor) -> str | None:
        """Whether a call is self-attention or cross-attention of a decoder; some models do not declare it (NLLB)."""
        if self.encoder is None:
            return None
        if module in self.encoder:
            return "encoder"
        return "decoder" if getattr(module, "is_causal", False) or not visible.all() else "cross"


def visible_pairs(call: AttentionCall) -> Tensor:
    """(N, M) bool on the mask's device."""
    mask, queries, keys = call.mask, call.query.shape[2], call.key.shape[2]
    if mask is not None and mask.shape[1] > 1:
        raise ValueError(f"{type(call.module).__name__} has a separate attention mask per head, which is not supported")
    device = next(call.module.parameters()).device
    found = combine_mask(
        mask, queries, keys, is_causal=call.is_causal, sliding_window=call.sliding_window, device=device
    )
    if found is None:
        return torch.ones(queries, keys, dtype=torch.bool, device=device)
    return found.expand(1, 1, queries, keys)[0, 0] if found.dim() == 4 else found.expand(queries, keys)
