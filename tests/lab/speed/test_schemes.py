"""Everything that is timed against each other computes the same, and costs what is said."""

from dataclasses import replace

import pytest
import torch

from antiphase.lab.speed import memory
from antiphase.lab.speed.attention import correctness
from antiphase.lab.speed.memory import peak_extra_bytes
from antiphase.lab.speed.schemes import (
    COMPARED,
    DIFFLLAMA,
    ONE_CALL_V2_DECODING,
    OURS,
    OURS_V2,
    SOFTMAX,
    SOFTMAX_DECODING,
    WITH_NATIVE,
    Case,
    Scheme,
    inputs,
    work,
)
from antiphase.lab.speed.timing import paired_times, product_rate, ratios
from antiphase.layers.functions import join_halves
from antiphase.ops.api import differential_attention

EVERY = [
    (task, scheme)
    for task, pairs in COMPARED.items()
    for one, others in pairs
    for scheme in (one, *others)
    if "softmax" not in scheme.name  # another function, of equal size
]


@pytest.mark.parametrize(("task", "scheme"), EVERY, ids=lambda item: getattr(item, "name", item))
def test_every_way_gives_the_reference(task, scheme):
    case = Case(21, 3, 4, torch.float64, task)
    query, key, value, lam = inputs(case, 0, shares_keys=scheme.shares_keys)
    assert query.shape == (1, 6, 1 if task == "decode" else 21, 4)
    whole = value if scheme.shares_keys else join_halves(value)
    expected = differential_attention(query, key, whole, lam, is_causal=True, impl="reference")
    found = scheme.run(query, key, value, lam)
    assert found.dtype == torch.float64
    found = found.transpose(1, 2) if found.shape != expected.shape else found  # a layer's call has heads behind
    torch.testing.assert_close(found, expected)
    gradients = work(scheme, Case(21, 3, 4, torch.float64, "forward + backward"), 0)() if task != "decode" else ()
    assert all(gradient is not None for gradient in gradients)


def test_softmax_has_as_many_maps_and_outputs():
    case = Case(9, 3, 4, torch.float32, "forward")
    query, key, value, lam = inputs(case, 0)
    assert SOFTMAX.run(query, key, value, lam).numel() == OURS.run(query, key, value, lam).numel()


@pytest.mark.parametrize("scheme", [*SOFTMAX_DECODING, *WITH_NATIVE], ids=lambda scheme: scheme.name)
def test_every_way_to_decode_by_softmax_attention_is_softmax_attention(scheme):
    query, key, value, lam = inputs(Case(21, 3, 4, torch.float64, "decode"), 0)
    weights = (query @ key.transpose(-1, -2) / 2).softmax(-1)
    torch.testing.assert_close(scheme.run(query, key, value, lam), weights @ value)


@pytest.mark.parametrize("scheme", [*SOFTMAX_DECODING, *ONE_CALL_V2_DECODING], ids=lambda scheme: scheme.name)
def test_ways_to_decode_in_bf16_get_bf16_and_give_it(scheme):
    """Only a cache may be kept in something else, and it is made before the clock starts."""
    given = []
    spy = replace(scheme, run=lambda *tensors: given.append(tensors) or scheme.run(*tensors))
    case = Case(21, 3, 4, torch.bfloat16, "decode")
    run = work(spy, case, 0)
    outs = [run(), run()]
    exact = work(scheme if scheme.cache_dtype is None else replace(scheme, cache_dtype=torch.float64),
                 replace(case, dtype=torch.float64), 0)()  # fmt: skip
    assert all(out.dtype == torch.bfloat16 for out in outs)
    torch.testing.assert_close(outs[0].double(), exact, rtol=0.05, atol=0.05)
    query, key, value, _ = given[0]
    assert query.dtype == torch.bfloat16
    assert key.dtype == value.dtype == (scheme.cache_dtype or torch.bfloat16)
    assert all(one is other for one, other in zip(given[0], given[1], strict=True))


def test_operations_are_those_of_the_formulas():
    pairs = 8 * 1024 * 1025 // 2
    forward = Case(1024, 8, 64, torch.float32, "forward")
    both = Case(1024, 8, 64, torch.float32, "forward + backward")
    assert OURS.flops(forward) == SOFTMAX.flops(forward) == 2 * 4 * 64 * pairs
    assert OURS.flops(both) == 2 * 14 * 64 * pairs
    assert DIFFLLAMA.flops(both) == 2 * OURS.flops(both)
    assert OURS_V2.flops(both) / OURS.flops(both) == pytest.approx(11 / 14)
    assert OURS.flops(Case(1024, 8, 64, torch.float32, "decode")) == 2 * 4 * 64 * 8 * 1024


def hold_96_mib(query, key, value, lam):
    """Memory that is touched, held at once and given back; not in the short call that comes first."""
    held = [torch.ones(8 * 2**20) for _ in range(3 if query.shape[2] > 256 else 0)]
    return query + 0 * sum(tensor[0] for tensor in held)


@pytest.mark.slow
def test_peak_memory_is_what_a_call_holds_at_once():
    scheme = Scheme("known", hold_96_mib, forward=0, backward=0)
    found = peak_extra_bytes(scheme, Case(300, 2, 4, torch.float32, "forward"), 0)
    assert 95 * 2**20 <= found <= 104 * 2**20


def fail(*tensors):
    """Works on the short warm-up only."""
    if tensors[0].shape[2] > 256:
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_call_that_breaks_while_its_memory_is_measured_is_named(capfd):
    with pytest.raises(RuntimeError, match="measuring the memory of broken ended with code 1"):
        peak_extra_bytes(Scheme("broken", fail, forward=0, backward=0), Case(300, 2, 4, torch.float32, "forward"), 0)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_rounds_are_paired_and_end_with_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("antiphase.lab.speed.timing.time.perf_counter", lambda: clock[0])

    def takes(seconds):
        def run():
            clock[0] += seconds

        return run

    times = paired_times({"a": takes(1.0), "b": takes(4.0)}, rounds=9, seconds=12.0)
    assert times == {"a": [1.0] * 3, "b": [4.0] * 3}
    assert len(paired_times({"a": takes(1.0)}, rounds=9, seconds=5.5)["a"]) == 6
    assert len(paired_times({"a": takes(1.0)}, rounds=4)["a"]) == 4
    row = ratios({"a": [1.0, 2.0, 30.0], "b": [2.0, 2.0, 10.0]}, "a", "b")
    assert (row["ratio"], row["rounds"], row["subject_seconds"], row["baseline_seconds"]) == (1.0, 3, 2.0, 2.0)
    assert row["quartiles"] == [0.75, 2.0]


def test_product_rate_counts_two_operations_for_each_multiply_add(monkeypatch):
    monkeypatch.setattr("antiphase.lab.speed.timing.paired_times", lambda work, **options: {"product": [0.5, 1.0, 2.0]})
    assert product_rate(torch.float32) == 2 * 1536**3


def test_the_gate_passes_here_and_holds_what_is_wrong(monkeypatch):
    rows = correctness(2, 16, seed=0)
    assert {(row["form"], row["dtype"], row["tensor"]) for row in rows} == {
        (form, dtype, tensor)
        for form in ("V1", "V2")
        for dtype in ("float32", "bfloat16")
        for tensor in ("out", "query", "key", "value", "lam", "decoding")
    }
    assert all(row["error"] <= row["allowed"] for row in rows)

    def slightly_wrong(*arguments, impl="auto", **options):
        return differential_attention(*arguments, impl=impl, **options) * (1 if impl == "reference" else 1.00001)

    monkeypatch.setattr("antiphase.lab.speed.attention.differential_attention", slightly_wrong)
    with pytest.raises(RuntimeError, match=r"V1, width 16: out errs by .* at float32, allowed"):
        correctness(2, 16, seed=0)


def test_clock_and_memory_are_those_of_the_device_itself(monkeypatch):
    """Not of the current one, where there are several."""
    asked = []
    for name in ("synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: asked.append(device) or len(asked))
    paired_times({"nothing": lambda: None}, rounds=1, device="cuda:1")
    assert memory.peak_on_gpu(lambda: None, "cuda:1") == 1
    assert asked == ["cuda:1"] * 6
