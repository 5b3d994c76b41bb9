"""PyTorch operators that launch the kernels of whole sequences: supported calls, block sizes, autograd.

On a CPU they run only under Triton's interpreter (``TRITON_INTERPRET=1``), for tests.
"""

from __future__ import annotations

import math
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from antiphase.ops.dispatch import is_watched, operator
from antiphase.ops.shapes import OTHERWISE, Shapes, check_real, check_tensors
from antiphase.ops.triton.backward import deltas_kernel, keys_kernel, queries_kernel
from antiphase.ops.triton.forward import forward_kernel

INTERPRETED = bool(triton.knobs.runtime.interpret)
HAS_COMPILER = (
    any((triton.knobs.build.cc, shutil.which("gcc"), shutil.which("clang")))
    and Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file()
)  # fmt: skip
"""Whether Triton can compile the code that launches kernels, an extension of Python."""
DEVICES = ("CPU", "CUDA")
"""Where operators are registered: on a CPU, kernels run under the interpreter."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST, WIDEST_VALUE = 128, 256
REMEDY = 'use impl="blockwise", or attn_implementation="antiphase" for a model'
LEAST_BLOCK = 16
"""Smallest number of rows and columns in a matrix product."""
SHARED_KIB, SHARED_KIB_FROM_9 = 163, 227
"""Shared memory that a thread block may need, in KiB: what compute capabilities 8.0, 9.0 and 10.0 have, though not
every GPU between and after them.
"""
MOST_BLOCKS = 65535
"""Largest number of blocks along a sequence: CUDA's limit for the second dimension of a grid."""
LONGEST = MOST_BLOCKS * LEAST_BLOCK
"""Number of tokens that blocks of any size can cover."""


class Tiling(NamedTuple):
    """How one kernel divides its work."""

    queries: int
    keys: int
    warps: int
    stages: int


HALF = {
    "forward": (Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 2), Tiling(64, 64, 8, 3)),
    "keys": (Tiling(64, 64, 4, 2), Tiling(64, 32, 4, 1), Tiling(64, 64, 8, 2)),
    "queries": (Tiling(64, 32, 4, 3), Tiling(64, 32, 4, 2), Tiling(128, 32, 8, 2)),
    "span": (Tiling(LEAST_BLOCK, 128, 4, 2), Tiling(LEAST_BLOCK, 32, 4, 2), Tiling(LEAST_BLOCK, 32, 4, 2)),
}
"""Block sizes by kernel for widths up to 64 with values up to 128, wider ones with values up to 128 (V2), and wider
values (V1); for compute capability 9, chosen by time on an H200. There four warps compute 64 rows of a product at
least, so eight warps on 64 rows compute the same scores twice; only for wider values have four too few registers.
"""
HALF_BEFORE_9 = {
    "forward": (Tiling(128, 32, 8, 2), Tiling(32, 64, 8, 1), Tiling(32, 64, 8, 1)),
    "keys": (Tiling(64, 32, 4, 1), Tiling(64, 32, 8, 1), Tiling(64, 32, 8, 1)),
    "queries": (Tiling(128, 32, 8, 2), Tiling(64, 32, 8, 2), Tiling(64, 32, 8, 2)),
    "span": (Tiling(LEAST_BLOCK, 64, 4, 3), Tiling(LEAST_BLOCK, 32, 4, 2), Tiling(LEAST_BLOCK, 32, 4, 2)),
}
HALF_AFTER_9 = {
    **HALF,
    "forward": (Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 2), Tiling(64, 32, 8, 2)),
    "keys": (Tiling(64, 64, 8, 1), Tiling(64, 32, 4, 1), Tiling(32, 64, 8, 1)),
}
"""For earlier and later GPUs, which compute products otherwise: blocks that hardly spill in causal calls
(``benchmarks/compiled_kernels.py``). They were not chosen by time.
"""
FULL = {
    "forward": (Tiling(32, 32, 4, 1), Tiling(16, 32, 4, 1), Tiling(16, 32, 4, 1)),
    "keys": (Tiling(32, 32, 8, 1), Tiling(16, 32, 8, 1), Tiling(16, 32, 8, 1)),
    "queries": (Tiling(32, 32, 8, 1), Tiling(16, 32, 8, 1), Tiling(16, 32, 8, 1)),
    "span": (Tiling(LEAST_BLOCK, 32, 4, 2), Tiling(LEAST_BLOCK, 16, 4, 2), Tiling(LEAST_BLOCK, 16, 4, 2)),
}
"""For fp32, by the same rule, on all GPUs."""


def blocks_of(
    kernel: str, width: int, value_width: int, dtype: torch.dtype, major: int, *, has_mask: bool = False
) -> Tiling:
    """Block sizes for padded widths; ``kernel`` is "forward", "keys", "queries" or "span".

    ``major`` is the first number of the compute capability. Tiles of a mask need shared memory too, so wide values are
    loaded one stage less ahead.
    """
    if kernel in _OVERRIDES:
        return _OVERRIDES[kernel]
    half = HALF_BEFORE_9 if major < 9 else HALF if major == 9 else HALF_AFTER_9
    table = FULL if dtype == torch.float32 else half
    found = table[kernel][0 if width <= 64 and value_width <= 128 else 1 if value_width <= 128 else 2]
    return found._replace(stages=max(1, found.stages - 1)) if has_mask and value_width > 128 else found


_OVERRIDES: dict[str, Tiling] = {}


@contextmanager
def override_blocks(blocks: Mapping[str, Tiling]) -> Iterator[None]:
    """Use these block sizes within the context, whatever the widths, in order to time candidates."""
    before = dict(_OVERRIDES)
    _OVERRIDES.update(blocks)
    try:
        yield
    finally:
        _OVERRIDES.clear()
        _OVERRIDES.update(before)


@cache
def major_capability(device: torch.device) -> int:
    """The first number of a GPU's compute capability; under the interpreter, that of the GPU in the benchmarks."""
    return torch.cuda.get_device_properties(device).major if device.type == "cuda" else 9


@cache
def multiprocessors(device: torch.device) -> int:
    """Number of a GPU's multiprocessors; a few under the interpreter, so that its tests divide keys into spans."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def why_not(query: Tensor, value_width: int) -> str | None:
    """Why the kernels do not support a call, and what would work; None if they do."""
    if query.dtype not in DTYPES:
        return f"the Triton kernels take float16, bfloat16 and float32, got {query.dtype}; {REMEDY}"
    if query.shape[-1] > WIDEST or value_width > WIDEST_VALUE:
        return (
            f"the Triton kernels take queries up to width {WIDEST} and values up to {WIDEST_VALUE}, "
            f"got {query.shape[-1]} and {value_width}; {REMEDY}"
        )
    return why_not_on(query.device)


def why_not_on(device: torch.device) -> str | None:
    """Why the kernels do not run on a device, and what would work; None if they do."""
    return _find_why_not(device) if torch.compiler.is_compiling() else _why_not(device)


def _find_why_not(device: torch.device) -> str | None:
    if device.type == "cuda" and torch.cuda.is_available():  # tensors that only have shapes need no GPU
        gpu = torch.cuda.get_device_properties(device)
        shared = getattr(gpu, "shared_memory_per_block_optin", 0)  # missing on AMD GPUs
        needed = SHARED_KIB if gpu.major < 9 else SHARED_KIB_FROM_9
        if gpu.major < 8 or shared < 1024 * needed:
            return (
                f"the Triton kernels need an NVIDIA GPU of compute capability 8.0 or newer with {needed} KiB of shared "
                f"memory for a block of threads, such as A100 or H100; {gpu.name} is not one of them; {REMEDY}"
            )
        if not HAS_COMPILER:
            return f"the Triton kernels need a C compiler such as gcc and Python's headers, to be launched; {REMEDY}"
        return None
    if device.type == "cpu" and INTERPRETED:
        return None
    return f"the Triton kernels need a CUDA device, got {device}; {REMEDY}"


_why_not = cache(_find_why_not)


def power_of_two(number: int) -> int:
    """The next power of two; Triton's own function, which kernels may call too, takes as long as a small operation."""
    return 1 << (number - 1).bit_length()


def padded(width: int) -> int:
    """The next power of two that a matrix product supports."""
    return max(LEAST_BLOCK, power_of_two(width))


def count_blocks(length: int, block: int) -> int:
    """Number of blocks that cover a length."""
    return -(-length // block)


class _Call:
    """The arguments that all kernels of one call share."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, lam: Tensor, mask: Tensor | None,
        query_edges: Tensor | None, key_edges: Tensor | None, is_causal: bool, sliding_window: int,
    ) -> None:  # fmt: skip
        self.shape: Shapes = check_tensors(query, key, value)
        shape = self.shape
        if (reason := why_not(query, shape.value_width)) is not None:
            raise ValueError(reason)
        check_real(lam, mask, query)
        _check_edges(query_edges, key_edges, mask, query)
        self.query, self.key, self.value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
        self.lam = lam.expand(shape.batch, shape.heads, shape.queries)
        self.mask = None
        if mask is not None:
            full = mask.expand(shape.batch, shape.heads, shape.queries, shape.keys)
            self.mask = full.view(torch.uint8)
        self.edges = query_edges, key_edges
        self.sequences = shape.batch if query_edges is None else len(query_edges) - 1
        self.constants: dict[str, Any] = {
            "WIDTH": shape.width, "VALUE_WIDTH": shape.value_width, "BLOCK_D": padded(shape.width),
            "BLOCK_DV": padded(shape.value_width), "KEY_MAPS": shape.key_maps,
            "CAUSAL": is_causal or sliding_window > 0, "WINDOW": window_of(sliding_window, shape.keys),
            "HAS_MASK": mask is not None, "RAISE": INTERPRETED,
        }  # fmt: skip

    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Strides of query, key, value, λ and mask."""
        mask = (0, 0, 0, 0) if self.mask is None else self.mask.stride()
        return (*(t.stride()[:3] for t in (self.query, self.key, self.value)), self.lam.stride(), mask)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Heads, value heads, queries, keys."""
        return self.shape.heads, self.shape.value_heads, self.shape.queries, self.shape.keys

    def blocks(self, kernel: str) -> Tiling:
        widths = self.constants["BLOCK_D"], self.constants["BLOCK_DV"]
        major = major_capability(self.query.device)
        return blocks_of(kernel, *widths, self.query.dtype, major, has_mask=self.mask is not None)


def _check_edges(query_edges: Tensor | None, key_edges: Tensor | None, mask: Tensor | None, query: Tensor) -> None:
    """The form of edges; their numbers are on the GPU, where kernels read nothing beyond the tensors.

    Raises:
        ValueError: they do not describe packed sequences.
    """
    if query_edges is None and key_edges is None:
        return
    if query_edges is None or key_edges is None or mask is not None or len(query) != 1:
        raise ValueError("packed sequences need a batch of 1 and edges of queries and of keys, and take no mask")
    if query_edges.shape != key_edges.shape or query_edges.dim() != 1 or len(query_edges) < 2 or any(
        edges.dtype != torch.int32 or edges.device != query.device or not edges.is_contiguous()
        for edges in (query_edges, key_edges)
    ):  # fmt: skip
        raise ValueError("edges must be int32 (sequences + 1,), as many of keys as of queries, and contiguous")


def window_of(sliding_window: int, keys: int) -> int:
    """The window as the kernels take it: one that covers all keys hides nothing and might exceed 32 bits."""
    return sliding_window if sliding_window < keys else 0


def _block_count(length: int, block: int) -> int:
    """Number of blocks along a sequence.

    Raises:
        ValueError: a grid cannot have so many.
    """
    count = count_blocks(length, block)
    if count > MOST_BLOCKS:
        raise ValueError(
            f"the Triton kernels take at most {MOST_BLOCKS * block:,} tokens in this dtype and width, got {length:,}; "
            f"{REMEDY}"
        )
    return count


def _options(blocks: Tiling) -> dict[str, int]:
    return {
        "BLOCK_M": blocks.queries, "BLOCK_N": blocks.keys, "num_warps": blocks.warps, "num_stages": blocks.stages,
    }  # fmt: skip


def _empty_output(query: Tensor, value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    batch, maps, queries, _ = query.shape
    return query.new_empty(batch, queries, maps // 2, value.shape[-1], dtype=dtype or query.dtype).transpose(1, 2)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    query_edges: Tensor | None,
    key_edges: Tensor | None,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (B, H, N, dv), stored as (B, N, H, dv), with the second map's output and both log-sum-exps for backward.

    Arguments as in ``blockwise.attend``; with edges, int32 (sequences + 1,), B is 1. ``longest_query`` and
    ``longest_key`` are the lengths of the longest sequences. Without ``save``, the second and third results are empty;
    otherwise they are (B, H, N, dv) and (B, H, 2, N) in fp32, because the gradient of λ is a sum over the former, where
    rounding to half precision would be noticeable. The log-sum-exps are in units of log2, and +inf if a query sees no
    key.
    """
    call = _Call(query, key, value, lam, mask, query_edges, key_edges, is_causal, sliding_window)
    shape = call.shape
    out = _empty_output(query, value)
    second = _empty_output(query, value, torch.float32) if save else query.new_empty(0, dtype=torch.float32)
    lines = shape.queries if save else 0
    logsumexp = query.new_empty((shape.batch, shape.heads, 2, lines), dtype=torch.float32)
    blocks = call.blocks("forward")
    grid = (call.sequences * shape.heads, _block_count(longest_query, blocks.queries))
    if save:  # calls that backward does not support are refused here
        _block_count(longest_key, call.blocks("keys").keys)
        _block_count(longest_query, call.blocks("queries").queries)
    if out.numel():
        with torch.cuda.device_of(query):
            forward_kernel[grid](
                call.query, call.key, call.value, call.lam, call.mask, out, second, logsumexp, *call.edges,
                *call.strides(), out.stride()[:3], *call.sizes, scale * math.log2(math.e), **call.constants,
                **_options(blocks), PACKED=query_edges is not None, SAVE=save,
            )  # fmt: skip
    return out, second, logsumexp


_attend = operator("triton_attention", attend, DEVICES)


@torch.library.register_fake("antiphase::triton_attention")
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    save = rest[-1]
    out = _empty_output(query, value)
    batch, maps, queries, _ = query.shape
    second = _empty_output(query, value, torch.float32) if save else query.new_empty(0, dtype=torch.float32)
    return out, second, query.new_empty((batch, maps // 2, 2, queries if save else 0), dtype=torch.float32)


def attend_backward(
    grad: Tensor,
    out: Tensor,
    second: Tensor,
    logsumexp: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    query_edges: Tensor | None,
    key_edges: Tensor | None,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and lam, in their shapes and dtypes, for the cotangent ``grad`` (B, H, N, dv)."""
    call = _Call(query, key, value, lam, mask, query_edges, key_edges, is_causal, sliding_window)
    shape = call.shape
    rows = (shape.batch, shape.heads, shape.queries)
    results = ((grad, query.dtype), (out, query.dtype), (second, torch.float32))
    if (
        any(t.shape != (*rows, shape.value_width) or t.dtype != dtype for t, dtype in results)
        or logsumexp.shape != (*rows[:2], 2, rows[2]) or logsumexp.dtype != torch.float32
        or any(t.device != query.device for t in (grad, out, second, logsumexp))
    ):  # fmt: skip
        raise ValueError("the gradient and what forward saved do not fit the query, key and value")
    grad, out, second = (t if t.stride(-1) == 1 else t.contiguous() for t in (grad, out, second))
    logsumexp = logsumexp.contiguous()
    deltas = torch.empty_like(logsumexp)
    with torch.cuda.device_of(query):
        if out.numel():
            _launch_deltas(call, grad, out, second, deltas)
        if not out.numel() or not shape.keys:
            grads = [torch.zeros_like(empty) for empty in _empty_grads(query, key, value)]
        else:
            grads = _empty_grads(query, key, value)
            grad_query, grad_key, grad_value = grads
            tensors = call.query, call.key, call.value, call.lam, call.mask, grad, logsumexp, deltas, *call.edges
            numbers = (*call.strides(), grad.stride()[:3], *call.sizes, scale * math.log2(math.e), scale)
            options = {**call.constants, "PACKED": query_edges is not None}
            blocks = call.blocks("keys")
            grid = (call.sequences * shape.value_heads, _block_count(longest_key, blocks.keys))
            keys_kernel[grid](
                *tensors, grad_key, grad_value, grad_key.stride()[:3], grad_value.stride()[:3], *numbers, **options,
                **_options(blocks),
            )  # fmt: skip
            blocks = call.blocks("queries")
            grid = (call.sequences * shape.heads, _block_count(longest_query, blocks.queries))
            queries_kernel[grid](*tensors, grad_query, grad_query.stride()[:3], *numbers, **options, **_options(blocks))
    grad_lam = (-deltas[:, :, 1]).sum_to_size(lam.shape).to(lam.dtype).contiguous()
    return grads[0], grads[1], grads[2], grad_lam


def _empty_grads(*tensors: Tensor) -> list[Tensor]:
    """Gradients of query, key and value, stored as (B, N, heads, width), the layout in which projections need them."""
    return [t.new_empty(t.shape[0], t.shape[2], t.shape[1], t.shape[3]).transpose(1, 2) for t in tensors]


def _launch_deltas(call: _Call, grad: Tensor, out: Tensor, second: Tensor, deltas: Tensor) -> None:
    """Compute δ1 and δ2 of ``deltas_kernel``, (B, H, 2, N) in fp32."""
    shape = call.shape
    deltas_kernel[shape.batch * shape.heads * count_blocks(shape.queries, LEAST_BLOCK),](
        grad, out, second, call.lam, deltas, grad.stride()[:3], out.stride()[:3], second.stride()[:3],
        call.lam.stride(), shape.heads, shape.queries, VALUE_WIDTH=shape.value_width,
        BLOCK_DV=call.constants["BLOCK_DV"], BLOCK_M=LEAST_BLOCK, num_warps=4,
    )  # fmt: skip


_attend_backward = operator("triton_attention_backward", attend_backward, DEVICES)


@torch.library.register_fake("antiphase::triton_attention_backward")
def _(
    grad: Tensor, out: Tensor, second: Tensor, logsumexp: Tensor, query: Tensor, key: Tensor, value: Tensor,
    lam: Tensor, *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    query, key, value = _empty_grads(query, key, value)
    return query, key, value, torch.empty_like(lam, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, longest_query, longest_key, is_causal, sliding_window, scale, _ = inputs
    ctx.arguments = longest_query, longest_key, is_causal, sliding_window, scale
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # else the second and third outputs would get zeros of full size


def _backward(ctx: Any, grad: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 13
    arguments = grad, *ctx.saved_tensors, *ctx.arguments
    # only the operator can refuse second derivatives
    backward = _attend_backward if torch.is_grad_enabled() or is_watched(arguments) else attend_backward
    return (*backward(*arguments), *(None,) * 9)


def _refuse_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(f"the Triton implementation has no second derivatives; {OTHERWISE}")


torch.library.register_autograd("antiphase::triton_attention", _backward, setup_context=_setup_context)
torch.library.register_autograd("antiphase::triton_attention_backward", _refuse_backward)


class _Attend(torch.autograd.Function):
    """``attend`` with gradients, without the dispatcher, which takes longer than the launch of its kernels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = attend(*inputs)
        _setup_context(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


def triton_attention(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``attend`` with gradients, as an operator where something needs to see the call."""
    save = arguments[-1]
    run = _attend if is_watched(arguments) else _Attend.apply if save else attend
    found: tuple[Tensor, Tensor, Tensor] = run(*arguments)
    return found
