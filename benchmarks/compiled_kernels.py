"""Compile the Triton kernels without a GPU, and print the multiprocessor resources that each of them uses.

    python -m benchmarks.compiled_kernels --output runs/kernels

Registers and spilled bytes are per thread, as ptxas reports them; shared memory is per block of threads. Spilled
registers are stored in memory. Writes a record; takes minutes.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from antiphase.ops.triton import launch
from antiphase.ops.triton.backward import deltas_kernel, keys_kernel, queries_kernel
from antiphase.ops.triton.decode import join_kernel, span_kernel
from antiphase.ops.triton.few import MOST_SPANS
from antiphase.ops.triton.forward import forward_kernel
from tools.script import CONSOLE, script

ARCHITECTURES = (80, 90, 100)
WIDTHS = (64, 128)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BASE = {
    "CAUSAL": True, "WINDOW": 0, "HAS_MASK": False, "PACKED": False, "SAVE": True, "PARTS": 1, "ROWS": 16,
    "OF_LAYER": False, "RAISE": False,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "not causal": {"CAUSAL": False},
    "windows": {"WINDOW": 512},
    "masked": {"HAS_MASK": True, "CAUSAL": False},
    "windows and masked": {"WINDOW": 512, "HAS_MASK": True},
    "packed": {"PACKED": True},
    "inference, values in halves, 32 rows": {"SAVE": False, "PARTS": 2, "ROWS": 32},
    "in a layer, values in halves": {"OF_LAYER": True, "PARTS": 2},
}
"""Options of calls; each is compiled at width 64 for the first version, and windows with masks at 128 too."""
OTHER_SIZES = ((32, "bf16"), (80, "bf16"), (64, "fp16"), (64, "fp32"), (128, "fp32"))
INPUTS = {"query", "key", "value", "out", "grad", "grad_query", "grad_key", "grad_value", "weight"}
VECTORS = {"q1", "k1", "q2", "k2"}
FULL = {"lam", "second", "logsumexp", "deltas", "sums", *VECTORS}
POINTERS = {"mask": "*u8", "query_edges": "*i32", "key_edges": "*i32"}
NUMBERS = dict.fromkeys(("scale", "factor", "initial", "eps"), "fp32")


def measure(given: Namespace) -> dict[str, Any]:
    """Compile all kernels."""
    rows: list[dict[str, Any]] = []
    for architecture in ARCHITECTURES:
        for width, key_maps in product(WIDTHS, (2, 1)):
            rows += compiled(width, key_maps, "bf16", architecture)
        for variant in VARIANTS:
            rows += compiled(64, 2, "bf16", architecture, variant)
        for key_maps in (2, 1):
            rows += compiled(128, key_maps, "bf16", architecture, "windows and masked")
        for width, dtype in OTHER_SIZES:
            rows += compiled(width, 2, dtype, architecture)
        for row in rows:
            if row["architecture"] == architecture:
                CONSOLE.print(" ".join(f"{name} {value}" for name, value in row.items()))
    return {"values": {"rows": rows, "triton": triton.__version__}}


def compiled(
    width: int, key_maps: int, dtype: str, architecture: int, variant: str | None = None
) -> Iterator[dict[str, Any]]:
    """The kernels that a variant affects, one row each: blocks, registers, spills, shared memory."""
    changes = VARIANTS[variant] if variant is not None else {}
    value_width = 2 * width if key_maps == 2 else width
    shared = {
        **BASE, "WIDTH": width, "VALUE_WIDTH": value_width, "BLOCK_D": launch.padded(width),
        "BLOCK_DV": launch.padded(value_width), "KEY_MAPS": key_maps, **changes,
    }  # fmt: skip
    for kernel, own, warps, stages in _kernels(shared, DTYPES[dtype], architecture // 10):
        if not changes.keys() & set(kernel.arg_names) and changes:
            continue
        found = _compile(kernel, {**shared, **own}, dtype, architecture, warps, stages)
        yield {"kernel": kernel.__name__, "dtype": dtype, "width": width, "key_maps": key_maps, "variant": variant,
               "architecture": architecture, "warps": warps, "stages": stages,
               "blocks": [own.get("BLOCK_M"), own.get("BLOCK_N")], **found}  # fmt: skip


def _kernels(shared: dict[str, Any], dtype: torch.dtype, major: int) -> Iterator[tuple[Any, dict[str, Any], int, int]]:
    def blocks_of(name: str) -> launch.Tiling:
        widths = shared["BLOCK_D"], shared["BLOCK_DV"]
        return launch.blocks_of(name, *widths, dtype, major, has_mask=shared["HAS_MASK"])

    for kernel in (forward_kernel, keys_kernel, queries_kernel):
        blocks = blocks_of(kernel.__name__.removesuffix("_kernel"))
        yield kernel, {"BLOCK_M": blocks.queries, "BLOCK_N": blocks.keys}, blocks.warps, blocks.stages
    yield deltas_kernel, {"BLOCK_M": launch.LEAST_BLOCK}, 4, 3
    blocks = blocks_of("span")
    yield span_kernel, {"BLOCK_N": blocks.keys}, blocks.warps, blocks.stages
    yield join_kernel, {"BLOCK_SPANS": MOST_SPANS}, 4, 3


def _compile(
    kernel: Any, constants: dict[str, Any], dtype: str, architecture: int, warps: int, stages: int
) -> dict[str, int]:
    names = kernel.arg_names
    present = {"mask"} if constants["HAS_MASK"] else set()
    present |= {"query_edges", "key_edges"} if constants["PACKED"] else set()
    absent = {"lam"} if constants["OF_LAYER"] else {*VECTORS, "weight"}
    absent |= POINTERS.keys() - present
    constants = {name: value for name, value in constants.items() if name in names}
    constants.update(dict.fromkeys(absent & set(names)))
    fixed: dict[tuple[int, ...], Any] = {(names.index(name),): value for name, value in constants.items()}
    signature: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_strides"):
            of_mask = name == "mask_strides"
            signature[name] = ("i32",) * 3 + ("constexpr",) * of_mask
            attributes |= {(index, place): [["tt.divisibility", 16]] for place in range(3)}
            if of_mask:
                fixed[index, 3] = 1  # the stride along keys is 1 for nearly every mask; Triton makes a 1 a constant
        elif name in POINTERS:
            signature[name] = POINTERS[name]
            attributes[index,] = [["tt.divisibility", 16]]
        elif name in INPUTS | FULL:
            signature[name] = f"*{'fp32' if name in FULL else dtype}"
            attributes[index,] = [["tt.divisibility", 16]]
        else:
            signature[name] = NUMBERS.get(name, "i32")
    source = ASTSource(kernel, signature, fixed, attributes)
    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    return {"shared": made.metadata.shared, **_usage(made.asm["ptx"], architecture)}


def _usage(ptx: str, architecture: int) -> dict[str, int]:
    """The resource usage of a kernel that ptxas reports."""
    program = "ptxas-blackwell" if architecture >= 100 else "ptxas"
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin" / program
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        name = f"sm_{architecture}{'a' if architecture >= 90 else ''}"
        command = [str(ptxas), "-v", f"-arch={name}", str(path), "-o", str(path.with_suffix(".cubin"))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return {
        "registers": int(re.findall(r"Used (\d+) registers", said)[0]),
        "spilled": int(re.findall(r"(\d+) bytes spill stores", said)[0]),
    }


if __name__ == "__main__":
    script(__doc__, "compiled-kernels", measure, {})
