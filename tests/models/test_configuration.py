"""The configuration refuses what cannot be built, by field, and survives saving, copying and the Auto classes."""

import copy
import json
import re

import pytest
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from antiphase import AntiphaseConfig
from antiphase.base.errors import InputError


@pytest.mark.parametrize(("typo", "meant"), [
    ("hiden_size", "hidden_size"), ("attention_typ", "attention_type"), ("gated_mpl", "gated_mlp"),
])  # fmt: skip
def test_an_unknown_field_is_an_error_with_the_nearest_name(typo, meant):
    with pytest.raises(InputError, match=rf"unknown configuration field '{typo}'; did you mean '{meant}'\?"):
        AntiphaseConfig(**{typo: 8})


def test_an_unknown_field_near_nothing_lists_the_known_ones():
    with pytest.raises(InputError, match=r"'qqqqqq'; known: .*hidden_size.*vocab_size"):
        AntiphaseConfig(qqqqqq=1)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"attention_type": "diferential"}, ["attention_type", "did you mean 'differential'"]),
        ({"num_attention_heads": 7, "head_dim": 8}, ["num_attention_heads", "even"]),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, ["num_key_value_heads", "even", "3"]),
        ({"num_attention_heads": 8, "num_key_value_heads": 6}, ["num_key_value_heads", "divide", "6"]),
        ({"hidden_size": 100, "num_attention_heads": 12}, ["num_attention_heads", "hidden_size", "100", "head_dim"]),
        ({"hidden_size": 36}, ["head_dim", "even", "3"]), ({"head_dim": 0}, ["head_dim"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]), ({"num_hidden_layers": True}, ["num_hidden_layers"]),
        ({"max_position_embeddings": 0}, ["max_position_embeddings"]), ({"head_norm_eps": -1e-5}, ["head_norm_eps"]),
        ({"sliding_window": 0}, ["sliding_window"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "12 layers"]),
        ({"layer_types": ["full_attention"] * 11 + ["chunked"]}, ["layer_types", "chunked"]),
        ({"layer_types": ["sliding_attention"] * 12}, ["layer_types", "sliding_window is not set"]),
        ({"hidden_act": "gelu_pytorch_tan"}, ["hidden_act", "did you mean 'gelu_pytorch_tanh'"]),
        ({"hidden_act": None}, ["hidden_act", "None"]), ({"norm_type": "rms"}, ["norm_type", "layer_norm", "'rms'"]),
        ({"gated_mlp": 0}, ["gated_mlp must be true or false, got 0"]),
        ({"attention_bias": True, "qkv_bias": True}, ["qkv_bias", "attention_bias"]),
        ({"norm_position": "below"}, ["norm_position must be one of before, after, got 'below'"]),
        ({"whole_qk_norm": True}, ["whole_qk_norm needs use_qk_norm"]),
        *(
            ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}},
             ["partial_rotary_factor", str(share)])
            for share in (0, 1.5, 0.01, "0.5", True)
        ),
        *(
            (
                {"attention_type": "differential_v2", "num_key_value_heads": n},
                ["num_attention_heads (12)", f"num_key_value_heads ({n})"],
            )
            for n in (12, 4)
        ),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_used_is_named_with_what_came(fields, names):
    with pytest.raises(InputError) as caught:
        AntiphaseConfig(**fields)
    for name in names:
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


BLOCK = {"hidden_act": "gelu", "gated_mlp": False, "mlp_bias": True, "qkv_bias": True, "use_qk_norm": True,
         "whole_qk_norm": True, "norm_type": "layer_norm", "norm_position": "after",
         "use_parallel_residual": True}  # fmt: skip


def test_fields_of_blocks_are_stored_only_where_they_are_not_llamas(tmp_path):
    """So that the files of other models, and what is hashed of them, stay as they were."""
    plain = AntiphaseConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0})
    assert plain.to_dict() == AntiphaseConfig().to_dict()
    assert not {*BLOCK, "attention_bias"} & plain.to_dict().keys()
    config = AntiphaseConfig(**BLOCK)
    config.save_pretrained(tmp_path)
    for found in (AutoConfig.from_pretrained(tmp_path), copy.deepcopy(config)):
        assert {name: getattr(found, name) for name in BLOCK} == BLOCK
    assert AntiphaseConfig().hidden_act == "silu"


def test_softmax_layers_take_odd_maps_that_differential_layers_refuse():
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1}
    assert AntiphaseConfig(attention_type="softmax", **sizes).head_dim == 8
    with pytest.raises(InputError, match="num_attention_heads must be even"):
        AntiphaseConfig(attention_type="differential", **sizes)


def test_defaults_follow_the_sizes():
    config = AntiphaseConfig(hidden_size=64, num_attention_heads=4)
    assert (config.num_key_value_heads, config.head_dim, config.head_norm_eps) == (4, 16, 1e-5)
    assert AntiphaseConfig(hidden_size=64, num_attention_heads=4, head_dim=10).head_dim == 10
    assert AntiphaseConfig(attention_type="differential_v2").num_key_value_heads == 6
    assert config.layer_types == ["full_attention"] * 12
    assert AntiphaseConfig(sliding_window=8).layer_types == ["sliding_attention"] * 12


def test_keys_of_transformers_are_accepted():
    config = AntiphaseConfig(
        num_labels=3, output_hidden_states=True, torch_dtype="bfloat16", problem_type="regression",
        architectures=["AntiphaseForCausalLM"], attn_implementation="eager", name_or_path="x", return_dict=False,
        transformers_version="5.0.0",
    )  # fmt: skip
    assert (config.num_labels, config.output_hidden_states, config._attn_implementation) == (3, True, "eager")
    assert AntiphaseConfig(id2label={"0": "a", "1": "b", "2": "c"}).num_labels == 3


def test_rope_theta_has_its_effect_wherever_it_is_given():
    assert AntiphaseConfig().rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert AntiphaseConfig(rope_theta=5e5).rope_parameters["rope_theta"] == 5e5
    given = {"rope_theta": 3e4}
    assert AntiphaseConfig(rope_parameters=given).rope_parameters["rope_theta"] == 3e4
    assert given == {"rope_theta": 3e4}  # a person's dict stays as it was


@pytest.mark.parametrize(("older", "expected"), [
    ({"rope_scaling": None}, {"rope_type": "default", "rope_theta": 10000.0}),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5, "rope_parameters": None},
     {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}},
     {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}),
])  # fmt: skip
def test_the_older_spelling_of_rope_means_what_it_means_in_llama(tiny_config, tmp_path, recwarn, older, expected):
    tiny_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | older))
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.rope_parameters == expected
    assert not [warning for warning in recwarn if "rope" in str(warning.message)]
    fields = {name: value for name, value in older.items() if value is not None}
    assert AntiphaseConfig(**fields).rope_parameters == expected
    LlamaForCausalLM(LlamaConfig(**fields, vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1))


def test_rope_parameters_by_kind_of_layer_are_refused(tiny_config):
    with pytest.raises(InputError, match="rope_parameters has values of its own for full_attention; all layers have"):
        tiny_config(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}})
    with pytest.raises(InputError, match="rope_scaling must map names to values, got 4"):
        tiny_config(rope_scaling=4)
    with pytest.raises(InputError, match=r"rope_parameters must map names to values, got \[1\]"):
        tiny_config(rope_parameters=[1])


@pytest.mark.parametrize(("given", "said"), [
    ({"rope_type": "bogus"}, "rope_type must be one of default, linear, .*, got 'bogus'"),
    ({"rope_type": "linear"}, "factor of rope_parameters must be a number above 0, got None"),
    ({"rope_type": "linear", "factor": "4"}, "factor of rope_parameters must be a number above 0, got '4'"),
    ({"rope_type": "yarn", "factor": -4.0}, "factor of rope_parameters must be a number above 0, got -4.0"),
])  # fmt: skip
def test_scaled_positions_that_cannot_be_computed_are_refused(tiny_config, given, said):
    with pytest.raises(InputError, match=said):
        tiny_config(rope_parameters={"rope_theta": 1e4, **given})


def test_a_window_given_while_loading_is_used_and_one_without_a_layer_is_pointed_out(tiny_config, tmp_path):
    tiny_config().save_pretrained(tmp_path / "full")
    tiny_config(sliding_window=4).save_pretrained(tmp_path / "sliding")
    assert AutoConfig.from_pretrained(tmp_path / "full", sliding_window=3).layer_types == ["sliding_attention"] * 3
    assert AutoConfig.from_pretrained(tmp_path / "sliding", sliding_window=None).layer_types == ["full_attention"] * 3
    with pytest.warns(UserWarning, match="sliding_window=3 has no effect, because layer_types names no sliding_att"):
        tiny_config(sliding_window=3, layer_types=["full_attention"] * 3)


def test_a_saved_configuration_comes_back_equal(tiny_config, tmp_path):
    config = tiny_config(
        head_dim=10, tie_word_embeddings=True, rope_theta=777.0, head_norm_eps=3e-5, num_labels=4, use_cache=False
    )
    config.save_pretrained(tmp_path)
    for loaded in (AntiphaseConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is AntiphaseConfig
        where = {key: loaded.to_dict()[key] for key in ("_name_or_path", "transformers_version")}
        assert loaded.to_dict() == config.to_dict() | where
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "antiphase"


def test_a_typo_in_config_json_is_pointed_out(tiny_config, tmp_path):
    tiny_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(re.sub('"head_norm_eps"', '"head_norm_epps"', path.read_text()))
    with pytest.warns(UserWarning, match="has no effect.*did you mean 'head_norm_eps'"):
        AutoConfig.from_pretrained(tmp_path)


def test_fields_can_be_overridden_while_loading(tiny_config, tmp_path):
    tiny_config().save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, max_position_embeddings=7).max_position_embeddings == 7


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_are_equal_and_a_deep_one_is_independent(tiny_config, duplicate):
    config = tiny_config()
    other = duplicate(config)
    assert other.to_dict() == config.to_dict()
    other.attention_type = "softmax"
    assert config.attention_type == "differential"
    if duplicate is copy.deepcopy:
        other.rope_parameters["rope_theta"] = 1.0
        assert config.rope_parameters["rope_theta"] == 10000.0


def test_the_difference_to_the_defaults_rebuilds_the_configuration(tiny_config):
    config = tiny_config("softmax", head_norm_eps=2e-5)
    difference = config.to_diff_dict()
    assert difference["attention_type"] == "softmax"
    assert difference["head_norm_eps"] == 2e-5
    assert "chunk_size_feed_forward" not in difference
    assert AntiphaseConfig.from_dict(difference).to_dict() == config.to_dict()
    assert json.loads(config.to_json_string())["hidden_size"] == 48
    assert repr(config).startswith("AntiphaseConfig {")


def test_a_plan_that_transformers_adds_to_is_kept_and_not_saved(tiny_config):
    """Transformers 5.17 adds the tied embedding's place to it."""
    config = tiny_config("softmax", tie_word_embeddings=True)
    plan = {**config.base_model_tp_plan, "embed_tokens": "embedding_rowwise"}
    config.base_model_tp_plan = plan
    assert config.base_model_tp_plan == plan
    assert "base_model_tp_plan" not in config.to_dict()
    assert config.base_model_pp_plan.keys() == {"embed_tokens", "layers", "norm"}
    multiplied = tiny_config("softmax", embedding_multiplier=2.0)  # a later stage would multiply what it is given
    assert multiplied.base_model_pp_plan is None


@pytest.mark.parametrize("kind", ["default", "yarn", "longrope"])
def test_a_factor_that_is_null_is_that_of_the_lengths(tiny_config, kind):
    given = {"rope_type": kind, "rope_theta": 1e4, "factor": None, "original_max_position_embeddings": 32}
    assert tiny_config(rope_parameters=given).rope_parameters["factor"] is None


def test_a_text_does_not_tie_the_head(tiny_config):
    with pytest.raises(InputError, match="tie_word_embeddings must be true or false, got 'no'"):
        tiny_config(tie_word_embeddings="no")
