"""The compiled library: finding it, explaining why it is missing, and calling it."""

from __future__ import annotations

import ctypes
import struct
from ctypes import c_char_p, c_double, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from antiphase.ops.native.build import LIBRARY, fingerprint, library_path

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 2}
FORWARD, BACKWARD = range(2)
KERNELS = ("portable", "AVX2", "AVX-512", "AVX-512 BF16", "AMX")
"""In the order of the library's own numbers."""
LACKS = {
    1: "without the tiles that this processor has: the system refuses them to this process",
    2: "without better ones, whose instructions this processor claims and does not run",
}
"""Why there are no better ones, by the library's own numbers; 0 if these are the best."""

PROBLEM = struct.Struct("@15P21q13q3d4i2P")
"""``antiphase_problem`` of source/problem.h: tensors, strides, sizes, scale, switches, how to run on several threads.
For a short sequence, filling it in takes as long as the call, and struct is the fastest way.
"""
NORM_PROBLEM = struct.Struct("@5P2q2d2iP")
"""``antiphase_norm_problem``."""
LOSS_PROBLEM = struct.Struct("@6P3q2iP")
"""``antiphase_loss_problem``."""
MOST_SHARED = 4
"""Heads that can share their second map in a call."""
METER_PROBLEM = struct.Struct("@Pq3iP")
"""``antiphase_meter_problem``."""
LOOPS = ("scores", "weights · values", "gradient of keys", "exponentials")
"""Inner loops, in the order of the library's own numbers."""
Strides = tuple[int, int, int]
NO_STRIDES: Strides = (0, 0, 0)


@cache
def library() -> ctypes.CDLL | str:
    """The library, or a message that says why there is none and what to do."""
    path = library_path()
    if not path.is_file():
        return f"the native kernels are not built ({path.name} is missing): run `antiphase build`"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native kernels cannot be loaded ({error}): run `antiphase build`"
    if hasattr(loaded, "antiphase_sources"):
        loaded.antiphase_sources.restype = c_char_p
    if not hasattr(loaded, "antiphase_sources") or loaded.antiphase_sources() != fingerprint().encode():
        return f"the native kernels in {path} are of another version of antiphase: run `antiphase build`"
    for task, problem in (("problem", PROBLEM), ("norm", NORM_PROBLEM), ("loss", LOSS_PROBLEM),
                          ("meter", METER_PROBLEM)):  # fmt: skip
        size = loaded[f"antiphase_{task}_bytes"]
        size.restype = c_int64
        assert size() == problem.size, f"problem.h and library.py differ in {task}"
    loaded.antiphase_run.argtypes = loaded.antiphase_norm.argtypes = loaded.antiphase_loss.argtypes = [c_char_p]
    loaded.antiphase_meter.argtypes = [c_char_p]
    loaded.antiphase_lambda.argtypes = [c_void_p * 4, c_int64, c_double]
    loaded.antiphase_lambda.restype = c_float
    return loaded


@cache
def torch_library() -> ctypes.CDLL | None:
    """PyTorch's own library of CPU functions, to take functions by their addresses; None if there is none."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # not a library
            continue
    return None


@cache
def threads_of_torch() -> tuple[int, int]:
    """Addresses of the functions that run code on PyTorch's own threads and give a thread's index; 0 if there are none.

    PyTorch's threads stay busy for a while waiting for work, and threads of our own would compete with them.
    """
    try:
        return address_in_torch("GOMP_parallel"), address_in_torch("omp_get_thread_num")
    except AttributeError:  # PyTorch was built without OpenMP
        return 0, 0


def address_in_torch(name: str) -> int:
    """The address of a C function.

    Raises:
        AttributeError: PyTorch has none of this name.
    """
    return ctypes.cast(getattr(torch_library(), name), c_void_p).value or 0


@torch.compiler.assume_constant_result  # the answer never changes within a process
def why_not_built() -> str | None:
    """Why there are no native kernels, and what to do; None if there are."""
    found = library()
    return found if isinstance(found, str) else None


def why_not(query: Tensor, scale: float) -> str | None:
    """Why the kernels do not support such a call, and what would; None if they do."""
    remedy = 'use impl="blockwise"'
    if query.device.type != "cpu":
        return f"the native kernels are for processors, not for {query.device.type}: {remedy}"
    if query.dtype not in DTYPES:
        return f"the native kernels take fp32, bf16 and fp64, not {query.dtype}: {remedy}"
    if not scale > 0:
        return f"the native kernels need a scale above 0, got {scale}: {remedy}"
    reason = why_not_built()
    return None if reason is None else f"{reason}, or {remedy}"


def kernels() -> str:
    """Which of ``KERNELS`` run on this processor, why not better ones that it claims, and whether on one thread."""
    found = library()
    assert not isinstance(found, str)
    parts = [KERNELS[found.antiphase_kernels()]]
    if (lack := found.antiphase_lacks()) != 0:
        parts.append(LACKS[lack])
    if not threads_of_torch()[0]:
        parts.append("on one thread: this build of PyTorch has no OpenMP to share")
    return ", ".join(parts)


def run(
    task: int,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    groups: int,
    is_causal: bool,
    sliding_window: int,
    scale: float,
    shared: int = 1,
    edges: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
    statistics: Tensor | None = None,
    grad: Tensor | None = None,
    grads: tuple[Tensor, Tensor, Tensor] | None = None,
    grad_lam: Tensor | None = None,
) -> None:
    """Run a task on PyTorch's threads; shapes as in ``operators.attend`` and ``operators.attend_backward``.

    ``shared`` neighbouring heads subtract the second map of their first.

    Raises:
        ValueError: the shapes do not fit together; this prevents reads beyond a tensor's end.
        MemoryError: the system is out of memory.
        RuntimeError: there is no library, or it does not support this problem.
    """
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    if groups < 1 or sliding_window < 0:
        raise ValueError(f"groups must be at least 1, sliding_window at least 0, got {groups} and {sliding_window}")
    maps = 1 if lam is None else 2
    _check_dtypes(query, key, value, lam, mask, grad)
    _check_shapes(query, key, value, lam, mask, groups, maps, grad, statistics)
    has_one_mask = mask is None or mask.shape[1] == 1
    fits = 1 < shared <= MOST_SHARED and query.shape[1] // maps // groups % shared == 0
    if shared != 1 and not (fits and maps == 2 and has_one_mask):
        raise ValueError(
            f"{shared} heads cannot share a second map: only a divisor of a group's, at most {MOST_SHARED}, of one mask"
        )
    if edges is not None:
        if mask is not None:
            raise ValueError("packed sequences, whose edges are given, take no mask")
        _check_edges(edges, len(query), query.shape[2], key.shape[2])
    parallel, thread = threads_of_torch()
    batch, maps_of_all, queries, width = query.shape
    key_maps, parts = key.shape[1] // groups, value.shape[1] // groups
    status = found.antiphase_run(
        PROBLEM.pack(
            query.data_ptr(), key.data_ptr(), value.data_ptr(), address(lam), address(mask),
            *((0, 0) if edges is None else (edges[0].data_ptr(), edges[1].data_ptr())),
            address(out), address(statistics), address(grad),
            *((0, 0, 0) if grads is None else (t.data_ptr() for t in grads)), address(grad_lam),
            0, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *broadcast(lam), *broadcast(mask),
            *(NO_STRIDES if out is None else out.stride()[:3]), *(NO_STRIDES if grad is None else grad.stride()[:3]),
            batch, groups, maps_of_all // maps // groups, maps, key_maps, queries, key.shape[2], width,
            parts * value.shape[3], parts, 0 if edges is None else len(edges[0]) - 1, shared, sliding_window,
            scale, 0.0, 0.0, is_causal, DTYPES[query.dtype], task,
            torch.get_num_threads() if parallel else 1, parallel, thread,
        )
    )  # fmt: skip
    if status == 1:
        raise MemoryError("the native attention kernels could not allocate their scratch space")
    if status:
        raise RuntimeError(f"{LIBRARY} refused the problem (status {status})")


def _check_dtypes(
    query: Tensor, key: Tensor, value: Tensor, lam: Tensor | None, mask: Tensor | None, grad: Tensor | None
) -> None:
    dtype = query.dtype
    if key.dtype != dtype or value.dtype != dtype or (grad is not None and grad.dtype != dtype):
        raise ValueError(
            f"query, key, value and their gradient must share a dtype: {dtype}, {key.dtype}, {value.dtype}"
        )
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    if (lam is not None and lam.dtype != exact) or (mask is not None and mask.dtype != torch.bool):
        raise ValueError(f"lam must be {exact} for a query of {dtype}, and mask boolean")


def _check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    groups: int,
    maps: int,
    grad: Tensor | None,
    statistics: Tensor | None,
) -> None:
    batch, maps_of_all, queries, width = query.shape
    key_batch, key_heads, keys, key_width = key.shape
    value_batch, value_heads, values, part_width = value.shape
    heads, key_maps, parts = maps_of_all // maps, key_heads // groups, value_heads // groups
    value_width, exact = parts * part_width, torch.float64 if query.dtype == torch.float64 else torch.float32
    if not (
        heads > 0 < width == key_width
        and value_width > 0
        and 1 <= key_maps <= maps
        and 1 <= parts <= 2
        and maps_of_all == heads // groups * groups * maps
        and key_batch == batch == value_batch
        and key_heads == groups * key_maps
        and value_heads == groups * parts
        and values == keys
        and (lam is None or lam.numel() == 1 or _fits(lam, (batch, heads, queries)))
        and (mask is None or (_fits(mask, (batch, heads, queries, keys)) and mask.shape[3] == keys))
        and (grad is None or grad.shape == (batch, heads, queries, value_width))
        and (statistics is None or holds(statistics, (batch, maps_of_all, queries, 2), exact))
    ):
        given = {"query": query, "key": key, "value": value, "lam": lam, "mask": mask, "grad": grad,
                 "statistics": statistics}  # fmt: skip
        sizes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items() if tensor is not None)
        raise ValueError(f"{sizes} do not fit together for {groups} value heads and {maps} maps a head")


def run_norm(
    tensor: Tensor, weight: Tensor, grad: Tensor | None, out: Tensor, grad_weight: Tensor | None, eps: float,
    factor: float,
) -> None:  # fmt: skip
    """RMSNorm of each row or, with ``grad``, its gradients; arguments as in ``layer.normalize``, all contiguous.

    Raises:
        ValueError: the shapes or dtypes do not fit together.
        MemoryError: the system is out of memory.
        RuntimeError: there is no library.
    """
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    width = tensor.shape[-1]
    if tensor.dtype not in DTYPES:
        raise ValueError(f"the native norm takes fp32, bf16 and fp64, not {tensor.dtype}; use torch.rms_norm")
    if not width or weight.shape != (width,) or (grad is not None and grad.shape != tensor.shape):
        raise ValueError(
            f"a norm of {tuple(tensor.shape)} needs a width, and a weight of ({width},), got {tuple(weight.shape)}"
        )
    if weight.dtype != tensor.dtype or (grad is not None and grad.dtype != tensor.dtype):
        raise ValueError(f"a norm of {tensor.dtype} needs a weight of the same dtype, got {weight.dtype}")
    parallel, _ = threads_of_torch()
    status = found.antiphase_norm(
        NORM_PROBLEM.pack(
            tensor.data_ptr(), weight.data_ptr(), address(grad), out.data_ptr(), address(grad_weight),
            tensor.numel() // width, width, eps, factor, DTYPES[tensor.dtype],
            torch.get_num_threads() if parallel else 1, parallel,
        )
    )  # fmt: skip
    if status:
        raise MemoryError("the native norm could not allocate its scratch space")


def run_loop(loop: str, dtype: torch.dtype, rounds: int, threads: int) -> int:
    """Run an inner loop alone, on data in the first cache; the operations of all threads: exponentials, or additions
    and multiplications.

    Raises:
        RuntimeError: there is no library.
    """
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    parallel, _ = threads_of_torch()
    threads = threads if parallel else 1
    operations = torch.zeros(1, dtype=torch.int64)
    status = found.antiphase_meter(
        METER_PROBLEM.pack(operations.data_ptr(), rounds, LOOPS.index(loop), DTYPES[dtype], threads, parallel)
    )
    assert status == 0, "the library has every loop in every dtype"
    return int(operations)


def _check_edges(edges: tuple[Tensor, Tensor], batch: int, *lengths: int) -> None:
    """Check that the cumulative lengths start at 0, never decrease and end at the total length.

    Raises:
        ValueError: they do not.
    """
    for side, length in zip(edges, lengths, strict=True):
        found = side.tolist() if side.dtype == torch.int32 and side.dim() == 1 else []
        if batch != 1 or len(found) != len(edges[0]) or found != sorted(found) or [found[0], found[-1]] != [0, length]:
            raise ValueError(f"edges must be int32 and rise from 0 to {length}, as many on both sides, got {side}")


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has the rank of a shape and broadcasts to it."""
    given = tensor.shape
    if given == shape:
        return True
    return len(given) == len(shape) and all(size in (1, target) for size, target in zip(given, shape, strict=True))


def holds(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a tensor is contiguous and has this shape and dtype."""
    return tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()


def address(tensor: Tensor | None) -> int:
    """The address of a tensor's data; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def broadcast(tensor: Tensor | None) -> tuple[int, ...]:
    """Strides of the first three dimensions, 0 for dimensions that broadcast."""
    if tensor is None or tensor.numel() == 1:
        return NO_STRIDES
    (a, b, c), strides = tensor.shape[:3], tensor.stride()
    return 0 if a == 1 else strides[0], 0 if b == 1 else strides[1], 0 if c == 1 else strides[2]
