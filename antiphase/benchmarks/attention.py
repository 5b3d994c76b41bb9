"""The operator against softmax attention of equal size and against the scheme of public Differential Transformer code.

Equal size: H differential heads of 2H maps of width d with values of width 2d, against 2H softmax heads of width d.
Both have the same projections and the same multiply-adds when the subtraction comes before the product with V.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphase.benchmarks.timing import paired_times, ratios
from antiphase.interface import join_halves
from antiphase.ops.api import differential_attention
from antiphase.records import Record

OURS, SOFTMAX, TWICE = "differential_attention", "softmax of equal size", "DiffLlama's scheme"
GATE_LENGTH = 257


def benchmark_attention(
    *,
    lengths: Sequence[int] = (1024, 4096),
    heads: int = 8,
    width: int = 64,
    rounds: int = 9,
    seed: int = 0,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Causal, fp32, batch 1: forward, and forward + backward. No time is taken where the result would be wrong.

    Raises:
        RuntimeError: an implementation errs more than the tolerance rule allows.
    """
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    say("checking correctness")
    gate = correctness(heads, width, generator)
    rows = []
    for length in lengths:
        for backward in (False, True):
            say(f"timing {length} tokens, {'forward + backward' if backward else 'forward'}")
            work = _work(length, heads, width, generator, backward=backward)
            times = paired_times(work, rounds=rounds)
            for baseline in (SOFTMAX, TWICE):
                rows.append({"length": length, "backward": backward, **ratios(times, OURS, baseline)})
    return Record(
        kind="benchmark-attention",
        values={"gate": gate, "rows": rows},
        config={"heads": heads, "width": width, "dtype": "float32", "causal": True, "batch": 1, "rounds": rounds},
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )


def correctness(heads: int, width: int, generator: torch.Generator) -> list[dict[str, Any]]:
    """Error ≤ 2 × (eager's at the same dtype + one rounding), both against fp64, for output and gradients."""
    exact = [t.double() for t in _inputs(GATE_LENGTH, heads, width, generator)]
    cotangent = torch.randn(1, heads, GATE_LENGTH, 2 * width, generator=generator, dtype=torch.float64)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        low = [t.to(dtype) for t in exact]
        truth = _gradients([t.double() for t in low], cotangent.to(dtype).double(), "reference")
        eager = _gradients(low, cotangent.to(dtype), "reference")
        fast = _gradients(low, cotangent.to(dtype), "blockwise")
        for index, name in enumerate(("out", "query", "key", "value", "lam")):
            true = truth[index]
            rounding = (true.to(fast[index].dtype).double() - true).abs().max().item()
            error = (fast[index].double() - true).abs().max().item()
            allowed = 2 * ((eager[index].double() - true).abs().max().item() + rounding)
            rows.append(
                {"dtype": str(dtype).removeprefix("torch."), "tensor": name, "error": error, "allowed": allowed}
            )
            if error > allowed:
                raise RuntimeError(f"blockwise errs by {error:.3g} in {name} at {dtype}, more than {allowed:.3g}")
    return rows


def _inputs(length: int, heads: int, width: int, generator: torch.Generator) -> list[Tensor]:
    """Query and key (1, 2H, N, d), and values as halves (1, 2H, N, d)."""
    return [torch.randn(1, 2 * heads, length, width, generator=generator) for _ in range(3)]


def _gradients(inputs: Sequence[Tensor], cotangent: Tensor, impl: str) -> tuple[Tensor, ...]:
    query, key, halves = (t.detach().requires_grad_() for t in inputs)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    lam = torch.tensor(0.4, dtype=dtype, requires_grad=True)
    out = differential_attention(query, key, join_halves(halves), lam, is_causal=True, impl=impl)
    return out, *torch.autograd.grad(out, (query, key, halves, lam), cotangent)


def _work(
    length: int, heads: int, width: int, generator: torch.Generator, *, backward: bool
) -> dict[str, Callable[[], object]]:
    query, key, halves = (t.requires_grad_(backward) for t in _inputs(length, heads, width, generator))
    lam = torch.tensor(0.4, requires_grad=backward)

    def ours() -> Tensor:
        return differential_attention(query, key, join_halves(halves), lam, is_causal=True)

    def softmax() -> Tensor:
        return scaled_dot_product_attention(query, key, halves, is_causal=True)

    def twice() -> Tensor:
        return diffllama_scheme(query, key, halves, lam)

    def timed(forward: Callable[[], Tensor]) -> Callable[[], object]:
        if not backward:
            return forward

        def run() -> object:
            out = forward()
            wanted = [t for t in (query, key, halves, lam) if t.requires_grad]
            return torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)

        return run

    return {OURS: timed(ours), SOFTMAX: timed(softmax), TWICE: timed(twice)}


def diffllama_scheme(query: Tensor, key: Tensor, halves: Tensor, lam: Tensor) -> Tensor:
    """All maps attend to the first halves of the values, then to the second halves; then the subtraction.

    This is what DiffLlama's fast attention classes do: the scores of every map are formed twice.
    """
    parts = []
    for half in (halves[:, ::2], halves[:, 1::2]):
        both = scaled_dot_product_attention(query, key, half.repeat_interleave(2, dim=1), is_causal=True)
        parts.append(both[:, ::2] - lam * both[:, 1::2])
    return torch.cat(parts, dim=-1)
