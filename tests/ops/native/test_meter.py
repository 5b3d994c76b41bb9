"""The inner loops alone: each runs in every kind and dtype, and says how much it computed."""

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.lab.pages import summary
from antiphase.lab.speed import kernels as benchmark
from antiphase.ops.native.library import LOOPS, run_loop


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_counts_what_every_thread_computed(kernels, loop, dtype):
    once = run_loop(loop, dtype, rounds=1, threads=1)
    assert once > 0
    assert run_loop(loop, dtype, rounds=5, threads=1) == 5 * once
    assert run_loop(loop, dtype, rounds=5, threads=3) == 15 * once


def test_products_of_keys_and_scores_are_as_large(kernels):
    """A block of scores and the gradient of its keys are the same product, turned."""
    assert run_loop("scores", torch.float32, 1, 1) == run_loop("gradient of keys", torch.float32, 1, 1)


@pytest.mark.slow
def test_the_benchmark_marks_what_is_slow_for_its_machine(built, monkeypatch):
    monkeypatch.setattr(benchmark, "LENGTH", 100)
    monkeypatch.setattr(benchmark, "LONGEST_CACHE", 200)
    monkeypatch.setattr(benchmark, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(benchmark, "LOOP_SECONDS", 1e-3)
    monkeypatch.setattr(benchmark, "has_bf16_instructions", lambda: False)
    monkeypatch.setattr(benchmark, "product_rate", {torch.float32: 1e9}.__getitem__)
    torch.set_num_threads(2)
    record = benchmark.benchmark_kernels(quick=True)
    rows = record.values["rows"]
    assert len(rows) == 2 * 2 * (len(LOOPS) + 3)
    products = [row for row in rows if row["unit"] == "GFLOP/s"]
    assert {row["machine"] for row in products} == {1.0}  # of fp32, where there are no products of bf16
    assert all(row["share"] == pytest.approx(row["rate"]) and row["is_low"] == (row["share"] < 0.6) for row in products)
    assert all(row["share"] is None and row["rate"] > 0 for row in rows if row["what"] == "exponentials")
    (table,) = summary.main_tables(record)
    assert len(table.rows) == len(rows)


def test_the_benchmark_needs_the_library(monkeypatch):
    monkeypatch.setattr(benchmark, "why_not_built", lambda: "they are not built")
    with pytest.raises(InputError, match="they are not built"):
        benchmark.benchmark_kernels()
