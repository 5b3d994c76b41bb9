"""Ablations and rivals as rows: fair in data, equal in parameters where they should be, and what is told of them."""

import json
import re

import pytest

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.pages import figures, summary
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.scoring.perplexity import perplexity
from antiphase.lab.scoring.recall import recall_losses, recall_slices
from antiphase.lab.settings.presets import arm_run, load_preset
from antiphase.lab.studies.ablations.rows import ABLATIONS, TABLE_6, ablation_preset, parameter_count
from antiphase.lab.text.prepare import prepare

EIGHT_MAPS = ["model.num_attention_heads=8", "model.hidden_size=32"]


def runs_of(preset):
    return {arm: arm_run(preset.run, preset.compare, arm, seed=0) for arm in preset.compare.arms}


def test_the_paper_s_rows_are_trained_and_rivals_on_request(tiny_preset):
    chosen, left_out = ablation_preset(load_preset(str(tiny_preset), EIGHT_MAPS))
    assert tuple(chosen.compare.arms) == TABLE_6
    assert not left_out
    chosen, left_out = ablation_preset(load_preset(str(tiny_preset), EIGHT_MAPS), rivals=True)
    assert list(chosen.compare.arms) == list(ABLATIONS)
    assert not left_out


def test_rows_of_the_paper_have_the_same_parameters_but_for_lambda_and_norms(tiny_preset):
    runs = runs_of(ablation_preset(load_preset(str(tiny_preset), EIGHT_MAPS))[0])
    counts = {arm: parameter_count(run) for arm, run in runs.items()}
    assert counts["softmax-half-heads"] == counts["softmax"]
    assert max(counts.values()) - counts["softmax"] == 2 * (4 * 4 + 2 * 4)  # four vectors and a norm in each layer
    assert counts["no-norm"] - counts["softmax"] == 2 * 4 * 4


@pytest.mark.parametrize("sizes", [EIGHT_MAPS, [*EIGHT_MAPS, "model.intermediate_size=50"]])
def test_rivals_have_the_parameters_of_what_they_are_compared_with(tiny_preset, sizes):
    preset = ablation_preset(load_preset(str(tiny_preset), sizes), rivals=True)[0]
    runs = runs_of(preset)
    counts = {arm: parameter_count(run) for arm, run in runs.items()}
    channel = 2 * 3 * 32  # of the MLPs of both layers
    for arm, ablation in ABLATIONS.items():
        if ablation.equal:
            assert abs(counts[arm] - counts[ablation.against]) <= channel / 2, arm
            assert (runs[arm].model.intermediate_size == preset.run.model.intermediate_size) == (arm == "sink-logits")
    heads = {arm: runs[arm].model.num_attention_heads for arm in ("v2", "softmax-1h", "softmax-1.5h", "softmax-2h")}
    assert heads == {"v2": 8, "softmax-1h": 4, "softmax-1.5h": 6, "softmax-2h": 8}
    assert {runs[arm].model.num_key_value_heads for arm in heads} == {2}
    assert {runs[arm].model.head_dim for arm in heads} == {4}
    assert abs(counts["v2"] - counts["softmax-1.5h"]) == 2 * 32 * 4  # λ's projection alone


def test_a_row_trains_with_the_rate_of_its_kind(tiny_preset):
    preset = load_preset(str(tiny_preset), [
        "compare.arms.softmax.training.learning_rate=3e-3", "compare.arms.differential.training.learning_rate=4e-3",
    ])  # fmt: skip
    rates = {arm: run.training.learning_rate for arm, run in runs_of(ablation_preset(preset)[0]).items()}
    assert rates == {arm: 3e-3 if arm.startswith("softmax") else 4e-3 for arm in TABLE_6}
    named = runs_of(ablation_preset(load_preset("sooner"), ["no-norm"])[0])
    assert {arm: run.training.learning_rate for arm, run in named.items()} == {
        "softmax": 4e-3, "differential": 8e-3, "no-norm": 8e-3
    }  # fmt: skip


def test_rows_that_the_sizes_cannot_have_are_left_out_with_a_reason_or_refused_by_name(tiny_preset):
    preset = load_preset(str(tiny_preset))  # four maps
    chosen, left_out = ablation_preset(preset, rivals=True)
    assert list(left_out) == ["softmax-1.5h"]
    assert "3 softmax heads cannot share the 2 keys" in left_out["softmax-1.5h"]
    assert "softmax-1.5h" not in chosen.compare.arms
    for names, said in (
        (["softmax-1.5h"], "--rows softmax-1.5h: 3 softmax heads cannot share"),
        (["gatd"], "--rows names 'gatd'; did you mean 'gated'"),
        (["softmax"], "--rows leaves nothing to compare"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            ablation_preset(preset, names)
    with pytest.raises(InputError, match=r"model\.kind must be transformer, got lstm"):
        ablation_preset(load_preset(str(tiny_preset), ["model.kind=lstm"]))


def test_rows_take_the_settings_of_the_presets_arms(tiny_preset):
    """Those of the model, too; what a row is about is its own."""
    arm = "compare.arms.differential"
    given = [f"{arm}.model.head_norm_init=0.5", f"{arm}.model.lambda_init=0.3", f"{arm}.training.learning_rate=1e-4"]
    chosen, _ = ablation_preset(load_preset(str(tiny_preset), given), ["differential", "lambda-init-0.5"])
    runs = {name: arm_run(chosen.run, chosen.compare, name, seed=0) for name in chosen.compare.arms}
    for name, first in (("differential", 0.3), ("lambda-init-0.5", 0.5)):
        assert (runs[name].model.head_norm_init, runs[name].model.lambda_init) == (0.5, first)
        assert runs[name].training.learning_rate == 1e-4
    assert runs["softmax"].model.head_norm_init == load_preset(str(tiny_preset)).run.model.head_norm_init


def test_a_named_row_brings_what_it_departs_from(tiny_preset):
    chosen, _ = ablation_preset(load_preset(str(tiny_preset)), ["lambda-head"])
    assert list(chosen.compare.arms) == ["softmax", "differential", "lambda-head"]


@pytest.mark.slow
def test_rows_from_the_command_line(tiny_preset, generated_text, tmp_path, antiphase, refused):
    (tmp_path / "text.txt").write_text(generated_text, encoding="utf-8")

    words = "ablations --preset tiny.yaml --output a --seeds 0,1 --data text.txt --set data.sequence_length=192"
    words += " --set data.needles=1 --rows no-norm --frequent 40"
    assert antiphase(words)[0] == 0
    record = Record.load(tmp_path / "a")
    values = record.values
    assert values["arms"] == ["softmax", "differential", "no-norm"]
    rows = {row["arm"]: row for row in values["rows"]}
    assert rows["no-norm"]["paper"] == {"loss": 3.122, "ar_hit": 0.911, "others": 3.309}
    assert rows["softmax"]["against"] is None
    by_arm = {(run["arm"], run["seed"]): run for run in values["runs"]}
    found = rows["no-norm"]["ar_hit_difference"]["values"]
    assert found == [by_arm["no-norm", seed]["ar_hit"] - by_arm["differential", seed]["ar_hit"] for seed in (0, 1)]

    model = load_model(str(tmp_path / "a" / "no-norm-seed1"))
    data = prepare(model.settings.data, tmp_path / "a" / "tokens")
    batch = data.validation(8)
    slices = recall_slices(batch, data.training_text.tokens, frequent=40)
    assert values["slices"] == slices.describe()
    assert 0 < values["slices"]["left_out"] < values["slices"]["repeated"]
    own = by_arm["no-norm", 1]
    assert {name: own[name] for name in ("loss", "ar_hit", "others")} == recall_losses(model.model, slices)
    assert own["loss"] == pytest.approx(perplexity(model.model, batch)["loss"], rel=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "a" / "no-norm-seed1" / "metrics.jsonl").read_text().splitlines()]
    assert own["gradient_norms"][1] == pytest.approx(sum(line["gradient_norms"][1] for line in lines) / len(lines))

    titles = [table.title for table in summary.main_tables(record)]
    assert titles == ["Ablations and rivals", "Differences by slice", "Gradient norm by layer"]
    assert 0 < values["slices"]["hits"] < 200  # too few for a panel
    assert len(figures.figures_of(record)["ablations"].axes) == 2
    assert len(figures.figures_of(record)["gradient-norms"].axes) == 1
    refused("add --resume", words)
    assert antiphase(words, "--resume")[0] == 0
    assert Record.load(tmp_path / "a").values == values
