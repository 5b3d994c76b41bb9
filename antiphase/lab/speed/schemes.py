"""Candidates for timing: the operator, softmax attention of equal size, and other methods for the same difference.

Equal size: H differential heads of 2H maps of width d with values of width 2d, against 2H softmax heads of width d.
Both have the same projections. All take queries, keys and values in a layer's layout: (B, 2H, N, d) with values as
halves (B, 2H, N, d), stored token by token as projections produce them, or head by head as in a cache; V2's keys and
values are (B, H, N, d).

Decoding is compared with every method of softmax attention that users have, because the ordinary one is slow in bf16 on
CPUs; the fastest of them is the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from antiphase.layers.functions import differential_output, join_halves, softmax_attention
from antiphase.ops.native.library import why_not_built

LAM = 0.4
CAPTURED = "decode in a CUDA graph"
"""The task "decode" without the time that a processor needs to launch it."""


@dataclass(frozen=True)
class Case:
    """Sizes of one call, causal."""

    length: int
    heads: int
    width: int
    dtype: torch.dtype
    task: str
    """ "forward", "forward + backward", "decode" (one query over ``length`` cached keys, forward), or ``CAPTURED``."""
    batch: int = 1
    device: str = "cpu"

    @property
    def decodes(self) -> bool:
        """Whether there is one query."""
        return self.task in ("decode", CAPTURED)

    @property
    def pairs(self) -> int:
        """Number of visible query-key pairs, over all differential heads."""
        return self.batch * self.heads * (self.length if self.decodes else self.length * (self.length + 1) // 2)


@dataclass(frozen=True)
class Scheme:
    """One method and its cost: multiply-adds per pair and differential head, in units of d."""

    name: str
    run: Callable[..., Tensor]
    forward: int
    backward: int
    shares_keys: bool = False
    """V2: both maps of a head share key and value."""
    holds_maps: bool = False
    """Whether it needs memory for N × N weights."""
    cache_dtype: torch.dtype | None = None
    """Dtype of its cache; None means the case's."""

    def flops(self, case: Case) -> int:
        """Operations by formula: with the scores that backward recomputes, without work beyond the diagonal."""
        unit = self.forward + (self.backward if case.task == "forward + backward" else 0)
        return 2 * unit * case.width * case.pairs

    def least_bytes(self, case: Case) -> int:
        """Smallest number of bytes to read and write: inputs and output, and in backward their gradients."""
        queries = 1 if case.decodes else case.length
        maps, key_maps = 2 * case.heads, case.heads if self.shares_keys else 2 * case.heads
        outputs = case.heads if self.shares_keys else 2 * case.heads
        rows = queries * (maps + outputs) + 2 * case.length * key_maps
        passes = 3 if case.task == "forward + backward" else 1  # backward reads all of them again and writes gradients
        return passes * case.batch * rows * case.width * case.dtype.itemsize


def inputs(case: Case, seed: int, *, shares_keys: bool = False) -> list[Tensor]:
    """Query, key, values as halves, and λ (fp32 scalar); the same seed gives the same numbers to every scheme."""
    generator = torch.Generator(case.device).manual_seed(seed)
    queries = 1 if case.decodes else case.length
    maps, key_maps = 2 * case.heads, case.heads if shares_keys else 2 * case.heads
    sizes = [(queries, maps), (case.length, key_maps), (case.length, key_maps)]
    by_token = [
        torch.randn(case.batch, *size, case.width, generator=generator, device=case.device).to(case.dtype)
        for size in sizes
    ]
    by_head = [tensor.transpose(1, 2) for tensor in by_token]
    if case.decodes:
        by_head = [tensor.contiguous() for tensor in by_head]
    return [*by_head, torch.tensor(LAM, device=case.device)]


def work(scheme: Scheme, case: Case, seed: int) -> Callable[[], Any]:
    """The call to time: output, or output and all gradients."""
    query, *cache, lam = inputs(case, seed, shares_keys=scheme.shares_keys)
    tensors = [query, *(part.to(scheme.cache_dtype or part.dtype) for part in cache)]
    if case.task != "forward + backward":

        def forward() -> Tensor:
            with torch.no_grad():
                return scheme.run(*tensors, lam)

        return forward
    leaves = [tensor.requires_grad_() for tensor in (*tensors, lam)]

    def forward_backward() -> tuple[Tensor | None, ...]:
        out = scheme.run(*leaves)
        return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return forward_backward


# ------------------------------------------------------------------------------------------ methods


def ours(query: Tensor, key: Tensor, value: Tensor, lam: Tensor, *, halves: int = 2, impl: str = "auto") -> Tensor:
    """The call of a layer, with outputs (B, N, H, halves · d): values as halves (2), or whole in V2 (1)."""
    return differential_output(
        query, key, value, lam, None, halves=halves,
        is_causal=query.shape[2] > 1, sliding_window=None, scaling=None, impl=impl,
    )  # fmt: skip


def softmax(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """Softmax attention with as many maps."""
    return scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


def native_softmax(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """Softmax attention on the native kernels, as in the attention function ``antiphase``."""
    return softmax_attention(
        query, key, value, None, is_causal=query.shape[2] > 1, sliding_window=None, scale=None
    ).transpose(1, 2)  # fmt: skip


def by_backend(scheme: Scheme, name: str, backend: SDPBackend) -> Scheme:
    """A scheme whose softmax attention runs on one backend of PyTorch, or raises an error."""

    def run(*tensors: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scheme.run(*tensors)

    return replace(scheme, name=name, run=run)


def one_step_eagerly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One query by transformers' eager attention: keys repeated for the maps that share them, softmax in fp32."""
    repeats = query.shape[1] // key.shape[1]
    keys, values = (part.repeat_interleave(repeats, dim=1) if repeats > 1 else part for part in (key, value))
    weights = torch.softmax(
        (query @ keys.transpose(-1, -2)) * query.shape[-1] ** -0.5, dim=-1,
        dtype=torch.promote_types(query.dtype, torch.float32),
    )  # fmt: skip
    return weights.to(query.dtype) @ values


def one_step_by_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One query by two products and a softmax in the input's dtype; maps that share a key are rows of one product."""
    rows = query.reshape(*key.shape[:2], -1, query.shape[-1])  # (B, key maps, maps of each, d)
    weights = torch.softmax((rows * query.shape[-1] ** -0.5) @ key.transpose(-1, -2), dim=-1)
    return (weights @ value).reshape(query.shape)


def one_step_in_the_dtype_of_the_cache(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One query by PyTorch's attention, cast to the dtype of the cache."""
    out = scaled_dot_product_attention(query.to(key.dtype), key, value, enable_gqa=query.shape[1] != key.shape[1])
    return out.to(query.dtype)


def of_softmax(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Softmax attention as a method to time, which ignores λ."""
    return lambda query, key, value, lam: attend(query, key, value)


def of_v2(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """One call of softmax attention with all maps, then the subtraction."""

    def run(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
        both = attend(query, key, value)
        return both[:, ::2] - lam * both[:, 1::2]

    return run


def decoding_ways(usual: Scheme, way: Callable[..., Callable[..., Tensor]]) -> list[Scheme]:
    """All methods of decoding by softmax attention, each made a scheme by ``way``; the ordinary one is first."""
    by_hand = {"eager": one_step_eagerly, "products": one_step_by_products}
    cached = replace(
        usual, name=f"{usual.name} (fp32 cache)", run=way(one_step_in_the_dtype_of_the_cache), cache_dtype=torch.float32
    )
    return [
        usual,
        by_backend(usual, f"{usual.name} (math)", SDPBackend.MATH),
        *(replace(usual, name=f"{usual.name} ({name})", run=way(attend)) for name, attend in by_hand.items()),
        cached,
    ]


def diffllama(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """Two calls: all maps attend to the first halves of the values, then to the second halves.

    This is how DiffLlama's fast attention classes work: the scores of every map are computed twice.
    """
    parts = []
    for half in (value[:, ::2], value[:, 1::2]):
        both = softmax(query, key, half.repeat_interleave(2, dim=1), lam)
        parts.append(both[:, ::2] - lam * both[:, 1::2])
    return torch.cat(parts, dim=-1)


def four_calls(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """One call per map and half of the values, as in the first public code with flash attention."""
    outputs = [
        torch.cat([softmax(query[:, m::2], key[:, m::2], value[:, half::2], lam) for half in (0, 1)], dim=-1)
        for m in (0, 1)
    ]
    return outputs[0] - lam * outputs[1]


def two_calls(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """One call per map with whole values, which are wider than the keys, so that PyTorch computes the whole map."""
    whole = join_halves(value)
    first, second = (softmax(query[:, m::2], key[:, m::2], whole, lam) for m in (0, 1))
    return first - lam * second


def joined_keys(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """One grouped call, as vLLM serves V1: a head's two keys are one of double width; a query meets half of it."""
    width = query.shape[-1]
    first, second = pad(query[:, ::2], (0, width)), pad(query[:, 1::2], (width, 0))
    both = scaled_dot_product_attention(
        torch.stack((first, second), dim=2).flatten(1, 2), join_halves(key), join_halves(value),
        is_causal=query.shape[2] > 1, scale=width**-0.5, enable_gqa=True,
    )  # fmt: skip
    return both[:, ::2] - lam * both[:, 1::2]


def one_call_v2(query: Tensor, key: Tensor, value: Tensor, lam: Tensor) -> Tensor:
    """One grouped call with all maps, then the subtraction: V2 without its own operator."""
    both = scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1, enable_gqa=True)
    return both[:, ::2] - lam * both[:, 1::2]


OURS = Scheme("V1", ours, forward=4, backward=10)
SOFTMAX = Scheme("softmax", softmax, forward=4, backward=10)
DIFFLLAMA = Scheme("DiffLlama", diffllama, forward=8, backward=20)
FOUR_CALLS = Scheme("four calls", four_calls, forward=8, backward=20)
TWO_CALLS = Scheme("two calls", two_calls, forward=6, backward=14, holds_maps=True)
JOINED_KEYS = Scheme("one call, joined keys", joined_keys, forward=8, backward=20)
OURS_V2 = Scheme("V2", partial(ours, halves=1), forward=3, backward=8, shares_keys=True)
ONE_CALL_V2 = Scheme("one call for V2", one_call_v2, forward=4, backward=10, shares_keys=True)
SOFTMAX_DECODING = decoding_ways(SOFTMAX, of_softmax)
ONE_CALL_V2_DECODING = decoding_ways(ONE_CALL_V2, of_v2)

NATIVE_SOFTMAX = Scheme("native softmax", native_softmax, forward=4, backward=10)
BLOCKWISE = Scheme("V1 blockwise", partial(ours, impl="blockwise"), forward=4, backward=10)
WITH_NATIVE = [] if why_not_built() else [NATIVE_SOFTMAX]
"""Further baselines if the native kernels are built."""
BY_ROWS = [SOFTMAX, *WITH_NATIVE, *([BLOCKWISE] if WITH_NATIVE else []), DIFFLLAMA, FOUR_CALLS, TWO_CALLS, JOINED_KEYS]

COMPARED: dict[str, Sequence[tuple[Scheme, Sequence[Scheme]]]] = {
    "forward": [(OURS, BY_ROWS), (OURS_V2, [ONE_CALL_V2])],
    "forward + backward": [(OURS, BY_ROWS), (OURS_V2, [ONE_CALL_V2])],
    "decode": [(OURS, [*SOFTMAX_DECODING, *WITH_NATIVE, DIFFLLAMA, JOINED_KEYS]), (OURS_V2, ONE_CALL_V2_DECODING)],
}
"""By task: a scheme of this package, and the baselines that it is compared with in the same rounds."""
