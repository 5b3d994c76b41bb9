"""Runs of recurrent networks: the same loop, data and records as the Transformer's, also as arms of a comparison."""

import signal

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase import RecurrentConfig
from antiphase.base.errors import InputError, Interrupted
from antiphase.base.records import Record
from antiphase.lab.lineage.models.recurrent import RecurrentForCausalLM
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.training.run_model import build_model

every_kind = pytest.mark.parametrize("kind", ["rnn", "lstm"])


@every_kind
def test_a_run_trains_is_recorded_and_loads(tmp_path, run, kind):
    record = run(tmp_path / "run", f"model.kind={kind}", "training.steps=60", "training.evaluate_every=60")
    curve = record.values["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.1
    assert (record.values["lambdas"], record.values["attention_only"]) == (None, 0)
    assert len(record.values["gradient_norms"]) == 2
    assert all(norm > 0 for norm in record.values["gradient_norms"])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert type(model) is RecurrentForCausalLM
    assert (model.config.cell, model.config.hidden_size, model.config.num_hidden_layers) == (kind, 16, 2)
    assert model.num_parameters() == record.values["parameters"]
    assert model.lm_head.weight is model.model.embed_tokens.weight


@every_kind
def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path, run, outcome, assert_identical, kind):
    def stop(step, values):
        if step == 7:
            signal.raise_signal(signal.SIGINT)

    run(tmp_path / "whole", f"model.kind={kind}")
    with pytest.raises(Interrupted):
        run(tmp_path / "parts", f"model.kind={kind}", report=stop)
    run(tmp_path / "parts", f"model.kind={kind}", resume=True)
    assert_identical(outcome(tmp_path / "parts"), outcome(tmp_path / "whole"))


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_generator_as_it_was(settings, text_tokenizer):
    chosen, built = settings("model.kind=lstm"), []
    for seed, used in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(used)
        before = torch.get_rng_state()
        built.append(build_model(chosen, text_tokenizer, seed=seed).model.network.weight_ih_l0)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(built[0], built[1])
    assert not torch.equal(built[0], built[2])


def test_gradient_norms_are_those_of_each_layer():
    model = RecurrentForCausalLM(RecurrentConfig(vocab_size=9, num_hidden_layers=3, hidden_size=4)).model
    found = [{id(parameter) for parameter in layer} for layer in model.parameters_by_layer()]
    assert [len(layer) for layer in found] == [4, 4, 4]
    assert set.union(*found) == {id(parameter) for parameter in model.network.parameters()}
    assert id(model.network.weight_hh_l1) in found[1]


@pytest.mark.parametrize(("override", "field"), [
    ("training.start_from=somewhere", "training.start_from"), ("model.second_map=none", "model.second_map"),
    ("training.gradient_checkpointing=true", "training.gradient_checkpointing"),
])  # fmt: skip
def test_options_for_transformers_only_are_refused(tiny_preset, override, field):
    with pytest.raises(InputError, match=f"{field} needs model.kind=transformer, got lstm"):
        load_preset(str(tiny_preset), ["model.kind=lstm", override])


@pytest.mark.slow
@pytest.mark.parametrize("with_attention", [True, False])
def test_recurrent_arms_stand_beside_a_transformer_or_alone(tmp_path, tiny_preset_text, antiphase, with_attention):
    arms = "{differential: {}, rnn: {model.kind: rnn}, lstm: {model.kind: lstm}}"
    if not with_attention:
        arms = "{rnn: {model.kind: rnn}, lstm: {model.kind: lstm}}"
    path = tmp_path / "preset.yaml"
    path.write_text(
        tiny_preset_text.replace("compare: {seeds: [0, 1]", f"compare: {{arms: {arms}, seeds: [0]"), "utf-8"
    )
    assert antiphase("compare --preset preset.yaml --output study")[0] == 0
    values = Record.load(tmp_path / "study").values
    attending = ["differential"] if with_attention else []
    assert {run["arm"] for run in values["runs"]} == {*attending, "rnn", "lstm"}
    assert {row["arm"] for row in values["needles"]["summary"]} == {*attending, "rnn", "lstm"}
    assert {row["arm"] for row in values["perplexity"]} == {*attending, "rnn", "lstm"}
    assert {row["arm"] for row in values["allocation"]} == set(attending)
    assert list(values["attention_map"]["arrays"]) == attending
    page = (tmp_path / "study" / "report.html").read_text("utf-8")
    assert "lstm" in page
