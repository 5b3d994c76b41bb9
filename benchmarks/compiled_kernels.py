"""Compile the Triton kernels for GPUs that need not be there, and print what each takes of a multiprocessor.

    python benchmarks/compiled_kernels.py --output runs/kernels

Registers and spills are ptxas's, of a thread; shared memory is that of a block of threads. A kernel that spills sends
numbers to memory and back. Writes a record; takes minutes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from rich.console import Console
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from antiphase.ops.triton import launch
from antiphase.ops.triton.backward import keys_kernel, queries_kernel
from antiphase.ops.triton.decode import join_kernel, span_kernel
from antiphase.ops.triton.forward import forward_kernel
from antiphase.records import Record
from antiphase.studies.single import check_empty

ARCHITECTURES = (80, 90)
WIDTHS = (64, 128)
DTYPES = {"bf16": torch.bfloat16}
INPUTS = {"query", "key", "value", "out", "grad", "grad_key", "grad_value"}
FULL = {"lam", "second", "logsumexp", "deltas", "grad_query", "sums", "highest", "totals"}
ABSENT = {"mask", "query_edges", "key_edges"}
NUMBERS = {"scale": "fp32", "factor": "fp32"}


def main() -> None:
    """Compile all, print the table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the record")
    chosen = parser.parse_args()
    check_empty(chosen.output)
    console, rows = Console(), []
    for architecture, width, dtype, key_maps in product(ARCHITECTURES, WIDTHS, DTYPES, (2, 1)):
        for row in compiled(width, key_maps, dtype, architecture):
            rows.append(row)
            console.print(" ".join(f"{name} {value}" for name, value in row.items()), highlight=False)
    Record(kind="compiled-kernels", values={"rows": rows, "triton": triton.__version__}).save(chosen.output)


def compiled(width: int, key_maps: int, dtype: str, architecture: int) -> Iterator[dict[str, Any]]:
    """Every kernel at one width, a row each: blocks of ``launch.blocks_of``, registers, spills, shared memory."""
    value_width = 2 * width if key_maps == 2 else width
    shared = {"WIDTH": width, "VALUE_WIDTH": value_width, "BLOCK_D": width, "BLOCK_DV": value_width,
              "KEY_MAPS": key_maps, "CAUSAL": True, "WINDOW": 0, "HAS_MASK": False, "RAISE": False}  # fmt: skip
    for kernel, own, warps, stages in _kernels(width, value_width, DTYPES[dtype]):
        found = _compile(kernel, {**shared, **own}, dtype, architecture, warps, stages)
        yield {"kernel": kernel.__name__, "dtype": dtype, "width": width, "key_maps": key_maps,
               "architecture": architecture, "warps": warps, **found}  # fmt: skip


def _kernels(width: int, value_width: int, dtype: torch.dtype) -> Iterator[tuple[Any, dict[str, Any], int, int]]:
    for kernel, own in ((forward_kernel, {"SAVE": True}), (keys_kernel, {"ATOMIC": True}), (queries_kernel, {})):
        blocks = launch.blocks_of(kernel.__name__.removesuffix("_kernel"), width, value_width, dtype)
        sizes = {"BLOCK_M": blocks.queries, "BLOCK_N": blocks.keys, "PACKED": False}
        yield kernel, {**own, **sizes}, blocks.warps, blocks.stages
    blocks = launch.blocks_of("span", width, value_width, dtype)
    yield span_kernel, {"ROWS": 16, "BLOCK_N": blocks.keys, "PARTS": 1}, blocks.warps, blocks.stages
    yield join_kernel, {"ROWS": 16, "BLOCK_SPANS": 64}, 4, 3


def _compile(
    kernel: Any, constants: dict[str, Any], dtype: str, architecture: int, warps: int, stages: int
) -> dict[str, int]:
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    constants.update(dict.fromkeys(ABSENT & set(names)))
    signature: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_strides"):
            count = {"mask_strides": 4}.get(name, 3)
            signature[name] = ("i32",) * count
            attributes |= {(index, place): [["tt.divisibility", 16]] for place in range(count)}
        elif name in INPUTS | FULL:
            signature[name] = f"*{'fp32' if name in FULL else dtype}"
            attributes[index,] = [["tt.divisibility", 16]]
        else:
            signature[name] = NUMBERS.get(name, "i32")
    source = ASTSource(kernel, signature, {(names.index(k),): v for k, v in constants.items()}, attributes)
    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    return {"shared": made.metadata.shared, **_usage(made.asm["ptx"], architecture)}


def _usage(ptx: str, architecture: int) -> dict[str, int]:
    """What ptxas says of a kernel."""
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        name = f"sm_{architecture}{'a' if architecture == 90 else ''}"
        command = [ptxas, "-v", f"-arch={name}", path, "-o", path.with_suffix(".cubin")]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return {
        "registers": int(re.findall(r"Used (\d+) registers", said)[0]),
        "spilled": int(re.findall(r"(\d+) bytes spill stores", said)[0]),
    }


if __name__ == "__main__":
    main()
