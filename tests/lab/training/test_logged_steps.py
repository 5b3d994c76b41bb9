"""What a run really does in a step, and what it logs of it: rates, clipping, λ, gradients, the best evaluation."""

import json
import shutil
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.lab.text.prepare import prepare
from antiphase.lab.training import loop, run_model
from antiphase.lab.training.checkpoint import checkpoints
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.optimizer import learning_rate
from antiphase.lab.training.run_model import build_model
from antiphase.layers.registry import attention_layers


def test_the_optimizer_steps_at_the_rates_of_the_schedule_and_clipped(tmp_path, run, settings, monkeypatch):
    rates, norms = [], []
    step = torch.optim.AdamW.step

    def watched(optimizer, *arguments):
        rates.append({group["rate"]: group["lr"] for group in optimizer.param_groups})
        gradients = [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.cat(gradients).norm().item())
        return step(optimizer, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    chosen = ["training.steps=6", "training.warmup_steps=2", "training.lambda_rate=0.1", "training.clip=0.01"]
    run(tmp_path / "run", *chosen)
    training = settings(*chosen).training
    for place, found in enumerate(rates):
        rate = learning_rate(place, training)
        assert found == pytest.approx({1.0: rate, 0.1: 0.1 * rate})
    assert len({tuple(found.values()) for found in rates}) > 3
    assert max(norms) == pytest.approx(0.01, rel=1e-3)


def test_a_record_has_the_lambdas_gradients_and_best_evaluation_of_the_run(tmp_path, run, settings):
    chosen = settings("training.steps=1")
    record = run(tmp_path / "run", "training.steps=1", "training.log_every=1")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    layers = [layer.lam().mean().item() for layer in attention_layers(model)]
    assert record.values["lambdas"] == pytest.approx(layers)
    data = prepare(chosen.data, tmp_path / "tokens")
    fresh = build_model(chosen, data.tokenizer, seed=chosen.training.seed)
    batch = data.stream(batch_size=chosen.training.batch_size, seed=chosen.training.seed).batch(0)
    (NextTokenLoss(fresh)(batch.input_ids, batch.labels) / (batch.labels[:, 1:] >= 0).sum()).backward()
    expected = [torch.cat([p.grad.flatten() for p in block.parameters()]).norm().item() for block in fresh.model.layers]
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["gradient_norms"] == pytest.approx(expected, rel=1e-4)
    longer = run(tmp_path / "longer", "training.steps=40", "training.evaluate_every=4", "training.learning_rate=3e-2")
    accuracies = [point["accuracy"] for point in longer.values["curve"]]
    assert longer.values["best"]["accuracy"] == max(accuracies) > min(accuracies)


def test_what_tensorboard_gets_is_what_is_logged(tmp_path, run, monkeypatch):
    class Board:
        seen: ClassVar = []

        def add_scalar(self, name, value, step):
            self.seen.append((name, value, step))

        def close(self):
            """Nothing is open."""

    monkeypatch.setattr(loop, "_tensorboard", lambda output, step: Board())
    monkeypatch.setattr(run_model.importlib.util, "find_spec", lambda name: True)
    run(tmp_path / "run", "training.steps=4", "training.log_every=2", "training.tensorboard=true")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [(value, step) for name, value, step in Board.seen if name == "loss" and step]
    assert {(line["loss"], line["step"]) for line in lines if "learning_rate" in line} <= set(losses)
    assert {"learning_rate", "gradient_norm", "tokens_per_second"} <= {name for name, *_ in Board.seen}


def test_tensorboard_forgets_what_a_resumed_run_makes_again(tmp_path, run, monkeypatch):
    """As the log does; a run that was killed after its checkpoint had already written later steps."""
    opened = []

    def open_board(folder, purge_step):
        opened.append(purge_step)
        return SimpleNamespace(add_scalar=lambda *_: None)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=open_board))
    monkeypatch.setattr(run_model.importlib.util, "find_spec", lambda name: True)
    chosen = ("training.steps=6", "training.checkpoint_every=3", "training.tensorboard=true")
    run(tmp_path / "run", *chosen)
    shutil.rmtree(checkpoints(tmp_path / "run")[0])
    (tmp_path / "run" / "record.json").unlink()
    run(tmp_path / "run", *chosen, resume=True)
    assert opened == [1, 4]
