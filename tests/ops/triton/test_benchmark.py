"""What is timed on a GPU computes the same, and its benchmark runs from suite to record, in small sizes."""

import gc
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from antiphase.lab.pages import benchmarks
from antiphase.lab.speed import attention, gpu_schemes
from antiphase.lab.speed.gpu_schemes import COMPARED_ON_GPU, CUDNN, FLASH, FLEX
from antiphase.lab.speed.schemes import CAPTURED, SOFTMAX, Case, inputs, work
from antiphase.layers.functions import join_halves
from antiphase.ops.api import differential_attention

launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)

EVERY = {
    (task, scheme.name): scheme
    for task, pairs in COMPARED_ON_GPU.items()
    for one, others in pairs
    for scheme in (one, *others)
}


ON_GPU = not launch.INTERPRETED
DTYPE = torch.bfloat16 if ON_GPU else torch.float32  # flash attention serves half precision alone there
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2} if ON_GPU else {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def small(monkeypatch):
    """What cannot run on a processor is left out: cuDNN, and a compiled FlexAttention."""
    if not ON_GPU:
        monkeypatch.setattr(gpu_schemes, "compiled_flex", lambda shape, is_trained: flex_attention)
    device = torch.get_default_device().type
    return lambda length, task: Case(length, 2, 16, DTYPE, task, batch=2, device=device)


@pytest.mark.parametrize(("task", "name"), [key for key, scheme in EVERY.items() if scheme is not CUDNN])
def test_every_way_gives_the_reference(task, name, small):
    scheme = EVERY[task, name]
    case = small(21, task)
    query, key, value, lam = inputs(case, 0, shares_keys=scheme.shares_keys)
    assert query.shape == (2, 4, 1 if case.decodes else 21, 16)
    full = query.float(), key.float(), value.float()
    if scheme is FLASH:
        expected = SOFTMAX.run(*full, lam)
    else:
        whole = full[2] if scheme.shares_keys else join_halves(full[2])
        expected = differential_attention(*full[:2], whole, lam, is_causal=True, impl="reference")
    found = scheme.run(query, key, value, lam).float()
    found = found.transpose(1, 2) if found.shape != expected.shape else found  # a layer's call has heads behind
    torch.testing.assert_close(found, expected, **TOLERANCE)
    if task == "forward + backward" and scheme is not FLEX:  # which has no backward pass uncompiled
        assert all(gradient is not None for gradient in work(scheme, case, 0)()[:3])


def test_the_price_is_that_of_the_formulas():
    case = Case(4096, 8, 64, torch.bfloat16, "forward + backward", batch=4)
    fused, flash = EVERY["forward", "V1"], EVERY["forward", "flash"]
    assert fused.flops(case) / flash.flops(case) == pytest.approx(20 / 14)
    assert flash.flops(case) == 2 * 14 * 64 * 4 * 8 * 4096 * 4097 // 2


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(t, marks=pytest.mark.slow) for t in (torch.float32, torch.float16))]
)
def test_the_gate_passes(dtype):
    device = torch.get_default_device().type
    rows = attention.correctness(2, 32, 0, impl="triton", dtypes=[dtype], device=device, length=70)
    assert {row["tensor"] for row in rows} == {"out", "query", "key", "value", "lam", "decoding"}


def unable(*tensors):
    raise RuntimeError("No available kernel.\nAborting execution.")


NOT_HERE = (CUDNN, FLEX, gpu_schemes.BLOCKWISE, gpu_schemes.BLOCKWISE_V2)
"""What a processor lacks, or the short form leaves out."""


@pytest.mark.slow
def test_the_benchmark(small, monkeypatch):
    cases = [small(33, task) for task in COMPARED_ON_GPU]
    known = {
        task: [(one, [other for other in others if other not in NOT_HERE]) for one, others in pairs]
        for task, pairs in COMPARED_ON_GPU.items()
    }
    lacking = replace(CUDNN, run=unable)
    with_lacking = {task: [(one, [*others, lacking]) for one, others in pairs] for task, pairs in known.items()}
    suite = replace(
        attention.suite_of("cuda", quick=False), cells=cases, memory_cells=[], compared=with_lacking,
        dtypes=(torch.bfloat16,), check_length=33,
    )  # fmt: skip
    monkeypatch.setattr(attention, "HEADS", 2)
    monkeypatch.setattr(attention, "QUICK_SECONDS", 0.0)
    for name in ("repeated", "captured"):
        monkeypatch.setattr(attention, name, lambda run, count: run)
    monkeypatch.setattr(
        attention, "paired_times",
        lambda ways, **rest: {name: [6.0] if run() is not None else [] for name, run in ways.items()},
    )  # fmt: skip
    record = attention.benchmark_attention(quick=True, device=cases[0].device, suite=suite)
    assert {row["tensor"] for row in record.values["gate"]} == {"out", "query", "key", "value", "lam", "decoding"}
    pairs = [(row["task"], row["subject"], row["baseline"]) for row in record.values["rows"]]
    assert pairs == [(task, one.name, b.name) for task, ways in known.items() for one, others in ways for b in others]
    calls = {row["task"]: {round(6 / row["subject_seconds"]), round(6 / row["baseline_seconds"])}
             for row in record.values["rows"]}  # fmt: skip
    of_many = {10 if ON_GPU else 1}
    assert calls == {"forward": of_many, "forward + backward": of_many, "decode": {50}, CAPTURED: {50}}
    failed = [(row["task"], row["scheme"], row["why"]) for row in record.values["failed"]]
    assert failed == [(task, "cuDNN", "No available kernel.") for task in COMPARED_ON_GPU]
    assert "V1 / flash" in [column.name for column in benchmarks.ratios(record).columns]


@pytest.mark.skipif(not ON_GPU, reason="there is no CUDA graph on a CPU")
def test_a_graph_keeps_the_memory_that_it_reads():
    out = torch.zeros(1 << 20)

    def doubled():
        given = torch.ones(1 << 20)
        torch.cuda.synchronize()
        return lambda: out.add_(given)

    replay = attention.captured(doubled(), 2, "cuda")
    gc.collect()
    torch.cuda.empty_cache()
    other = torch.full((1 << 20,), 7.0)
    before = float(out[0])
    replay()
    assert torch.equal(out, torch.full_like(out, before + 2))
    assert other[0] == 7


def test_the_suite_of_a_gpu():
    suite = attention.suite_of("cuda", quick=False)

    def batches(*wanted, dtype=torch.bfloat16):
        wanted = (*wanted, dtype)
        return [case.batch for case in suite.cells if (case.task, case.length, case.width, case.dtype) == wanted]

    assert batches("forward", 4096, 64) == [4]
    assert batches("forward + backward", 16384, 128) == [1]
    assert batches("decode", 16384, 64) == [64, 1]
    assert batches("forward + backward", 4096, 64, dtype=torch.float32) == [1]
    assert all(case.dtype == torch.bfloat16 for case in (*suite.cells[:-1], *suite.memory_cells))
    assert {case.device for case in suite.cells} == {"cuda"}
    assert (suite.impl, suite.compared) == ("triton", COMPARED_ON_GPU)
