"""Calibration plans: files, ranges, and what a damaged one says."""

import copy
import json

import pytest
import torch
import transformers as hf

from antiphase.base.errors import InputError
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.calibration.plan import fingerprint, heads_by_layer


def build(name):
    """Two layers of four heads."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "vocab_size": 61}
    config = hf.GPT2Config(**sizes) if name == "gpt2" else hf.LlamaConfig(**sizes, intermediate_size=48)
    return hf.AutoModelForCausalLM.from_config(config)


def test_the_heads_of_a_model_in_training_are_counted_as_if_it_were_not():
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "ffn_dim": 48, "vocab_size": 61}
    model = hf.OPTForCausalLM(hf.OPTConfig(**sizes, word_embed_proj_dim=32, layerdrop=1.0)).train()
    assert heads_by_layer(model) == {0: 4, 1: 4, 2: 4}
    assert model.training


def test_a_plan_comes_back_as_it_was_with_whole_numbers(tmp_path):
    plan = CalibrationPlan(
        heads={3: [5, 0], 1: [2], 0: []}, alpha=4.0, beta=0.3, mode="running", fingerprint={"hidden_size": 8},
        scores={"held_out_gain": 0.1},
    )  # fmt: skip
    plan.save(tmp_path / "plan.json")
    again = CalibrationPlan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.heads == {1: [2], 3: [0, 5]}
    assert all(isinstance(number, int) for layer, maps in again.heads.items() for number in (layer, *maps))


@pytest.mark.parametrize(("fields", "message"), [
    ({"mode": "promt"}, "mode must be one of.*did you mean 'prompt'"), ({"alpha": 0.0}, "alpha must be above 0"),
    ({"alpha": float("nan")}, "alpha must be above 0"), ({"beta": 0.0}, "beta must be above 0"),
    ({"beta": 1.2}, "beta must be above 0"), ({"heads": {0: [-1]}}, "numbered from 0"),
    ({"heads": {-1: [0]}}, "numbered from 0"),
])  # fmt: skip
def test_values_out_of_range(fields, message):
    with pytest.raises(InputError, match=message):
        CalibrationPlan(**{"heads": {0: [0]}, **fields})


@pytest.mark.parametrize(("text", "message"), [
    ('{"heads": {}}', "not a calibration plan"),
    ('{"format": 1, "heads": {}, "modes": "paper"}', "unknown field 'modes'; did you mean 'mode'"),
    ('{"format": 1, "heads": {"a": [0]}}', "layers are whole numbers, got 'a'"),
    ('{"format": 1, "heads": {"0": [0], "00": [1]}}', "layers are whole numbers, got '00'"),
    ('{"format": 1, "heads": []}', "heads must be a mapping"),
    ('{"format": 1, "heads": {}, "fingerprint": []}', "fingerprint must be a mapping"),
    ('{"format": 1, "heads": {}, "scores": []}', "scores must be a mapping"),
    ('{"format": 1, "heads": {}, "alpha": "5"}', "alpha must be a number, got '5'"),
    ('{"format": 1, "heads": {}, "beta": null}', "beta must be a number"),
    ('{"format": 1, "heads": {"0": 3}}', "must have a list of whole numbers"),
    ('{"format": 1, "heads": {"0": [1.5]}}', "must have a list of whole numbers"),
    ('{"format": 1, "heads": {"0": [0]}, "beta": 2}', "beta must be above 0"),
])  # fmt: skip
def test_a_damaged_file(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        CalibrationPlan.load(path)


def test_the_file_is_small_and_plain(tmp_path):
    CalibrationPlan(heads={0: [1]}).save(tmp_path / "plan.json")
    tree = json.loads((tmp_path / "plan.json").read_text())
    assert tree["format"] == 1
    assert tree["heads"] == {"0": [1]}


@pytest.mark.parametrize(("heads", "message"), [({2: [0]}, "layer 2"), ({0: [4]}, "head 4")])
def test_heads_that_the_model_has_not_are_refused(heads, message):
    with pytest.raises(InputError, match=message), calibrated(build("llama"), CalibrationPlan(heads=heads)):
        pass


def test_a_plan_for_another_model_is_refused():
    model, other = build("llama"), build("llama")
    plan = CalibrationPlan(heads={0: [0]}, fingerprint=fingerprint(model))
    with calibrated(copy.deepcopy(model).bfloat16(), plan):
        pass
    with torch.no_grad():
        other.model.layers[1].self_attn.q_proj.weight.mul_(1.5)
    with pytest.raises(InputError, match="another model: the weights differ"), calibrated(other, plan):
        pass
    with pytest.raises(InputError, match=r"another model: its model_type"), calibrated(build("gpt2"), plan):
        pass


def test_a_plan_prints_its_heads_and_rule():
    plan = CalibrationPlan({3: [5, 0], 4: [2]}, beta=0.25, scores={"heads": {"3.0": {"change": 0.5}}})
    assert "|     3 | 0, 5  |" in repr(plan)
    assert "alpha 5, beta 0.25, mode prompt" in str(plan)
    assert "change" not in repr(plan)
