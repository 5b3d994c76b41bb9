"""Runs of a second, and ways to look at what they left."""

import json

import pytest
import torch
from safetensors.torch import load_file

from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import curve_evaluations, page_evaluations
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.checkpoint import checkpoints
from antiphase.lab.training.loop import train


@pytest.fixture
def settings(tiny_preset):
    """``settings("training.steps=3")``: of the tiny preset."""
    return lambda *overrides: load_preset(str(tiny_preset), overrides).run


@pytest.fixture
def run(settings):
    """``run(folder, "training.steps=3", report=...)``: train the tiny preset."""

    def execute(folder, *overrides, **arguments):
        chosen = settings(*overrides)
        data = prepare(chosen.data, folder.parent / "tokens")
        return train(
            chosen, data, folder, evaluations=curve_evaluations(chosen, data),
            page_evaluations=page_evaluations(chosen, data), **arguments,
        )  # fmt: skip

    return execute


@pytest.fixture
def kept():
    """``kept(folder)``: what a run's newest checkpoint holds."""

    def read(folder):
        newest = checkpoints(folder)[0]
        tree = json.loads((newest / "checkpoint.json").read_text())
        tensors = {name: load_file(newest / f"{name}.safetensors") for name in ("model", "optimizer")}
        return {"progress": tree["progress"], "values": tree["optimizer"], **tensors}

    return read


@pytest.fixture
def outcome(kept):
    """All of a run that must not depend on how often it was interrupted."""

    def read(folder):
        checkpoint = kept(folder)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        times = {"seconds", "tokens_per_second", "peak_memory", "peak_gpu_memory"}
        return {
            "weights": load_file(folder / "model.safetensors"), **checkpoint,
            "progress": {name: value for name, value in checkpoint["progress"].items() if name not in times},
            "metrics": [{name: value for name, value in line.items() if name not in times} for line in lines],
        }  # fmt: skip

    return read


@pytest.fixture
def assert_identical():
    """Bit for bit, through mappings and lists."""

    def compare(first, second, where=""):
        assert type(first) is type(second), where
        if isinstance(first, dict):
            assert first.keys() == second.keys(), where
            for key, value in first.items():
                compare(value, second[key], f"{where}.{key}")
        elif isinstance(first, (list, tuple)):
            assert len(first) == len(second), where
            for index, (one, other) in enumerate(zip(first, second, strict=True)):
                compare(one, other, f"{where}[{index}]")
        elif isinstance(first, torch.Tensor):
            assert torch.equal(first, second), where
        else:
            assert first == second, where

    return compare
