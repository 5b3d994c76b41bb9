"""Blocks of the kernels chosen by time: each candidate is tried in both versions, and wrong ones are not timed."""

import itertools

import pytest
import torch

from antiphase.lab.speed.schemes import Case, work

launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)

from antiphase.lab.speed import block_sizes  # noqa: E402 – it needs Triton

SMALL, OTHER = launch.Tiling(16, 16, 4, 1), launch.Tiling(16, 32, 4, 1)


@pytest.fixture
def case():
    return Case(37, 2, 16, torch.float32, "forward", device=torch.get_default_device().type)


def test_overridden_blocks_are_restored():
    usual = launch.blocks_of("forward", 64, 128, torch.bfloat16, 9)
    with launch.override_blocks({"forward": SMALL}):
        assert launch.blocks_of("forward", 64, 128, torch.bfloat16, 9) == SMALL
        with launch.override_blocks({"forward": OTHER, "keys": SMALL}):
            assert launch.blocks_of("forward", 64, 128, torch.bfloat16, 9) == OTHER
        assert launch.blocks_of("keys", 64, 128, torch.bfloat16, 9) != SMALL
        assert launch.blocks_of("forward", 64, 128, torch.bfloat16, 9) == SMALL
    assert launch.blocks_of("forward", 64, 128, torch.bfloat16, 9) == usual


@pytest.mark.parametrize("kernel", ["forward", "keys", "queries", "span"])
def test_other_blocks_compute_the_same(kernel, case):
    for trial in block_sizes.trials(case, {kernel: [SMALL]}):
        found, expected = (block_sizes.results_of(trial, own, 0) for own in (SMALL, trial.usual))
        assert block_sizes.agree(found, expected, case.dtype) or all(
            torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(found, expected, strict=True)
        )


def test_the_quickest_of_both_versions_is_chosen(case, monkeypatch):
    """By the product of both versions' times; what one of them cannot do, or does wrong, is out."""
    candidates = [SMALL, OTHER, launch.Tiling(32, 16, 4, 1), launch.Tiling(32, 32, 8, 1)]
    made = block_sizes.trials(case, {"forward": candidates})
    clock = {
        str(made[0].usual): 4.0, str(SMALL): 3.0, str(OTHER): 5.0, str(candidates[2]): 1.0, str(candidates[3]): 2.0,
    }  # fmt: skip
    results, agree = itertools.count(), block_sizes.agree
    monkeypatch.setattr(block_sizes, "paired_times", lambda ways, **rest: {name: [clock[name]] for name in ways})
    monkeypatch.setattr(
        block_sizes, "run_once", lambda trial, own, seed: "out of resources" if own == candidates[2] else None
    )
    monkeypatch.setattr(
        block_sizes,
        "agree",
        lambda found, expected, dtype: next(results) != 2 and agree(found, expected, torch.bfloat16),
    )  # the last candidate of the first version is wrong
    found = block_sizes.timed_blocks(made, rounds=1)
    assert found["chosen"] == {"forward": SMALL}
    whys = [(row["scheme"], tuple(row["blocks"]), row["why"]) for row in found["rows"] if row["why"]]
    assert ("V1", tuple(candidates[2]), "out of resources") in whys
    assert any(scheme == "V1" and why == "it computes something else" for scheme, _, why in whys)
    assert all(
        row["ratio"] == clock[str(launch.Tiling(*row["blocks"]))] / 4.0 for row in found["rows"] if row["why"] is None
    )


def test_results_that_differ_by_more_than_roundings_do_not_agree(case):
    trial = block_sizes.trials(case, {"forward": [SMALL]})[0]
    (out,) = block_sizes.results_of(trial, trial.usual, 0)
    assert block_sizes.agree([out * (1 + 1e-3)], [out], torch.bfloat16)
    assert not block_sizes.agree([out * (1 + 1e-2)], [out], torch.bfloat16)
    assert not block_sizes.agree([out * float("nan")], [out], torch.bfloat16)
    assert torch.equal(work(trial.scheme, case, 0)(), out)
