"""Runs of several processes: every mesh has the losses of one process, and goes on as any other."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from antiphase.lab.training.checkpoint import checkpoints
from support.paths import ROOT
from support.records import values

KINDS = ("softmax", "differential", "differential_v2")
EXACT = ("training.precision=float64", "training.batch_size=7", "training.micro_batch_size=2", "training.steps=50",
         "training.evaluate_every=25", "training.checkpoint_every=20", "data.sequence_length=28",
         "model.num_attention_heads=8")  # fmt: skip
"""Neither 2 nor 4 processes divide 7 sequences, and they take different numbers of passes."""


@pytest.fixture
def train_all(tiny_preset):
    """``train_all(2, {folder: overrides})``: train in several processes, which must succeed."""

    def execute(processes, runs, *, resume=False):
        jobs = [(str(tiny_preset), str(folder), list(overrides), resume) for folder, overrides in runs.items()]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run(
            [sys.executable, *launcher, str(ROOT / "support" / "several_runs.py"), json.dumps(jobs)],
            capture_output=True, text=True, check=False, timeout=1200, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return execute


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def worst(first, second, name):
    """Largest relative difference of a logged number."""
    pairs = list(zip(metrics(first), metrics(second), strict=True))
    return max(abs(one[name] - other[name]) / abs(one[name]) for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "meshes"),
    [
        (2, {"ddp": ()}),
        (2, {"shard": ("shard=2",), "context": ("context=2",), "tensor": ("tensor=2",)}),
        (4, {"ddp": (), "shard": ("shard=4",), "copies": ("replicate=2", "shard=2")}),
        (4, {"context": ("context=4",), "copies": ("replicate=2", "context=2"), "both": ("shard=2", "context=2")}),
        (
            4,
            {
                "tensor": ("tensor=4",),
                "both": ("shard=2", "tensor=2"),
                "context": ("context=2", "tensor=2"),
                "copies": ("replicate=2", "tensor=2"),
            },
        ),
    ],
)
def test_every_mesh_has_the_losses_of_one_process(tmp_path, run, train_all, processes, meshes):
    runs = {}
    for kind in KINDS:
        chosen = (*EXACT, f"model.attention_type={kind}")
        run(tmp_path / f"{kind}-one", *chosen)
        for name, mesh in meshes.items():
            runs[tmp_path / f"{kind}-{name}"] = [*chosen, *(f"training.mesh.{size}" for size in mesh)]
    train_all(processes, runs)
    for kind in KINDS:
        alone = tmp_path / f"{kind}-one"
        for name in meshes:
            assert_same_run(alone, tmp_path / f"{kind}-{name}")


def assert_same_run(alone, folder):
    """Losses, gradients, curve and files are those of one process."""
    assert worst(alone, folder, "loss") < 1e-10
    assert worst(alone, folder, "gradient_norm") < 1e-10
    for one, other in zip(metrics(alone), metrics(folder), strict=True):
        assert (other["lambdas"] or []) == pytest.approx(one["lambdas"] or [], abs=1e-6)  # fp32
        assert other["gradient_norms"] == pytest.approx(one["gradient_norms"], rel=1e-5)
    for one, other in zip(values(alone)["curve"], values(folder)["curve"], strict=True):
        assert other["accuracy"] == one["accuracy"]
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)  # fp32
    weights, others = load_file(alone / "model.safetensors"), load_file(folder / "model.safetensors")
    assert weights.keys() == others.keys()
    for weight in weights:
        torch.testing.assert_close(others[weight], weights[weight], rtol=0, atol=1e-9)
    for file in ("config.json", "generation_config.json", "README.md"):
        assert (folder / file).read_bytes() == (alone / file).read_bytes()


BLOCKS = {
    "gpt_neox": ("model.attention_type=softmax", "model.attention_bias=true", "model.mlp_bias=true",
                 "model.gated_mlp=false", "model.hidden_act=gelu", "model.norm_type=layer_norm",
                 "model.use_parallel_residual=true", "model.partial_rotary_factor=0.25", "model.head_dim=8"),
    "qwen3": ("model.attention_type=differential_v2", "model.use_qk_norm=true", "model.qkv_bias=true",
              "model.norm_type=zero_centered_rms_norm", "model.layer_types=[full_attention, sliding_attention]",
              "model.sliding_window=6"),
    "motif": ("model.hidden_act=poly_norm", "model.lambda_init=[-0.01, 0.2]"),
}  # fmt: skip
"""With what blocks of other decoders have: biases of sums, norms of queries and keys, windows."""


@pytest.mark.slow
def test_blocks_of_other_decoders_are_divided_as_well(tmp_path, run, train_all):
    meshes = ("context=2", "tensor=2", "shard=2")
    chosen = {name: (*EXACT, *fields, "training.steps=20") for name, fields in BLOCKS.items()}
    for name, changes in chosen.items():
        run(tmp_path / f"{name}-one", *changes)
    train_all(2, {
        tmp_path / f"{name}-{mesh}": [*changes, f"training.mesh.{mesh}"]
        for name, changes in chosen.items() for mesh in meshes
    })  # fmt: skip
    for name in chosen:
        for mesh in meshes:
            assert_same_run(tmp_path / f"{name}-one", tmp_path / f"{name}-{mesh}")


WIDE = ("model.hidden_size=64", "model.intermediate_size=160", "data.sequence_length=64", "data.fillers=300",
        "training.batch_size=8", "training.steps=50", "training.evaluate_every=50",
        "training.learning_rate=1e-3")  # fmt: skip
"""A rate at which training does not multiply differences in rounding."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_meshes_differ_in_fp32_as_numbers_of_threads_do(tmp_path, run, train_all, kind):
    """At most twice as much and one rounding, because several sums change at once."""
    chosen = (*WIDE, f"model.attention_type={kind}")
    run(tmp_path / "one", *chosen)
    try:
        for threads in (2, 3):  # on some processors two of them add up in the order of one
            run(tmp_path / f"threads-{threads}", *chosen, f"training.threads={threads}")
    finally:
        torch.set_num_threads(1)
    meshes = ("shard", "context", "tensor")
    train_all(2, {tmp_path / mesh: [*chosen, f"training.mesh.{mesh}=2"] for mesh in meshes})
    spread = max(worst(tmp_path / "one", tmp_path / f"threads-{threads}", "loss") for threads in (2, 3))
    rounding = torch.finfo(torch.float32).eps / 2
    for mesh in meshes:
        assert 0 < worst(tmp_path / "one", tmp_path / mesh, "loss") <= 2 * (spread + rounding), mesh


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_any_number_of_processes(tmp_path, run, train_all, outcome):
    """Divided by two, read whole by one, divided by four; the losses are those of a run that never stopped."""
    chosen = [*EXACT, "model.lambda_form=scalar"]  # a weight of one number, which most processes have no part of
    folder = tmp_path / "parts"
    run(tmp_path / "whole", *chosen)
    train_all(2, {folder: [*chosen, "training.mesh.shard=2"]})
    for processes, mesh in (
        (1, ()), (4, ("training.mesh.shard=4",)), (4, ("training.mesh.shard=2", "training.mesh.tensor=2")), (2, ()),
    ):  # fmt: skip
        newest, before = checkpoints(folder)
        assert (newest.name, before.name) == ("step-00000050", "step-00000040")
        (newest / "checkpoint.json").unlink()  # goes on from the one before
        (folder / "record.json").unlink()
        if processes == 1:
            run(folder, *chosen, resume=True)
        else:
            train_all(processes, {folder: [*chosen, *mesh]}, resume=True)
        assert worst(tmp_path / "whole", folder, "loss") < 1e-10
        if not mesh:
            assert (checkpoints(folder)[0] / "model.safetensors").is_file()
            whole, parts = outcome(tmp_path / "whole"), outcome(folder)
            for name, tensor in whole["optimizer"].items():
                torch.testing.assert_close(parts["optimizer"][name], tensor, rtol=0, atol=1e-9)
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.float64


@pytest.mark.slow
def test_bf16_is_gathered_as_autocast_rounds_it(tmp_path, train_all):
    """λ, norms and the residual stream stay in fp32, so the losses are those of autocast with whole weights.

    Divided heads add up terms that are rounded, each by 2⁻⁹ of it at most.
    """
    chosen = ["training.precision=bfloat16", "training.batch_size=8", "training.gradient_checkpointing=true"]
    shard, tensor = [*chosen, "training.mesh.shard=2"], [*chosen, "training.mesh.tensor=2"]
    train_all(2, {tmp_path / "ddp": chosen, tmp_path / "shard": shard, tmp_path / "tensor": tensor})
    assert metrics(tmp_path / "tensor")[0]["loss"] == pytest.approx(metrics(tmp_path / "ddp")[0]["loss"], rel=2e-3)
    first, second = metrics(tmp_path / "ddp")[0], metrics(tmp_path / "shard")[0]
    assert second["loss"] == first["loss"]
    assert second["lambdas"] == pytest.approx(first["lambdas"], rel=1e-6)
    assert worst(tmp_path / "ddp", tmp_path / "shard", "loss") < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_meshes_err_in_bf16_as_one_process_does(tmp_path, run, train_all, kind):
    """Against fp64: at most twice the error of one process."""
    chosen, half = (*WIDE, f"model.attention_type={kind}"), "training.precision=bfloat16"
    run(tmp_path / "exact", *chosen, "training.precision=float64")
    run(tmp_path / "one", *chosen, half)
    meshes = ("shard", "context", "tensor")
    train_all(2, {tmp_path / mesh: [*chosen, half, f"training.mesh.{mesh}=2"] for mesh in meshes})
    error = worst(tmp_path / "exact", tmp_path / "one", "loss")
    for mesh in meshes:
        assert worst(tmp_path / "exact", tmp_path / mesh, "loss") <= 2 * error, mesh


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_blocks_have_the_losses_of_plain_ones(tmp_path, run, train_all, monkeypatch, kind):
    chosen = (*EXACT, "training.steps=20", f"model.attention_type={kind}")
    compiled = [*chosen, "training.compile=true"]
    made, compiled_as = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda block: made.append(block) or compiled_as(block))
    run(tmp_path / "plain", *chosen)
    assert not made
    run(tmp_path / "one", *compiled)
    assert len(made) == 2  # each block
    meshes = {"ddp": (), "shard": ("training.mesh.shard=2",), "context": ("training.mesh.context=2",)}
    train_all(2, {tmp_path / name: [*compiled, *mesh] for name, mesh in meshes.items()})
    for name in ("one", *meshes):
        assert worst(tmp_path / "plain", tmp_path / name, "loss") < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["lora", "lambda"])
def test_divided_sequences_train_a_part_of_the_weights_as_one_process_does(tmp_path, run, train_all, trained):
    pytest.importorskip("peft")
    run(tmp_path / "start", *EXACT, "training.steps=1")
    chosen = [*EXACT, "training.steps=20", f"training.start_from={tmp_path / 'start'}", f"training.trained={trained}"]
    run(tmp_path / "one", *chosen)
    train_all(2, {tmp_path / "context": [*chosen, "training.mesh.context=2"]})
    assert metrics(tmp_path / "one")[-1]["loss"] != metrics(tmp_path / "one")[0]["loss"]
    assert worst(tmp_path / "one", tmp_path / "context", "loss") < 1e-10
    assert worst(tmp_path / "one", tmp_path / "context", "gradient_norm") < 1e-10
