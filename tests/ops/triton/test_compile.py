"""The kernels compile for a GPU that is not there, and fit its multiprocessors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)

ROOT = Path(__file__).resolve().parents[3]
SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a GPU gives to a block of threads, by architecture."""
SPILLED = 256
"""Bytes of a thread that may go to memory and back where blocks were chosen by that, not by time on a GPU."""
CODE = """
import json, sys
from benchmarks.compiled_kernels import compiled
print(json.dumps([row for call in {calls} for row in compiled(*call)]))
"""


def compiled(*calls):
    """Rows by kernel and variant, from a process of its own, for here Triton only interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = CODE.format(calls=calls)
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    rows = json.loads(said.stdout.splitlines()[-1])
    assert all(row["shared"] <= SHARED[row["architecture"]] for row in rows)
    return rows


def test_every_compiled_kernel_fits_its_gpu_by_the_record():
    """The record covers what would take minutes here, and is of the blocks that are in use."""
    record = json.loads((ROOT / "records/compiled-kernels.json").read_text("utf-8"))
    rows = record["values"]["rows"]
    assert all(row["shared"] <= SHARED[row["architecture"]] for row in rows)
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    for row in rows:
        kernel = row["kernel"].removesuffix("_kernel")
        if kernel not in launch.HALF:
            continue
        widths = launch.padded(row["width"]), launch.padded(row["width"] * row["key_maps"])
        has_mask = "masked" in (row["variant"] or "")
        own = launch.blocks_of(kernel, *widths, dtypes[row["dtype"]], row["architecture"] // 10, has_mask=has_mask)
        assert (row["warps"], row["stages"]) == (own.warps, own.stages)
        assert row["blocks"] == [None if kernel == "span" else own.queries, own.keys]


@pytest.mark.slow
@pytest.mark.parametrize(("key_maps", "architecture"), [(2, 90), (1, 80)])
def test_kernels_compile_and_fit(key_maps, architecture):
    rows = {row["kernel"]: row for row in compiled((64, key_maps, "bf16", architecture))}
    assert set(rows) == {f"{name}_kernel" for name in ("forward", "deltas", "keys", "queries", "span", "join")}
    assert architecture == 90 or all(row["spilled"] <= SPILLED for row in rows.values())


@pytest.mark.slow
def test_other_options_of_a_call_compile():
    variants = "windows and masked", "packed", "inference, values in halves, 32 rows"
    rows = compiled(*((64, 2, "bf16", 90, variant) for variant in variants), (64, 2, "bf16", 80))
    kernels = {(row["variant"], row["kernel"].removesuffix("_kernel")) for row in rows}
    assert {("windows and masked", "span"), ("packed", "queries"), ("packed", "keys")} <= kernels
    assert {(variants[-1], "forward"), (variants[-1], "join"), (None, "forward")} <= kernels
    assert all(row["spilled"] <= SPILLED for row in rows if row["architecture"] == 80)


@pytest.mark.slow
def test_the_widest_heads_compile_and_fit():
    rows = compiled((128, 2, "bf16", 80), (128, 2, "bf16", 90, "windows and masked"))
    assert len(rows) == 6 + 4
    assert all(row["spilled"] <= SPILLED for row in rows if row["architecture"] == 80)
