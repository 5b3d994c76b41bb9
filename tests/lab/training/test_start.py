"""Runs that start from a model's weights."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from antiphase.base.errors import InputError
from antiphase.base.records import dequantized
from antiphase.lab.studies.started import overrides_from
from antiphase.lab.studies.train import TrainSettings
from antiphase.lab.studies.train.measure import plan
from antiphase.lab.training.run_model import starting_model
from antiphase.models.sources.models import origin_of
from antiphase.models.transformer import AntiphaseForCausalLM
from support.records import values


@pytest.fixture
def trained(run, tmp_path):
    run(tmp_path / "trained", "model.attention_type=softmax")
    return tmp_path / "trained"


def test_a_run_goes_on_where_the_other_ended(run, trained, tmp_path):
    record = run(tmp_path / "next", "model.attention_type=softmax", f"training.start_from={trained}", "training.seed=7")
    before = values(trained)
    start = record.values["curve"][0]
    assert start["step"] == 0
    assert start["loss"] == pytest.approx(before["final"]["loss"], abs=1e-12)
    assert start["loss"] != pytest.approx(before["curve"][0]["loss"], abs=1e-3)
    run(tmp_path / "fresh", "model.attention_type=softmax", "training.seed=7")
    first, other = (load_file(tmp_path / name / "model.safetensors") for name in ("next", "fresh"))
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_resuming_does_not_start_over(run, settings, trained, tmp_path, outcome, assert_identical):
    changes = ("model.attention_type=softmax", f"training.start_from={trained}")
    run(tmp_path / "whole", *changes)

    def stop(step, values):
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", *changes, report=stop)
    run(tmp_path / "parts", *changes, resume=True)
    assert_identical(outcome(tmp_path / "whole"), outcome(tmp_path / "parts"))


def test_what_is_known_of_the_weights_is_passed_on(run, trained, tmp_path):
    """A model that goes on from a 4-bit one says so, also after a stop at which the start was removed."""
    config = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps(config | {"dequantized_from": "Q4_1"}))
    changes = ("model.attention_type=softmax", f"training.start_from={trained}")

    def stop(step, values):
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "next", *changes, report=stop)
    (trained / "config.json").write_text(json.dumps(config))
    record = run(tmp_path / "next", *changes, resume=True)
    assert origin_of(str(tmp_path / "next")) == "Q4_1"
    assert record.origins() == [f"{trained}: the weights were {dequantized('Q4_1')}."]


@pytest.mark.slow
def test_the_start_is_needed_until_the_first_checkpoint_and_must_stay_what_it_was(run, trained, tmp_path):
    changes = ("model.attention_type=softmax", "training.checkpoint_every=4")

    def stop_at(last):
        def stop(step, values):
            if step == last:
                raise KeyboardInterrupt

        return stop

    def start(folder, step):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / folder, *changes, f"training.start_from={trained}", report=stop_at(step))

    start("late", 6)
    start("early", 2)
    moved = trained.rename(tmp_path / "moved")
    done = run(tmp_path / "late", *changes, f"training.start_from={trained}", resume=True)  # from its checkpoint
    assert done.values["final"]["loss"] > 0
    again = run(tmp_path / "late", *changes, f"training.start_from={trained}", resume=True)
    assert again.values["final"] == done.values["final"]
    with pytest.raises(InputError, match="there is no such folder"):
        run(tmp_path / "early", *changes, f"training.start_from={trained}", resume=True)
    whole = run(tmp_path / "early", *changes, f"training.start_from={moved}", resume=True)  # the same weights, moved
    assert whole.values["final"]["loss"] == done.values["final"]["loss"]
    start_other = tmp_path / "other"
    run(start_other, "model.attention_type=softmax", "training.seed=9")
    trained = moved
    start("third", 2)
    for folder, change in (
        ("late", ("training.checkpoint_every=4",)),
        ("other", ("training.seed=9", f"training.start_from={trained}")),
    ):
        with pytest.raises(InputError, match=r"holds a run with other settings \(training\.start_from\)"):
            run(tmp_path / folder, "model.attention_type=softmax", *change, resume=True)
    with pytest.raises(InputError, match=r"third began from other weights than training\.start_from holds now"):
        run(tmp_path / "third", *changes, f"training.start_from={start_other}", resume=True)


def test_weights_are_held_in_fp32_whatever_the_folder_holds(settings, trained, text_tokenizer, tmp_path):
    from transformers import AutoTokenizer

    AntiphaseForCausalLM.from_pretrained(trained, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    chosen = settings("model.attention_type=softmax", f"training.start_from={tmp_path / 'half'}")
    model = starting_model(chosen, AutoTokenizer.from_pretrained(trained))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.training


@pytest.mark.parametrize(("changes", "words"), [
    (["model.attention_type=differential"], "attention_type is softmax, this run's is differential"),
    (["model.attention_type=softmax", "model.num_hidden_layers=3"], "num_hidden_layers is 2, this run's is 3"),
    (["model.attention_type=softmax", "model.rope_theta=7.0"], "rope_parameters is"),
    (["model.attention_type=softmax", "model.rms_norm_eps=0.1"], "rms_norm_eps is 1e-06, this run's is 0.1"),
    (["model.attention_type=softmax", "model.num_key_value_heads=2"], "num_key_value_heads is 4, this run's is 2"),
    (["model.attention_type=softmax", "model.head_dim=8"], "head_dim is 4, this run's is 8"),
    (["model.attention_type=softmax", "data.keys=8"], "vocab_size is"),
    (["model.attention_type=softmax", "data.keys=8", "data.numbers=8"], "its tokenizer has other words"),
])  # fmt: skip
def test_other_sizes_are_refused_and_nothing_is_left(run, trained, tmp_path, changes, words):
    with pytest.raises(InputError, match=r"training\.start_from") as caught:
        run(tmp_path / "next", *changes, f"training.start_from={trained}")
    assert words in str(caught.value)
    assert not (tmp_path / "next").exists()


def test_longer_sequences_do_not_make_another_model(run, trained, tmp_path):
    changes = ["model.attention_type=softmax", "data.sequence_length=30", f"training.start_from={trained}"]
    assert run(tmp_path / "next", *changes).values["final"]["loss"] > 0


def test_models_of_other_packages_are_refused(run, trained, tmp_path):
    def refused(folder):
        with pytest.raises(InputError, match=r"training\.start_from") as caught:
            run(tmp_path / "next", "model.attention_type=softmax", f"training.start_from={folder}")
        return str(caught.value)

    assert "there is no such folder" in refused(tmp_path / "nowhere")
    LlamaForCausalLM(
        LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path / "llama")
    assert f"antiphase convert {tmp_path / 'llama'} NEW --to antiphase" in refused(tmp_path / "llama")
    (tmp_path / "by another name").mkdir()
    for file in trained.glob("*"):
        if file.is_file():
            name = "weights.safetensors" if file.name == "model.safetensors" else file.name
            (tmp_path / "by another name" / name).write_bytes(file.read_bytes())
    changes = ("model.attention_type=softmax", f"training.start_from={tmp_path / 'by another name'}")
    assert run(tmp_path / "shard", *changes).values["final"]["loss"] > 0
    weights = trained / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.self_attn.o_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    assert "it has no weights for model.layers.1.self_attn.o_proj.weight" in refused(trained)
    weights.write_bytes(weights.read_bytes()[:100])
    assert "model.safetensors is damaged" in refused(trained)
    assert not (tmp_path / "next").exists()


def test_a_flag_takes_over_sizes_and_tokenizer(run, settings, tiny_preset, tmp_path):
    changes = ("model.attention_type=differential_v2", "model.num_attention_heads=2", "model.rms_norm_eps=1e-4")
    run(tmp_path / "first", *changes)
    given = TrainSettings(preset=str(tiny_preset), start_from=str(tmp_path / "first"), settings=["training.steps=3"])
    plan(given, tmp_path / "second").run(tmp_path / "second", resume=False)
    before, after = (values(tmp_path / name) for name in ("first", "second"))
    assert after["curve"][0]["loss"] == pytest.approx(before["final"]["loss"], abs=1e-9)
    first, second = (AutoConfig.from_pretrained(tmp_path / name) for name in ("first", "second"))
    assert {**first.to_dict(), "_name_or_path": ""} == {**second.to_dict(), "_name_or_path": ""}


def test_all_mismatches_are_named_at_once(run, trained, tmp_path):
    sizes = ("model.attention_type=softmax", "model.hidden_size=8", "model.rms_norm_eps=1e-3")
    with pytest.raises(InputError, match=r"hidden_size is 16, this run's is 8; .*rms_norm_eps is 1e-06, this run's is"):
        run(tmp_path / "next", *sizes, f"training.start_from={trained}")
    more = ("model.num_hidden_layers=3", "model.num_key_value_heads=2")
    named = "it has another hidden_size, num_hidden_layers, num_key_value_heads, .*rms_norm_eps.*; --start-from takes"
    with pytest.raises(InputError, match=named):
        run(tmp_path / "next", *sizes, *more, f"training.start_from={trained}")


def test_sizes_beside_the_flag_are_refused_before_anything_else(trained, tiny_preset, tmp_path):
    def given(*words):
        settings = TrainSettings(preset=str(tiny_preset), start_from=str(trained), settings=list(words))
        return plan(settings, tmp_path / "next")

    words = r"--set cannot change the model of start_from .*: model.num_hidden_layers=3 \(it has 2\), model.norm_type"
    with pytest.raises(InputError, match=words):
        given("model.num_hidden_layers=3", "model.num_attention_heads=4", "model.norm_type=layer_norm")
    given("model.num_hidden_layers=2", "training.steps=3")


def test_only_plain_positions_can_be_trained_further(trained):
    config = json.loads((trained / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    (trained / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"start_from .* has a RoPE of type 'linear'"):
        overrides_from(str(trained), field="start_from")
