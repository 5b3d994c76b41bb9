"""Arms that a name describes: what each changes, and how their own settings go with it."""

import dataclasses

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import arm_run, load_preset


def test_named_arms_differ_from_softmax_in_what_they_say(preset):
    names = ["S", "SW", "V1", "V1+", "V0", "V1f", "V1n", "V2", "G"]
    preset = load_preset(preset(), [f"compare.arms={names}", "model.num_attention_heads=8"])
    models = {arm: arm_run(preset.run, preset.compare, arm, seed=0).model for arm in preset.compare.arms}
    plain = dataclasses.asdict(models["S"])
    changed = {
        arm: {name: value for name, value in dataclasses.asdict(model).items() if value != plain[name]}
        for arm, model in models.items()
    }
    hidden, v1 = plain["hidden_size"], {"attention_type": "differential"}
    gate = plain["intermediate_size"] - round(hidden / 3)
    assert changed == {
        "S": {}, "V1": v1, "V1+": v1 | {"second_map": "added"}, "V0": v1 | {"second_map": "none"},
        "V1f": v1 | {"lambda_form": "fixed"}, "V1n": v1 | {"head_norm": False},
        "SW": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": hidden // 4, "head_norm": True},
        "V2": {"attention_type": "differential_v2", "num_key_value_heads": None, "head_dim": hidden // 8},
        "G": {"output_gate": True, "intermediate_size": gate},
    }  # fmt: skip


def test_a_named_arm_keeps_its_own_settings_and_a_model_of_its_own_wins(preset):
    preset = load_preset(
        preset(), ["compare.arms=[S, SW]", "compare.arms.SW.training.learning_rate=1e-4",
                 "compare.arms.V1.model.attention_type=softmax"],
    )  # fmt: skip
    runs = {arm: arm_run(preset.run, preset.compare, arm, seed=0) for arm in ("S", "SW", "V1")}
    assert runs["SW"].training.learning_rate == 1e-4
    assert runs["SW"].model.head_norm
    assert runs["V1"].model.attention_type == "softmax"


def test_a_setting_of_its_model_leaves_a_named_arm_what_its_name_says():
    preset = load_preset("sooner", ["compare.arms.SW.model.rope_theta=1000", "compare.arms.V1+.model.lambda_init=0.8"])
    models = {arm: arm_run(preset.run, preset.compare, arm, seed=0).model for arm in preset.compare.arms}
    assert (models["SW"].head_norm, models["SW"].num_attention_heads, models["SW"].rope_theta) == (True, 2, 1000)
    assert (models["V1+"].second_map, models["V1+"].lambda_init) == ("added", 0.8)
    assert models["V1"] == dataclasses.replace(models["V1+"], second_map=models["V1"].second_map, lambda_init=None)


def test_heads_that_cannot_be_halved_are_refused(preset):
    with pytest.raises(InputError, match=r"model\.num_attention_heads and .* must be even to be halved"):
        load_preset(preset(), ["compare.arms=[S, SW]", "model.num_attention_heads=1"])


def test_a_list_of_arms_with_an_unknown_name_is_refused(preset):
    with pytest.raises(InputError, match=r"a list of compare\.arms names S, .*, got 'V2\+'"):
        load_preset(preset(), ["compare.arms=[S, V2+]"])
