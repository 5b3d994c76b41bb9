"""A run whose numbers stop being finite ends there, says so, and keeps what it had."""

import hashlib
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphase.base.errors import DivergedError, InputError, NonFiniteError
from antiphase.base.folders.ownership import only_one
from antiphase.base.records import Record
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training import loop
from antiphase.lab.training.checkpoint import checkpoints, sealed
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.optimizer import build_optimizer
from antiphase.lab.training.run_folder import read_metrics
from support.records import values, write_sealed

TOO_FAST = "training.learning_rate=1e30"  # after the first step the weights are finite, the loss of the second is not


def at_step(step, change):
    """The objective whose loss of a step is another."""
    real, calls = NextTokenLoss.forward, []

    def forward(self, *batch):
        calls.append(1)
        loss = real(self, *batch)
        return change(loss) if len(calls) == step else loss

    return forward


class NoGradient(torch.autograd.Function):
    """A finite number whose gradient is infinite."""

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


@pytest.mark.parametrize(("change", "reason"), [
    (lambda loss: loss * math.nan, "its loss is nan"), (lambda loss: loss + math.inf, "its loss is inf"),
    (NoGradient.apply, "its gradient norm is (nan|inf)"),
])  # fmt: skip
def test_a_run_stops_at_the_first_step_that_is_not_finite(tmp_path, run, kept, monkeypatch, change, reason):
    monkeypatch.setattr(NextTokenLoss, "forward", at_step(8, change))
    with pytest.raises(DivergedError, match=f"--output {tmp_path / 'run'}: training diverged at step 8, {reason}; "):
        run(tmp_path / "run")
    checkpoint = kept(tmp_path / "run")
    assert checkpoint["progress"]["step"] == 5
    assert all(bool(weight.isfinite().all()) for weight in checkpoint["model"].values())
    assert not (tmp_path / "run" / "model.safetensors").exists()
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert None in (lines[-1]["loss"], lines[-1]["gradient_norm"])
    values = Record.load(tmp_path / "run").values
    assert values["final"] == {"loss": None, "accuracy": None}
    assert (values["diverged"]["step"], [point["step"] for point in values["curve"]]) == (8, [0, 5])


def test_weights_of_before_the_step_are_kept(tmp_path, run, kept, monkeypatch):
    seen = []

    def step(optimizer, *arguments, **words):
        seen.append(1)
        return real(optimizer, *arguments, **words)

    real = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    monkeypatch.setattr(NextTokenLoss, "forward", at_step(4, lambda loss: loss * math.nan))
    with pytest.raises(DivergedError):
        run(tmp_path / "run", "training.checkpoint_every=1")
    assert len(seen) == 3  # the fourth was not applied
    assert kept(tmp_path / "run")["progress"]["step"] == 3


@pytest.mark.parametrize("how", ["saved", "evaluated"])
def test_weights_that_became_infinite_are_neither_kept_nor_measured(tmp_path, run, monkeypatch, how):
    monkeypatch.setattr(
        loop, "build_optimizer", lambda model, settings: Spoiling(model, build_optimizer(model, settings), at=5)
    )
    every = {"saved": "training.evaluate_every=20", "evaluated": "training.checkpoint_every=20"}[how]
    with pytest.raises(DivergedError, match=r"diverged at step 5, its weights model\.norm\.weight are not finite"):
        run(tmp_path / "run", every)
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert [point["step"] for point in Record.load(tmp_path / "run").values["curve"]] == [0]


class Spoiling:
    """An optimizer that makes a weight infinite in one of its steps."""

    def __init__(self, model, optimizer, *, at):
        self.model, self.optimizer, self.left = model, optimizer, at

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def step(self):
        self.optimizer.step()
        self.left -= 1
        if self.left == 0:
            with torch.no_grad():
                self.model.model.norm.weight[0] = math.inf


def test_a_held_out_loss_that_is_not_finite_is_a_divergence(tmp_path, settings, kept):
    chosen = settings()
    data = prepare(chosen.data, tmp_path / "tokens")

    calls = iter(range(9))

    def evaluate(model, divide):
        if next(calls) == 2:  # of steps 0, 5 and 10
            raise NonFiniteError("its losses are NaN or infinite, so nothing can be measured")
        return {"loss": 3.0}

    with pytest.raises(DivergedError, match="at step 10, held out, its losses are NaN or infinite"):
        loop.train(chosen, data, tmp_path / "run", evaluations={"loss": evaluate})
    assert kept(tmp_path / "run")["progress"]["step"] == 5


def test_a_run_that_diverged_is_not_continued(tmp_path, run, settings, monkeypatch):
    with pytest.raises(DivergedError):
        run(tmp_path / "run", TOO_FAST, "training.checkpoint_every=1")
    with only_one(tmp_path / "run"):  # leaves a lock file, as train_run does
        pass
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    def step(*arguments):
        raise AssertionError("trained")

    monkeypatch.setattr(NextTokenLoss, "forward", step)
    words = f"--output {tmp_path / 'run'}: training diverged at step 2, its loss is nan"
    with pytest.raises(DivergedError, match=words):
        run(tmp_path / "run", TOO_FAST, "training.checkpoint_every=1", resume=True)
    with pytest.raises(DivergedError, match=words):
        train_run(settings(TOO_FAST, "training.checkpoint_every=1"), tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("told", [{}, {"step": 2}, {"step": "2", "reason": "x"}, [1], "x", 3])
def test_a_record_that_tells_of_a_divergence_in_another_form_is_refused(tmp_path, run, told):
    with pytest.raises(DivergedError):
        run(tmp_path / "run", TOO_FAST, "training.checkpoint_every=1")
    path = tmp_path / "run" / "record.json"
    tree = json.loads(path.read_text())
    tree["values"]["diverged"] = told
    write_sealed(path, tree)
    with pytest.raises(InputError, match=r"record\.json: .*'?diverged.*; restore it, or choose another folder"):
        run(tmp_path / "run", TOO_FAST, "training.checkpoint_every=1", resume=True)


def test_nan_weights_of_a_checkpoint_are_not_taken_for_a_finished_run(tmp_path, run):
    run(tmp_path / "run")
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    path = checkpoints(tmp_path / "run")[0] / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][3] = math.nan
    save_file(weights, path)
    manifest = path.with_name("checkpoint.json")
    tree = json.loads(manifest.read_text())
    del tree["sha256"]
    tree["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_bytes(sealed(tree))
    with pytest.raises(InputError, match=r"step-00000020 holds NaN or infinite weights, model\.norm\.weight first"):
        run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


def test_the_record_of_a_run_without_divergence_says_so(tmp_path, run):
    run(tmp_path / "run", "training.steps=2")
    assert values(tmp_path / "run")["diverged"] is None
