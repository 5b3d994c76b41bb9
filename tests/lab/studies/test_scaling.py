"""Scaling: ladders of sizes and of tokens, each run whole and by itself, and what is told of them."""

import json
import sys
from dataclasses import replace
from itertools import chain

import pytest

from antiphase import cli
from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.pages import figures, summary
from antiphase.lab.settings.presets import TrainingSettings, for_sizes, load_preset
from antiphase.lab.studies.grid import Grid
from antiphase.lab.studies.reproduce import ReproduceSettings, parts
from antiphase.lab.studies.reproduce.scales import SCALES
from antiphase.lab.studies.scaling import ScaledRun, Scaling, measure
from antiphase.lab.studies.scaling.laws import ends_on_a_bound, seed_laws
from antiphase.lab.studies.scaling.measure import _law, ladder_of, resized, scaling, shortened
from antiphase.lab.studies.scaling.presentation import loss_laws, losses
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.optimizer import learning_rate
from antiphase.lab.training.run_model import sized_config
from support.records import values as values_of


@pytest.mark.parametrize(("width", "layers", "heads", "mlp"), [(8, 1, 2, 16), (16, 2, 4, 24), (32, 4, 8, 48)])
def test_a_width_takes_the_rest_along(width, layers, heads, mlp, tiny_preset):
    model = resized(load_preset(str(tiny_preset)).run, width).model
    assert (model.hidden_size, model.num_hidden_layers, model.num_attention_heads) == (width, layers, heads)
    assert (model.intermediate_size, model.head_dim) == (mlp, 4)


def test_its_own_width_leaves_a_run_as_it_is(tiny_preset):
    run = load_preset(str(tiny_preset), ["model.intermediate_size=100"]).run
    own = resized(run, run.model.hidden_size)
    assert own == replace(run, model=replace(run.model, head_dim=4))


@pytest.mark.parametrize(("steps", "warmup"), [(2000, 30), (300, 30), (160, 16), (20, 2), (5, 1)])
def test_a_short_run_has_a_decay_of_its_own_and_warms_up_for_a_tenth_at_most(steps, warmup):
    settings = shortened(TrainingSettings(steps=2000, decay_steps=4000, warmup_steps=30), steps)
    assert (settings.steps, settings.decay_steps, settings.warmup_steps) == (steps, None, warmup)
    assert learning_rate(steps - 1, settings) < 0.4 * settings.learning_rate


def test_shared_keys_stay_shared(tiny_preset):
    run = load_preset(str(tiny_preset), ["model.num_key_value_heads=2"]).run
    assert resized(run, 32).model.num_key_value_heads == 4
    with pytest.raises(InputError, match="--widths 24: its 6 heads cannot share keys 2 by 2"):
        resized(run, 24)


def test_named_arms_are_made_anew_at_every_width(tiny_preset, tmp_path):
    preset = load_preset(
        str(tiny_preset), ["compare.arms=[S, SW, V1+, G]", "compare.arms.SW.training.learning_rate=5e-3"]
    )
    variants = measure._ladders(preset.run, [8, 32], [])["size"]
    jobs = {job.name: job.settings for job in Grid(preset, tmp_path, variants).jobs if job.seed == 0}
    for width, heads in ((8, 2), (32, 8)):
        models = {arm: jobs[f"{arm}-width{width}-steps20-seed0"].model for arm in preset.compare.arms}
        assert (models["SW"].num_attention_heads, models["SW"].head_dim) == (heads // 2, 8)
        assert models["V1+"].num_key_value_heads == models["V1+"].num_attention_heads == heads
        assert models["G"].intermediate_size < models["S"].intermediate_size
    assert jobs["SW-width32-steps20-seed0"].training.learning_rate == 5e-3
    one_key = ["model.num_key_value_heads=1", "compare.arms.SW={model.attention_type: softmax}"]
    other = load_preset(str(tiny_preset), one_key)
    wider = replace(other.run.model, hidden_size=32)
    assert for_sizes(other.compare, other.run.model, wider) == other.compare  # no such model has the arm of this name


def test_what_an_arm_says_itself_stays_so_at_every_width(tiny_preset):
    other = "V1={model.attention_type: softmax, model.num_key_value_heads: 4}"
    own = [f"compare.arms.{one}" for one in ("SW.model.head_dim=16", "SW.model.rope_theta=500", other)]
    preset = load_preset(str(tiny_preset), own)
    wider = replace(preset.run.model, hidden_size=32, num_attention_heads=8)
    sized = for_sizes(preset.compare, preset.run.model, wider).arms
    made = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "rope_theta": 500}
    assert {name: sized["SW"][f"model.{name}"] for name in made} == made
    assert sized["V1"] == preset.compare.arms["V1"]


@pytest.mark.parametrize("scale", ["tiny", "small", "medium"])
def test_ladders_of_a_reproduction_can_be_trained(scale, tmp_path, monkeypatch):
    """Each of their models is one; the arms are those that are judged."""
    book = tmp_path / "book.txt"
    book.write_text("A text.")
    preset, made = load_preset(SCALES[scale].preset, data=[str(book)]), {}
    monkeypatch.setattr(parts, "scaling", lambda preset, folder, **ladders: made.update(ladders, preset=preset))
    settings = ReproduceSettings(scale=scale, data=[str(book)])
    made_of = parts.PaperParts(settings, preset, tmp_path, print, lambda *_: None, LOCAL)
    made_of.folders["scaling"] = []
    made_of._study("scaling")
    variants = [*chain(*measure._ladders(made["preset"].run, made["widths"], made["steps"]).values())]
    jobs = Grid(made["preset"], tmp_path, variants).jobs
    assert {job.arm for job in jobs} == {"softmax", "differential"}
    for job in jobs:
        assert sized_config(job.settings, vocab_size=300).hidden_size == job.settings.model.hidden_size


def test_a_width_that_an_arm_cannot_have_is_refused_before_anything_is_written(tiny_preset, tmp_path):
    preset = load_preset(
        str(tiny_preset), ["compare.arms.own={model.attention_type: softmax, model.num_key_value_heads: 4}"]
    )
    with pytest.raises(InputError, match=r"num_key_value_heads \(4\)"):
        scaling(preset, tmp_path / "new", widths=[16, 8], steps=[])
    assert not (tmp_path / "new").exists()


def test_bad_ladders_are_named(tiny_preset, tmp_path):
    preset = load_preset(str(tiny_preset))
    for widths, steps, said in (
        ([], [], "--widths or --steps is missing"),
        ([8, 8], [], "--widths must be different whole numbers"),
        ([], [0], "--steps must be different whole numbers"),
        ([10], [], "--widths 10 is not an even number of heads of width 4; give multiples of 8"),
    ):
        with pytest.raises(InputError, match=said):
            scaling(preset, tmp_path / "new", widths=widths, steps=steps)
        assert not (tmp_path / "new").exists()


def ladder(*losses):
    """Runs with these losses, softmax and differential, by tokens, and what is told of them."""
    runs = [
        ScaledRun(
            arm=arm, seed=0, tokens=tokens, loss=loss, width=16, layers=1, steps=tokens // 10, parameters=100,
            non_embedding_parameters=80, accuracy=None,
        )
        for arm, own in zip(("softmax", "differential"), losses, strict=True)
        for tokens, loss in zip((1_000_000, 2_000_000, 4_000_000, 8_000_000), own, strict=True)
    ]  # fmt: skip
    return runs, ladder_of("tokens", runs, ["softmax", "differential"], [0])


@pytest.mark.parametrize(
    ("last", "arms"), [((2.0, 1.9), ""), ((2.4, 1.9), "softmax"), ((2.4, 2.8), "softmax and differential")]
)
def test_needs_for_equal_loss_are_shown_only_where_losses_always_fall(last, arms):
    _, found = ladder((3.0, 2.5, 2.2, last[0]), (3.1, 2.6, 2.2, last[1]))
    assert set(found.laws) == {"softmax", "differential"}
    assert bool(found.equal_loss) is not bool(arms)
    assert found.why_no_equal_loss == (f"the loss of {arms} does not fall with every step in tokens" if arms else None)


def test_a_diverged_run_leaves_points_and_no_law():
    runs, found = ladder((3.0, 2.5, 2.2, 2.0), (3.0, 2.6, 2.3, None))
    assert (found.laws, found.equal_loss) == ({}, {})
    assert found.why_no_law == "a model's loss is not finite"
    record = Scaling(["softmax", "differential"], runs, [found]).record()
    assert loss_laws(record) is not None
    assert "a model's loss is not finite" in losses(record).note
    assert losses(record).text()[-1][-1] == "–"


def test_a_law_at_the_end_of_what_it_may_be_gives_no_equal_loss():
    _, found = ladder((3.0, 2.5, 2.2, 2.0), (3.0, 2.0, 1.999, 1.998))
    assert found.equal_loss == {}
    assert found.why_no_equal_loss == "no power law describes the loss of differential over tokens"


@pytest.mark.slow
def test_both_ladders_from_the_command_line(tiny_preset, tmp_path, monkeypatch, capsys):
    def run(*more):
        monkeypatch.setattr(sys, "argv", [
            "antiphase", "scaling", "--preset", str(tiny_preset), "--output", str(tmp_path / "s"), "--seeds", "0",
            "--widths", "8,16,24,32", "--steps", "10,20", "--set", "model.vocab_size=500", *more,
        ])  # fmt: skip
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code or 0

    assert run() == 0
    values = values_of(tmp_path / "s")
    assert len(values["runs"]) == 2 * (4 + 1)  # width 16 with 20 steps stands on both ladders
    ladders = {ladder["axis"]: ladder for ladder in values["ladders"]}
    assert set(ladders) == {"size", "size without embeddings", "tokens"}
    assert set(ladders["size"]["laws"]) == {"softmax", "differential"}
    assert ladders["tokens"]["laws"] == {}
    assert "at least 4" in ladders["tokens"]["why_no_law"]
    assert [point["x"] for point in ladders["tokens"]["points"]] == [10 * 6 * 25, 20 * 6 * 25] * 2
    for row in values["runs"]:
        folder = tmp_path / "s" / f"{row['arm']}-width{row['width']}-steps{row['steps']}-seed0"
        assert row["loss"] == values_of(folder)["final"]["loss"]
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        assert vocabulary == 500
        assert row["parameters"] - row["non_embedding_parameters"] == vocabulary * row["width"]
    record = Record.load(tmp_path / "s")
    (table,) = [table for table in summary.main_tables(record) if table.title == "Loss by size and by tokens"]
    assert "What equal loss takes is not shown over tokens: a law needs at least 4 sizes." in table.note
    assert len(figures.figures_of(record)["loss-laws"].axes) == 3
    assert run() == 2  # nothing is overwritten
    assert "add --resume" in capsys.readouterr().err
    assert run("--resume") == 0
    assert values_of(tmp_path / "s") == values


def test_a_floor_at_its_bound_has_no_interval():
    """Every seed's law ends at 0 there, so the spread of the laws is not that of the losses."""
    straight = {x: [10 * x**-0.1 * (1 + 0.01 * seed) for seed in range(3)] for x in (1e5, 3e5, 1e6, 3e6)}
    assert _law(straight).intervals == {"floor": None, "exponent": None}
    bent = {x: [2 + 0.05 * seed + 10 * x**-0.2 for seed in range(3)] for x in (1e5, 3e5, 1e6, 3e6)}
    low, high = _law(bent).intervals["floor"]
    assert low < 2.05 < high
    steep = {1e5: [3.0, 3.01, 3.02], 3e5: [2.6, 2.61, 2.62], 1e6: [2.55, 2.56, 2.57], 3e6: [2.548, 2.558, 2.568]}
    assert all(ends_on_a_bound(law, steep.values()) and law.floor > 2 for law in seed_laws(steep))
    assert _law(steep).intervals == {"floor": None, "exponent": None}
