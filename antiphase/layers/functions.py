"""Attention functions: they compute the heads' outputs from a layer's queries, keys and values.

Their signature is that of transformers' attention interface. Keys and values have the layout of a cache: a V1 layer
stores each value head as two halves, heads 2i and 2i+1, because static caches need keys and values of one shape; V2
layers use the layout of ordinary grouped attention. The layer declares its form; it is never guessed from shapes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from antiphase.layers.masks import carries_positions, combine_mask, visible_keys
from antiphase.layers.weightings import WEIGHTINGS
from antiphase.ops.api import attend_cached, differential_attention, native_softmax_attention
from antiphase.ops.shapes import statistics_dtype

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

DIFFERENTIAL = frozenset({"differential", "differential_v2"})
"""Forms whose attention functions subtract two maps."""
IGNORED = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "output_hidden_states",
     "output_router_logits", "cache_position", "num_items_in_batch", "return_dict", "deterministic",
     "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "shift_labels", "token_type_ids",
     "logits_to_keep"}
)  # fmt: skip
"""Keyword arguments that models pass to every attention function and that have no effect here.

``deterministic`` chooses how flash attention sums gradients. ``cu_seq_lens_q`` to ``seq_idx`` say for flash attention
and state-space layers what the mask of a packed batch says here; ``shift_labels`` is for the loss; ``token_type_ids``
come from tokenizers of models with segments.
"""


def form_of(module: nn.Module) -> str | None:
    """The form that a layer (``attention_form``) or else its configuration (``attention_type``) declares.

    "differential" is V1, with one key per map and values stored as halves; "differential_v2" is V2. Attention functions
    subtract maps in these two forms and treat all others as softmax attention.
    """
    form: str | None = getattr(module, "attention_form", None)
    return getattr(getattr(module, "config", None), "attention_type", None) if form is None else form


def is_differential(module: nn.Module) -> bool:
    """Whether a layer's attention function subtracts two maps per head."""
    return form_of(module) in DIFFERENTIAL


def has_two_keys(module: nn.Module) -> bool:
    """Whether each map of a head has its own key and values are stored as halves (V1, not V2)."""
    return form_of(module) == "differential"


def sharing_second_map(module: nn.Module, heads: int, mask: Tensor | None) -> int:
    """How many neighbouring heads subtract the same second map, which is then formed once; 1: each has its own.

    Args:
        heads: of the call, which are a part of the layer's where processes divide them.
        mask: boolean (1|B, 1|H, 1|N, M); heads that see different keys have different second maps.
    """
    shared: int = getattr(module, "heads_per_noise", 1)
    has_one_mask = mask is None or mask.dim() < 4 or mask.shape[1] == 1
    return math.gcd(shared, heads) if has_one_mask else 1


def apart(
    query: Tensor, key: Tensor, shared: int, *, two_keys: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Queries and keys of the first maps, (B, H, N, d) and (B, groups, M, d), and of the different second maps.

    Args:
        query: (B, 2H, N, d), maps 2i and 2i + 1 of head i.
        key: (B, 2 · groups, M, d) in V1; (B, groups, M, d) in V2, whose maps share their keys.
        shared: how many neighbouring heads have the same second map; there are H / shared.
    """
    keys = (key[:, ::2], key[:, 1::2]) if two_keys else (key, key)
    return (query[:, ::2], keys[0]), (query[:, 1 :: 2 * shared], keys[1])


def subtracted(first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
    """O₁ - λ O₂ (B, N, H, dv) of outputs (B, N, H, dv) and (B, N, H / shared, dv), in at least fp32, then rounded.

    Args:
        lam: broadcastable to (B, H, N).
    """
    dtype = statistics_dtype(first.dtype)
    by_group = first.to(dtype).unflatten(2, (second.shape[2], -1))  # (B, N, H / shared, shared, dv)
    if lam.dim() >= 2:
        lam = lam.expand(*lam.shape[:-2], first.shape[2], -1).unflatten(-2, by_group.shape[2:4])
        lam = lam.movedim(-1, -3).unsqueeze(-1)  # (…, N, H / shared, shared, 1)
    out = by_group - lam.to(dtype) * second.to(dtype).unsqueeze(3)
    return out.flatten(2, 3).to(first.dtype)


def antiphase_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    lam: Tensor | None = None,
    s_aux: Tensor | None = None,
    weighting: str | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    impl: str = "auto",
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The project's own attention function: the fast operator for differential layers, SDPA for softmax.

    Args:
        module: the attention layer; ``form_of`` gives its form, ``is_causal`` its direction.
        query: (B, maps, N, d).
        key, value: (B, key maps, M, d), in the layout of the cache.
        attention_mask: None (causality and window only), boolean (B, 1, 1, M) for additional padding, or (B, 1, N, M)
            boolean or additive, which must then include causality and window.
        scaling: factor of the scores; None means 1/√d.
        lam: λ of a differential layer, broadcastable to (B, H, N).
        s_aux: (maps,) sink logits in the softmax denominators, as in gpt-oss; the name is transformers'.
        weighting: another rule than softmax, of ``weightings.py``; its maps are formed whole.
        is_causal: the direction, instead of the layer's own.
        impl: as for ``differential_attention``.

    Returns:
        (B, N, heads, dv) and None, because the weights are never computed.

    Raises:
        ValueError: a keyword argument would change the result but is not supported, or the mask does not separate texts
            that ``cu_seq_lens_q`` names.
    """
    warn_of_weights(kwargs)
    if weighting is not None and impl == "triton":
        raise ValueError(f'the Triton kernels have no {weighting}; choose attn_implementation="antiphase"')
    if weighting is not None or (impl == "auto" and torch.compiler.is_exporting()):  # programs run without our kernels
        out, _ = eager_attention(
            module, query, key, value, attention_mask, scaling=scaling, lam=lam, s_aux=s_aux, weighting=weighting,
            sliding_window=sliding_window, is_causal=is_causal, **kwargs,
        )  # fmt: skip
        return out, None
    given = kwargs if s_aux is None or not is_differential(module) else {**kwargs, "s_aux": s_aux}
    refuse_unknown(given, module, otherwise='choose attn_implementation="eager"' if form_of(module) is None else LEAVE)
    mask, is_causal, sliding_window = visible_keys(module, attention_mask, query, key, sliding_window, is_causal)
    refuse_mixed_texts(kwargs, mask, query)
    if is_differential(module):
        assert lam is not None
        shared = sharing_second_map(module, query.shape[1] // 2, mask)
        if shared > 1 and impl == "triton":
            raise ValueError(
                "the Triton kernels have no form for heads that share their second maps (num_noise_heads); choose "
                'attn_implementation="antiphase"'
            )
        return differential_output(
            query, key, value, lam, mask, halves=2 if has_two_keys(module) else 1, shared=shared,
            is_causal=is_causal, sliding_window=sliding_window, scaling=scaling, impl=impl,
        ), None  # fmt: skip
    return softmax_attention(
        query, key, value, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scaling, s_aux=s_aux
    ).contiguous(), None  # some layers call view on it, as on transformers' own


@wraps(antiphase_attention, assigned=())  # the signature alone
def triton_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """``antiphase_attention`` on the Triton kernels, or an error."""
    return antiphase_attention(module, *args, **kwargs, impl="triton")


def own_implementation(function: AttentionFunction) -> str | None:
    """The implementation that one of the two functions above uses, of which a V1 layer may take the kernels of a step;
    None for any other function.
    """
    if function is antiphase_attention:
        return "auto"
    return "triton" if function is triton_attention else None


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    lam: Tensor | None = None,
    s_aux: Tensor | None = None,
    weighting: str | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The attention implementation "eager": the reference, with weights (B, heads, N, M), signed if differential."""
    refuse_unknown(kwargs if s_aux is None or not is_differential(module) else {**kwargs, "s_aux": s_aux}, module)
    mask, is_causal, sliding_window = visible_keys(module, attention_mask, query, key, sliding_window, is_causal)
    refuse_mixed_texts(kwargs, mask, query)
    if is_differential(module):
        assert lam is not None
        if (shared := sharing_second_map(module, query.shape[1] // 2, mask)) > 1:
            first, second = (
                softmax_weights(*maps, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scaling)
                for maps in apart(query, key, shared, two_keys=has_two_keys(module))
            )  # (B, H, N, M), (B, H / shared, N, M)
            full = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).unsqueeze(-1).to(first.dtype)
            weights = first - full * second.repeat_interleave(shared, dim=1)
            values = heads_of_value(module, value)
            values = values.repeat_interleave(first.shape[1] // values.shape[1], dim=1)
            return (weights.to(value.dtype) @ values).transpose(1, 2), weights
        out, weights = differential_attention(
            query, key, heads_of_value(module, value), lam, attn_mask=mask, is_causal=is_causal,
            sliding_window=sliding_window, scale=scaling, impl="reference", return_weights=True,
        )  # fmt: skip
        return out.transpose(1, 2), weights
    weights = softmax_weights(
        query, key, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scaling, s_aux=s_aux,
        weighting=weighting,
    )  # fmt: skip
    values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return (weights.to(value.dtype) @ values).transpose(1, 2), weights


def differential_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    *,
    halves: int,
    is_causal: bool,
    sliding_window: int | None,
    scaling: float | None,
    impl: str = "auto",
    shared: int = 1,
) -> Tensor:
    """Heads' outputs (B, N, H, halves · d) from keys and values in a cache's layout; ``halves`` is 2 in V1, 1 in V2.

    So many neighbouring heads as ``shared`` have the same second map, which is formed once.
    """
    if impl == "auto" and torch.compiler.is_exporting():  # as in ``antiphase_attention``
        impl = "reference"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = attend_cached(
        query, key, value, lam, mask, groups=key.shape[1] // halves,
        is_causal=is_causal, sliding_window=sliding_window, scale=scale, impl=impl, shared=shared,
    )  # fmt: skip
    if out is None and shared > 1:
        first, second = (
            softmax_attention(*maps, value, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scale)
            for maps in apart(query, key, shared, two_keys=halves == 2)
        )
        return subtracted(first, second, lam)
    if out is None:  # joining halves copies them
        out = differential_attention(
            query, key, join_halves(value) if halves == 2 else value, lam,
            attn_mask=mask, is_causal=is_causal, sliding_window=sliding_window, scale=scaling, impl=impl,
        )  # fmt: skip
    return out.transpose(1, 2)


def subtracting(ordinary: AttentionFunction) -> AttentionFunction:
    """The attention function of V2 layers on top of an ordinary one, called once with all maps: O₂ᵢ - λᵢ O₂ᵢ₊₁."""

    def subtract(module: nn.Module, query: Tensor, *args: Any, lam: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        outputs, _ = ordinary(module, query, *args, **kwargs)  # (B, N, 2H, d)
        batch, maps, tokens, _ = query.shape
        first, second = outputs.reshape(batch, tokens, maps // 2, 2, -1).unbind(3)
        return first - lam.transpose(1, 2).unsqueeze(-1).to(second.dtype) * second, None

    return subtract


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float | None,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Softmax attention, the last query aligned with the last key, on the native kernels or by PyTorch's SDPA.

    Values are (B, groups, M, dv), or as halves, as in a cache, (B, 2 · groups, M, dv / 2).

    Returns (B, N, heads, dv). A row that sees no key gives zeros.
    """
    queries, keys = query.shape[2], key.shape[2]
    if s_aux is not None:
        return _attention_with_sink(
            query, key, value, mask, s_aux, is_causal=is_causal, sliding_window=sliding_window, scale=scale
        )
    found = native_softmax_attention(
        query, key, value, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scale
    )
    if found is not None:
        return found.transpose(1, 2)
    if (parts := value.shape[1] // key.shape[1]) > 1:  # PyTorch's fast paths need values as wide as queries
        run = partial(softmax_attention, is_causal=is_causal, sliding_window=sliding_window, scale=scale)
        return torch.cat([run(query, key, value[:, i::parts], mask) for i in range(parts)], dim=-1)
    grouped = query.shape[1] != key.shape[1]
    if mask is None and sliding_window is None and (not is_causal or queries in (1, keys)):
        out = scaled_dot_product_attention(
            query, key, value, is_causal=is_causal and queries > 1, scale=scale, enable_gqa=grouped
        )
        return out.transpose(1, 2)
    visible = combine_mask(mask, queries, keys, is_causal=is_causal, sliding_window=sliding_window, device=query.device)
    out = scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2)


def _attention_with_sink(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    s_aux: Tensor,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float | None,
) -> Tensor:
    """Softmax attention with sink logits (maps,), implemented as one extra key with a zero value, before the others.

    The logit is stored in an extra channel: queries hold logit / scale there, the extra key one and all other keys
    zero.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    queries, keys, width = query.shape[2], key.shape[2], value.shape[-1]
    logits = (s_aux / scale).to(query.dtype)[None, :, None, None].expand(len(query), -1, queries, 1)
    query = torch.cat([query, logits], dim=-1)
    first = nn.functional.one_hot(torch.tensor(key.shape[-1], device=key.device)).to(key.dtype)  # (d + 1,)
    key = torch.cat([first.expand(*key.shape[:2], 1, -1), nn.functional.pad(key, (0, 1))], dim=2)
    value = nn.functional.pad(value, (0, 1, 1, 0))  # (B, key maps, M + 1, d + 1): equal widths use the fast path
    if mask is None and sliding_window is None and (not is_causal or queries in (1, keys)):
        if is_causal and queries > 1:  # an extra first query keeps query and key positions aligned; its row is dropped
            out = softmax_attention(
                nn.functional.pad(query, (0, 0, 1, 0)), key, value, None,
                is_causal=True, sliding_window=None, scale=scale,
            )[:, 1:]  # fmt: skip
        else:
            out = softmax_attention(query, key, value, None, is_causal=False, sliding_window=None, scale=scale)
        return out[..., :width]
    visible = combine_mask(mask, queries, keys, is_causal=is_causal, sliding_window=sliding_window, device=query.device)
    if visible is not None:
        visible = nn.functional.pad(visible, (1, 0), value=True)
    out = softmax_attention(query, key, value, visible, is_causal=False, sliding_window=None, scale=scale)
    return out[..., :width]


def softmax_weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float | None,
    s_aux: Tensor | None = None,
    weighting: str | None = None,
) -> Tensor:
    """The softmax maps (B, maps, N, M) of a layer, in fp32 (fp64 for fp64).

    ``s_aux`` (maps,): sink logits in the denominators, with which rows sum to less than one. ``weighting``: another
    rule than softmax.
    """
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ keys.transpose(-1, -2)).to(statistics_dtype(query.dtype)) * scale
    visible = combine_mask(
        mask, query.shape[2], key.shape[2], is_causal=is_causal, sliding_window=sliding_window, device=query.device
    )
    if weighting is not None:
        return WEIGHTINGS[weighting](scores, visible)
    if s_aux is not None:
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        logits = s_aux.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, logits], dim=-1), dim=-1)[..., :-1]
    if visible is None:
        return torch.softmax(scores, dim=-1)
    empty = ~visible.any(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(~(visible | empty), float("-inf")), dim=-1).masked_fill(empty, 0.0)


def heads_of_value(module: nn.Module, value: Tensor) -> Tensor:
    """Value heads from the layout of the cache: halves in V1, whole heads in V2."""
    return join_halves(value) if has_two_keys(module) else value


def join_halves(value: Tensor) -> Tensor:
    """Value heads (B, Hkv, M, 2d) from the halves (B, 2Hkv, M, d) of a cache; a view if the memory order allows it."""
    batch, halves, keys, width = value.shape
    return value.view(batch, halves // 2, 2, keys, width).transpose(2, 3).reshape(batch, halves // 2, keys, 2 * width)


def split_halves(out: Tensor) -> Tensor:
    """Heads' outputs (B, N, H, 2d) as their halves (B, N, 2H, d)."""
    return out.unflatten(3, (2, -1)).flatten(2, 3)


def unknown_arguments(kwargs: dict[str, Any]) -> list[str]:
    """Names of arguments that change what attention computes, such as ``s_aux``, ``softcap`` or ``position_bias``."""
    return sorted(name for name, value in kwargs.items() if name not in IGNORED and value is not None)


LEAVE = "leave them out"


def refuse_unknown(
    kwargs: dict[str, Any], layer: nn.Module, *, what: str = "antiphase attention", otherwise: str = LEAVE
) -> None:
    """Refuse ``unknown_arguments`` by name instead of ignoring them; the message says ``what`` does, and what works."""
    unknown = unknown_arguments(kwargs)
    if unknown:
        known = {"softcap": "softcap (its attention logits are soft-capped)"}
        named = ", ".join(known.get(name, name) for name in unknown)
        raise ValueError(f"{what} does not support the arguments {named} of {type(layer).__name__}; {otherwise}")
    if kwargs.get("dropout"):
        raise ValueError(f"{what} has no dropout on its weights; call model.eval(), or train with attention_dropout=0")


def refuse_mixed_texts(kwargs: dict[str, Any], mask: Tensor | None, query: Tensor) -> None:
    """
    Raises:
        ValueError: ``cu_seq_lens_q`` (texts + 1) names several texts in a row, and the mask lets a token see those of
            other texts.
    """
    ends = kwargs.get("cu_seq_lens_q")
    if ends is None or len(ends) <= 2 or torch.compiler.is_compiling():
        return
    rows, length = query.shape[0], query.shape[2]
    begins = torch.zeros(rows, length, dtype=torch.bool)
    begins.view(-1)[ends[:-1].long().cpu()] = True
    begins[:, 0] = False
    row, place = begins.nonzero(as_tuple=True)
    if mask is None or not carries_positions(mask, length):
        is_mixed = len(row) > 0
    else:
        before = place + mask.shape[-1] - length - 1  # the last key of the text before
        is_mixed = bool(mask.expand(rows, -1, -1, -1)[row, :, place, before].any())
    if is_mixed:
        raise ValueError(
            "cu_seq_lens_q names several texts, which the mask does not separate; give a decoder position_ids that "
            "start again at 0 in each, use_cache=False and no attention_mask, and an encoder one text in each row"
        )


def warn_of_weights(kwargs: dict[str, Any]) -> None:
    """Say that ``output_attentions`` asks for weights that are never computed, as transformers' SDPA does."""
    if kwargs.get("output_attentions"):
        warnings.warn(
            'output_attentions gives no weights here; call set_attn_implementation("eager") first', stacklevel=3
        )
