"""``experiments/real_model_steps.py``: training steps of each form that a study starts from."""

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.base.records import Record
from antiphase.lab.settings.presets import TrainingSettings
from antiphase.lab.training.trained import is_lambda
from antiphase.models.checkpoints import convert
from experiments import real_model_steps as module


@pytest.fixture
def study(tmp_path, tiny_model, tiny_preset_text):
    """A folder with what the script reads of a study: settings of a run, and the starts of all forms."""
    folder = tmp_path / "study"
    (folder / "softmax-seed0").mkdir(parents=True)
    (folder / "softmax-seed0" / "run.yaml").write_text(tiny_preset_text)
    model = tiny_model("softmax")
    model.config.dequantized_from = "Q4_1"
    model.save_pretrained(tmp_path / "softmax")
    for name, form in {
        "softmax": {}, "control": {"attention_type": "differential_v2", "control": True},
        "differential_v2": {"attention_type": "differential_v2"},
    }.items():  # fmt: skip
        convert(str(tmp_path / "softmax"), folder / "start" / name, **form)
    return folder


@pytest.mark.slow
def test_every_form_is_timed_against_the_model_as_it_is(study, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["real_model_steps.py", str(study), "--rounds", "3", "--output", str(tmp_path)])
    module.main()
    record = Record.load(tmp_path / "steps.json")
    assert list(record.config["dequantized_from"].values()) == ["Q4_1"]
    rows = {row["form"]: row for row in record.values["rows"]}
    assert list(rows) == list(module.FORMS)
    assert rows["softmax"]["ratio"] == 1.0
    assert all(row["baseline"] == "softmax" and row["rounds"] == 3 and row["ratio"] > 0 for row in rows.values())
    whole = AutoModelForCausalLM.from_pretrained(study / "start" / "differential_v2")
    assert rows["differential_v2"]["trained"] == sum(parameter.numel() for parameter in whole.parameters())
    of_lambda = sum(parameter.numel() for name, parameter in whole.named_parameters() if is_lambda(name))
    assert rows["lambda"]["trained"] == of_lambda > 0
    assert of_lambda < rows["lora"]["trained"] < rows["softmax"]["trained"] < rows["control"]["trained"]


def test_another_folder_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["real_model_steps.py", str(tmp_path), "--output", str(tmp_path)])
    with pytest.raises(SystemExit):
        module.main()
    assert f"{tmp_path} is no folder of a study of antiphase upcycle" in capsys.readouterr().err


@pytest.mark.parametrize("trained", ["all", "lambda", "lora"])
def test_a_step_changes_what_is_trained_and_nothing_else(study, trained):
    stepper = module.Stepper(
        study / "start" / "differential_v2", TrainingSettings(steps=2, trained=trained, lora_rank=2)
    )
    before = {name: parameter.clone() for name, parameter in stepper.model.named_parameters()}
    chosen = {name for name, parameter in stepper.model.named_parameters() if parameter.requires_grad}
    ids = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # the first leaves the halves of adapters whose other halves are zero
        stepper.step(ids)
    changed = {name for name, parameter in stepper.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == chosen
    assert (len(chosen) == len(before)) == (trained == "all")
