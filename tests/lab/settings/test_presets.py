"""Settings: every mistake is refused by its name, and what is read is what was written."""

import dataclasses
import inspect
import math

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import (
    CompareSettings,
    DataSettings,
    EvaluationSettings,
    ModelSettings,
    RunSettings,
    TrainingSettings,
    arm_run,
    check_followed,
    load_preset,
    rows_by_share,
    to_yaml,
)
from antiphase.lab.studies.compare import ComparisonSettings
from antiphase.lab.studies.train import TrainSettings
from antiphase.models.block_fields import BLOCK
from antiphase.models.configuration import AntiphaseConfig, unknown_fields
from support.presets import REQUIRED

SECTIONS = {
    "model": ModelSettings, "data": DataSettings, "training": TrainingSettings, "evaluation": EvaluationSettings,
    "compare": CompareSettings,
}  # fmt: skip
FIELDS = [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)]


def test_smallest_preset_has_defaults_for_all_the_rest(preset):
    loaded = load_preset(preset())
    assert loaded.run == RunSettings(
        model=ModelSettings(**REQUIRED["model"]), data=DataSettings(**REQUIRED["data"]),
        training=TrainingSettings(**REQUIRED["training"]),
    )  # fmt: skip
    assert loaded.compare.arms == {
        "softmax": {"model.attention_type": "softmax"}, "differential": {"model.attention_type": "differential"},
    }  # fmt: skip


@pytest.mark.parametrize(("text", "number"), [("4e-3", 0.004), ("1E5", 1e5), ("2", 2.0), (".5", 0.5), ("1_0.0", 10.0)])
def test_numbers_that_yaml_reads_as_text_are_numbers(preset, text, number):
    assert load_preset(preset(), [f"training.learning_rate={text}"]).run.training.learning_rate == number


@pytest.mark.parametrize("field", FIELDS)
def test_misspelt_key_names_the_nearest(preset, field):
    section, _, name = field.partition(".")
    with pytest.raises(InputError, match=f"unknown key '{section}.{name[0]}{name}'; did you mean '{name}'"):
        load_preset(preset(), [f"{section}.{name[0]}{name}=1"])


def test_misspelt_section_names_the_nearest(preset):
    with pytest.raises(InputError, match="unknown key 'trainign'; did you mean 'training'"):
        load_preset(preset(), ["trainign.steps=5"])


def test_unknown_key_of_an_arm_names_the_arm_and_the_nearest(preset):
    with pytest.raises(InputError, match=r"compare\.arms\.softmax\.training\.stepz'; did you mean 'steps'"):
        load_preset(preset(), ["compare.arms.softmax.training.stepz=3"])


def test_a_misspelt_arm_is_no_new_one(preset):
    known = r"compare\.arms\.softmx: there is no such arm; did you mean 'softmax'\?; a new one must set"
    for change in ("training.learning_rate=1e-2", "model.num_hidden_layers=3"):
        with pytest.raises(InputError, match=known):
            load_preset(preset(), [f"compare.arms.softmx.{change}"])
    for own in ("model.attention_type=softmax", "model.kind=lstm"):
        found = load_preset(preset(), [f"compare.arms.softmx.{own}", "compare.arms.softmx.training.learning_rate=1e-2"])
        assert list(found.compare.arms) == ["softmax", "differential", "softmx"]


@pytest.mark.parametrize(
    "missing", [f"{section}.{key}" for section, values in REQUIRED.items() for key in values] + ["model", "data"]
)
def test_missing_key_is_named_in_full(preset, missing):
    section, _, key = missing.partition(".")
    rest = {name: value for name, value in REQUIRED[section].items() if name != key} if key else None
    with pytest.raises(InputError, match=f"missing key '{missing}'"):
        load_preset(preset(**{section: rest}))


@pytest.mark.parametrize(("override", "expected"), [
    ("training.steps=many", "training.steps must be a whole number, got 'many'"),
    ("training.learning_rate=.nan", "training.learning_rate must be a number, got nan"),
    ("training.learning_rate=true", "training.learning_rate must be a number, got True"),
    ("training.tensorboard=1", "training.tensorboard must be true or false, got 1"),
    ("training.attn_implementation=fast", "training.attn_implementation must be one of antiphase, antiphase_tri"),
    ("data.paths=book.txt", r"data.paths must be a list, for example data.paths=\[1,2\]; got 'book.txt'"),
    ("evaluation.depths=[0,deep]", r"evaluation.depths\[1\] must be a number, got 'deep'"),
    ("data.paths=[[a]]", r"data.paths\[0\] must be text"),
    ("data.paths=[a.txt]", "data.paths cannot be used with data.source=synthetic; give --data instead"),
    ("model=5", "model must be a mapping of keys to values, got 5"),
    ("compare.arms.softmax=3", "compare.arms.softmax must be a mapping, got 3"),
    ("compare.arms.softmax.training=5", "compare.arms.softmax.training must be a mapping of keys to values, got 5"),
    ("compare.arms.softmax.training=null", "compare.arms.softmax.training must be a mapping of keys to values"),
    ("compare.also={softmax: softmax}", "compare.also compares the arm 'softmax' with itself"),
    ("model.hidden_size.x=3", "key 'model.hidden_size.x': 'hidden_size' holds a value, not a section"),
])  # fmt: skip
def test_wrong_type_says_what_was_expected(preset, override, expected):
    with pytest.raises(InputError, match=expected):
        load_preset(preset(), [override])


def test_number_too_large_for_a_float_is_refused(preset):
    with pytest.raises(InputError, match=r"training\.clip must be a number"):
        load_preset(preset(), [f"training.clip={'9' * 400}"])


@pytest.mark.parametrize("override", ["training.steps", "=5", "", "training.steps 5"])
def test_set_without_key_and_value_says_how(preset, override):
    with pytest.raises(InputError, match=r"--set .* is not KEY=VALUE, for example --set training\.steps=200"):
        load_preset(preset(), [override])


def test_set_with_broken_yaml_is_refused(preset):
    with pytest.raises(InputError, match=r"--set .* this is not valid YAML"):
        load_preset(preset(), ["data.paths=[a"])


def test_set_keeps_equal_signs_of_the_value_and_the_last_one_wins(preset):
    overrides = ["description=a=b", "training.steps=3", "training.steps=4"]
    run = load_preset(preset(), overrides).run
    assert run.description == "a=b"
    assert run.training.steps == 4


def test_numbers_and_lists_where_text_is_wanted(preset):
    run = load_preset(preset(), ["description=5", "data.source=text", "data.paths=[1,b]"]).run
    assert run.description == "5"
    assert run.data.paths == ["1", "b"]


def test_data_turns_a_synthetic_preset_into_text_with_its_changes(preset):
    path = preset(with_data={"data.needles": 2, "training.steps": 7, "compare.threshold": 0.25})
    plain, text = load_preset(path), load_preset(path, data=["a.txt", "b"], validation=["c"])
    assert (plain.run.data.source, plain.run.training.steps, plain.compare.threshold) == ("synthetic", 5, 0.5)
    assert (text.run.data.source, text.run.training.steps, text.compare.threshold) == ("text", 7, 0.25)
    assert (text.run.data.paths, text.run.data.validation, text.run.data.needles) == (["a.txt", "b"], ["c"], 2)


def test_set_comes_after_what_data_changes(preset):
    path = preset(with_data={"training.steps": 7})
    assert load_preset(path, ["training.steps=9"], data=["a.txt"]).run.training.steps == 9


@pytest.mark.parametrize("with_data", [[1], "training.steps=3", {"training.stps": 3}, {5: 6}])
def test_with_data_of_another_form_is_refused(preset, with_data):
    with pytest.raises(InputError, match=r"with_data|unknown key"):
        load_preset(preset(with_data=with_data), data=["a.txt"])


def test_validation_without_text_is_refused(preset):
    with pytest.raises(InputError, match="--validation cannot be used without --data"):
        load_preset(preset(), validation=["a.txt"])
    with pytest.raises(InputError, match=r"^data\.validation cannot be used without --data"):
        load_preset(preset(), ["data.validation=[a.txt]"])


def test_arms_override_the_run_and_nothing_else_of_it(preset):
    loaded = load_preset(preset(), ["compare.arms.softmax.training.learning_rate=9e-3", "compare.seeds=[4]"])
    softmax = arm_run(loaded.run, loaded.compare, "softmax", seed=4)
    differential = arm_run(loaded.run, loaded.compare, "differential", seed=4)
    assert softmax.model.attention_type == "softmax"
    assert softmax.training.learning_rate == 9e-3
    assert differential == dataclasses.replace(
        loaded.run, training=dataclasses.replace(loaded.run.training, seed=4)
    )  # differential is the default
    assert loaded.run.training.seed == 0


@pytest.mark.parametrize("arm", [{"training": {"learning_rate": 0.001}}, {"training.learning_rate": 0.001}])
@pytest.mark.parametrize("override", ["training.learning_rate=9e-3", "training={learning_rate: 9e-3, steps: 5}"])
def test_a_setting_for_the_whole_run_applies_to_arms_in_either_form(preset, arm, override):
    loaded = load_preset(preset(compare={"arms": {"softmax": arm, "differential": {}}}), [override])
    for name in loaded.compare.arms:
        assert arm_run(loaded.run, loaded.compare, name, seed=0).training.learning_rate == 9e-3
    narrower = load_preset(preset(compare={"arms": {"softmax": arm}}), ["training.steps=5"])
    assert arm_run(narrower.run, narrower.compare, "softmax", seed=0).training.learning_rate == 0.001


@pytest.mark.parametrize("key", ["data.needles", "evaluation.samples", "training.seed"])
def test_arms_may_not_differ_in_what_makes_them_comparable(preset, key):
    with pytest.raises(InputError, match=rf"compare\.arms\.softmax must not change {key}"):
        load_preset(preset(), [f"compare.arms.softmax.{key}=3"])


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "two words"])
def test_arm_that_cannot_name_a_folder_is_refused(preset, name):
    with pytest.raises(InputError, match=r"compare\.arms: .* cannot be the name of a folder"):
        load_preset(preset(compare={"arms": {name: {}, "softmax": {}}}))


def outside(kind):
    """Values that the bounds of the fields refuse, by field."""
    for item in dataclasses.fields(kind):
        bounds = item.metadata.get("bounds", {})
        near = {"least": -0.5 if item.type == "float" else -1, "above": 0, "most": 0.5, "below": 0}
        for name, step in near.items():
            if bounds.get(name) is not None:
                yield item.name, bounds[name] + step


OUT_OF_RANGE = [f"{section}.{name}={value}" for section, kind in SECTIONS.items() for name, value in outside(kind)]
OUT_OF_RANGE += [
    "training.learning_rate=-1", "data.label_share=0.1", "data.repeat_share=0.1",  # the preset is synthetic
    "evaluation.depths=[]", "evaluation.depths=[1.1]", "evaluation.depths=[.nan]", "evaluation.depths=[0.5, 0.5]",
    "evaluation.needles=[4,-1]", "evaluation.lengths=[0]", "model.max_position_embeddings=15",
    "training.decay_steps=4", "compare.threshold=1", "compare.processes=0", "compare.arms={}",
]  # fmt: skip


@pytest.mark.parametrize("override", OUT_OF_RANGE)
def test_value_out_of_range_is_refused_by_its_field(preset, override):
    with pytest.raises(InputError, match=override.partition("=")[0].replace(".", r"\.")):
        load_preset(preset(), [override])


@pytest.mark.parametrize("name", ["needle_share", "label_share", "repeat_share"])
def test_a_share_gives_a_batch_at_least_one_sequence(name):
    def preset(share):
        settings = ["training.batch_size=8", *(f"data.{one}=0" for one in ("needle_share", "label_share"))]
        return load_preset("half-hour", [*settings, f"data.{name}={share}"], data=["book.txt"])

    assert getattr(preset(0.07).run.data, name) == 0.07
    with pytest.raises(InputError, match=rf"data.{name} \(0.06\) gives no sequence to a batch of 8; raise training"):
        preset(0.06)
    with pytest.raises(InputError, match=r"what the shares of data leave \(0.06\) gives no sequence to a batch of 8"):
        preset(0.94)


@pytest.mark.parametrize(("share", "kind"), [(0.1, "inside one document"), (0.9, "the rest of the text")])
def test_a_share_of_long_documents_gives_a_batch_both_kinds(share, kind):
    def preset(batch, share):
        shares = [f"data.{name}=0" for name in ("needle_share", "label_share", "repeat_share")]
        changes = [f"training.batch_size={batch}", *shares, f"data.long_share={share}"]
        return load_preset("half-hour", changes, data=["book.txt"])

    expected = rf"data\.long_share \({share}\) gives no sequence from {kind} to a batch with 4 of text; raise training"
    with pytest.raises(InputError, match=expected):
        preset(4, share)
    assert preset(10, share).run.data.long_share == share
    for all_or_none in (0.0, 1.0):
        assert preset(1, all_or_none).run.data.long_share == all_or_none


@settings(deadline=None)
@given(st.integers(1, 300), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_rows_by_share_are_whole_and_near_what_was_asked_for(batch, drawn):
    total = max(1.0, sum(drawn))
    shares = {str(place): share / total for place, share in enumerate(drawn)}
    rows = rows_by_share(batch, shares)
    assert sum(rows.values()) == batch
    assert list(rows) == [*shares, "rest"]
    assert all(abs(rows[name] - share * batch) < 1 + 1e-6 for name, share in shares.items())


@pytest.mark.parametrize(("weights", "more", "words"), [
    ("[0.7,0.2]", [], "must add up to 1, got .*which add up to 0.9"), ("[1.2,-0.2]", [], "must be at least 0.0001"),
    ("[1.0,0.0]", [], "leave out a --data"), ("[1.0]", [], "one number for each --data: 1 are given for 2"),
    ("[0.5,0.5]", ["data.validation=[]"], "name it with --validation"), ("[.nan,1]", [], "must be a number"),
    ("[0.5,0.5]", ["data.long_share=0.5"], "cannot be used together with data.long_share"), ("0.5", [], "a list"),
])  # fmt: skip
def test_weights_of_a_mixture_that_make_no_sense_are_refused(weights, more, words):
    with pytest.raises(InputError, match=rf"data\.weights.*{words}"):
        load_preset("half-hour", [f"data.weights={weights}", *more], data=["a", "b"], validation=["c"])


def test_other_text_has_no_weights_of_the_text_before(tmp_path):
    given = load_preset("half-hour", ["data.weights=[0.25,0.75]"], data=["a", "b"], validation=["c"])
    assert given.run.data.weights == [0.25, 0.75]
    (tmp_path / "run.yaml").write_text(to_yaml(given.run))
    assert load_preset(str(tmp_path / "run.yaml")).run.data.weights == [0.25, 0.75]
    assert load_preset(str(tmp_path / "run.yaml"), data=["d"]).run.data.weights == []


@pytest.mark.parametrize(("batch", "shares", "rows"), [
    (56, (0.5, 0.1, 0.25), [28, 6, 14, 8]), (64, (0.7,), [45, 19]), (16, (0.25, 0.0, 0.0), [4, 0, 0, 12]),
    (4, (0.5, 0.15, 0.25), [2, 1, 1, 0]), (3, (0.5, 0.25, 0.25), [1, 1, 1, 0]),
])  # fmt: skip
def test_rows_of_the_presets(batch, shares, rows):
    assert list(rows_by_share(batch, dict(enumerate(shares))).values()) == rows


@pytest.mark.parametrize(("label", "repeat"), [(0.45, 0.25), (0.0, 0.75), (0.6, 0.0)])
def test_shares_of_a_batch_add_up_to_at_most_one(label, repeat):
    def shares(needle):
        return [f"data.needle_share={needle}", f"data.label_share={label}", f"data.repeat_share={repeat}"]

    load_preset("half-hour", shares(1 - label - repeat), data=["text.txt"])
    with pytest.raises(InputError, match=r"data.needle_share \(0.5\), .*data.repeat_share .* add up to more than 1"):
        load_preset("half-hour", shares(0.5), data=["text.txt"])


@pytest.mark.parametrize("seeds", ["[]", "[1,1]"])
def test_seeds_must_differ(preset, seeds):
    with pytest.raises(InputError, match="--seeds must be different whole numbers"):
        load_preset(preset(), [f"compare.seeds={seeds}"])


@pytest.mark.parametrize("seed", [-(1 << 63), (1 << 64) - 1])
def test_seeds_have_64_bits(preset, seed):
    torch.manual_seed(seed)
    loaded = load_preset(preset(), [f"training.seed={seed}", f"compare.seeds=[{seed}]"])
    assert [loaded.run.training.seed] == loaded.compare.seeds == [seed]
    beyond = seed + (1 if seed > 0 else -1)
    with pytest.raises(InputError, match=rf"training\.seed must lie between -\d+ and \d+, got {beyond}$"):
        load_preset(preset(), [f"training.seed={beyond}"])
    with pytest.raises(InputError, match=r"--seeds must lie between -\d+ and \d+, got"):
        load_preset(preset(), [f"compare.seeds=[3, {beyond}]"])


def test_longer_evaluation_needs_longer_positions(preset):
    with pytest.raises(InputError, match=r"model\.max_position_embeddings \(20\) is shorter"):
        load_preset(preset(), ["model.max_position_embeddings=20", "evaluation.lengths=[16,21]"])


def test_section_without_keys_is_refused_by_its_name(preset):
    for section in ("compare", "evaluation", "model"):
        with pytest.raises(InputError, match=section):
            load_preset(preset(**{section: []}), [f"{section}.seeds=[1]"])


def test_unknown_preset_names_the_nearest():
    with pytest.raises(InputError, match="--preset deemo: unknown preset; did you mean 'demo'"):
        load_preset("deemo")
    with pytest.raises(InputError, match=r"preset deemo\.yaml: there is no such file"):
        load_preset("deemo.yaml")


def test_every_model_setting_is_an_argument_of_the_configuration():
    own = {field.name for field in dataclasses.fields(ModelSettings)}
    # one is kept in rope_parameters; the other chooses
    assert {*unknown_fields(AntiphaseConfig, own)} == {"partial_rotary_factor", "kind"}
    assert {"hidden_size", "attention_type", *BLOCK} <= own


def test_defaults_of_the_model_are_those_of_the_configuration():
    arguments = inspect.signature(AntiphaseConfig.__init__).parameters
    for field in dataclasses.fields(ModelSettings):
        if field.name in {"attention_type", "head_dim", "num_key_value_heads", "rms_norm_eps", "head_norm_eps"}:
            assert field.default == arguments[field.name].default, field.name


positive = st.floats(min_value=1e-300, max_value=1e300)
words = st.text(max_size=20)


@settings(max_examples=25, deadline=None)
@given(
    description=words,
    paths=st.lists(words, max_size=3),
    field=st.none() | words,
    rate=positive,
    theta=positive,
    steps=st.integers(1, 10**12),
    seed=st.integers(-(2**63), 2**64 - 1),
    share=st.integers(0, 64).map(lambda rows: rows / 64),  # of a batch of 64: whole sequences
    depths=st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=3, unique=True),
    flag=st.booleans(),
)
def test_settings_come_back_from_yaml_as_they_were(
    tmp_path_factory, description, paths, field, rate, theta, steps, seed, share, depths, flag
):
    run = RunSettings(
        description=description, model=ModelSettings(**REQUIRED["model"], rope_theta=theta),
        data=DataSettings(
            source="text" if paths else "synthetic", sequence_length=16, paths=paths, text_field=field,
            needle_share=share,
        ),
        training=TrainingSettings(steps=steps, learning_rate=rate, seed=seed, tensorboard=flag),
        evaluation=EvaluationSettings(depths=depths),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("run") / "run.yaml"
    path.write_bytes(to_yaml(run).encode())
    assert load_preset(str(path)).run == run


def taken_or_refused_in_one_sentence(path, field, value):
    section, _, name = field.partition(".")
    tree = {**REQUIRED, section: {**REQUIRED.get(section, {}), name: value}}
    path.write_bytes(yaml.safe_dump(tree).encode())
    try:
        loaded = load_preset(str(path))
    except InputError as error:
        message = str(error)
    else:
        message = ""
        found = getattr(loaded.compare if section == "compare" else getattr(loaded.run, section), name)
        assert not (isinstance(found, float) and not math.isfinite(found))
    assert not message or name in message


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_takes_or_refuses_every_kind_of_value_in_one_sentence(tmp_path, field):
    for value in (None, True, 0, -1, 1.5, math.nan, math.inf, "", "no such value", [], ["a"], [[]], {}, {"a": 1}):
        taken_or_refused_in_one_sentence(tmp_path / "any.yaml", field, value)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_arms_own_setting_wins_over_a_run_wide_one_in_any_order(preset, swapped):
    overrides = ["compare.arms.softmax.training.learning_rate=2e-3", "training.learning_rate=5e-3"]
    loaded = load_preset(preset(), overrides[::-1] if swapped else overrides)
    rates = {
        arm: arm_run(loaded.run, loaded.compare, arm, seed=0).training.learning_rate for arm in loaded.compare.arms
    }
    assert rates == {"softmax": 2e-3, "differential": 5e-3}


@pytest.mark.parametrize(("overrides", "told"), [
    (["model.attention_type=differential_v2"], "would change nothing, because every arm has its own"),
    (["model.kind=lstm"], "leaves the arms softmax and differential equal"),
    (["compare.arms.softmax.training.learning_rate=2e-3", "compare.arms.softmax.training.learning_rate=8e-3",
      "model.attention_type=differential"], "lets the arm softmax train differential attention"),
    (["training.seed=99"], "takes its seeds from --seeds"),
])  # fmt: skip
def test_what_no_arm_would_follow_is_refused(preset, overrides, told):
    loaded = load_preset(preset(), overrides)
    with pytest.raises(InputError, match=told):
        check_followed(loaded, overrides)
    check_followed(load_preset(preset(), ["model.hidden_size=32"]), ["model.hidden_size=32"])


@pytest.mark.parametrize(("field", "value", "override"), [
    ("data", ["a.txt"], "data.paths=[b.txt]"), ("validation", ["a.txt"], "data.validation=[b.txt]"),
    ("device", "cpu", "training.device=cuda"), ("seeds", [1], "compare.seeds=[2]"), ("seed", 0, "training.seed=1"),
])  # fmt: skip
def test_what_a_flag_of_its_own_says_is_not_set_too(preset, field, value, override):
    kind = TrainSettings if field == "seed" else ComparisonSettings
    given = kind(preset=str(preset()), settings=[override], **{field: value})
    key = override.partition("=")[0]
    with pytest.raises(InputError, match=f"--set {key} and {field} say the same; give one of them"):
        given.chosen_preset()
