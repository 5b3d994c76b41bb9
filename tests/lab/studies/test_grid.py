"""The runs of a study: which there are, in which order, under which names, and with which settings."""

import shutil
from dataclasses import replace

import pytest

from antiphase.base.errors import InputError, Interrupted
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies import grid
from antiphase.lab.studies.ablations.measure import ablations
from antiphase.lab.studies.ablations.rows import ablation_preset
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.grid import Grid, Variant
from antiphase.lab.studies.scaling.measure import scaling
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.studies.tune.measure import tune


@pytest.fixture
def preset(tiny_preset):
    return load_preset(
        str(tiny_preset),
        ["compare.seeds=[3,1]", "compare.arms.softmax.training.learning_rate=7e-3", "training.steps=20"],
    )


def longer(steps):
    def change(run):
        return replace(run, training=replace(run.training, steps=steps))

    return Variant(f"steps{steps}", change, change)


def test_runs_are_named_by_arm_variant_and_seed_and_start_seed_by_seed(preset, tmp_path):
    assert [job.name for job in Grid(preset, tmp_path).jobs] == [
        "softmax-seed3", "differential-seed3", "softmax-seed1", "differential-seed1",
    ]  # fmt: skip
    several = Grid(preset, tmp_path, [longer(5), longer(9), longer(5)])
    assert [job.name for job in several.jobs[:5]] == [
        "softmax-steps5-seed3", "differential-steps5-seed3", "softmax-steps5-seed1", "differential-steps5-seed1",
        "softmax-steps9-seed3",
    ]  # fmt: skip
    assert len(several.jobs) == len({job.name for job in several.jobs}) == 8  # a run that two variants have is one run
    for job in several.jobs:
        assert job.name == several.name(longer(job.settings.training.steps), job.arm, job.seed)
        assert job.settings.training.seed == job.seed


def test_an_arms_own_settings_stand_between_those_of_a_variant(preset, tmp_path):
    def rate(value):
        return lambda run: replace(run, training=replace(run.training, learning_rate=value))

    def rates(variant):
        return {job.arm: job.settings.training.learning_rate for job in Grid(preset, tmp_path, [variant]).jobs}

    assert rates(Variant("x", before=rate(1e-4))) == {"softmax": 7e-3, "differential": 1e-4}
    assert rates(Variant("x", after=rate(1e-4))) == {"softmax": 1e-4, "differential": 1e-4}


NAMES = {
    "compare": "differential-seed1",
    "tune": "differential-rate0.002-seed1",
    "scaling": "differential-width32-steps20-seed1",
    "ablations": "no-norm-seed1",
}
STUDIES = {
    "compare": compare,
    "tune": lambda preset, output, **more: tune(preset, output, learning_rates=[1e-3, 2e-3], **more),
    "scaling": lambda preset, output, **more: scaling(preset, output, widths=[16, 32], steps=[20, 10], **more),
    "ablations": lambda preset, output, **more: ablations(ablation_preset(preset, ["no-norm"])[0], output, **more),
}


@pytest.fixture
def started(monkeypatch):
    """Runs that studies would train, in place of which they stop."""
    found = []

    def stop(jobs, output, **options):
        found.extend(jobs)
        raise Interrupted("stopped")

    monkeypatch.setattr(grid, "run_jobs", stop)
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_goes_on_with_the_same_runs_and_no_others(preset, tmp_path, started, name):
    study = STUDIES[name]
    with pytest.raises(Interrupted):
        study(preset, tmp_path / "out")
    first = [job.name for job in started]
    assert NAMES[name] in first
    kept = (tmp_path / "out" / "compare.yaml").read_bytes()
    with pytest.raises(InputError, match="already contains a study; add resume to continue it, or choose another fol"):
        study(preset, tmp_path / "out")
    started.clear()
    with pytest.raises(Interrupted):
        study(preset, tmp_path / "out", resume=True)
    assert [job.name for job in started] == first
    other = replace(preset, run=replace(preset.run, training=replace(preset.run.training, batch_size=3)))
    with pytest.raises(
        InputError, match=r"holds a study with other settings \(run\.training\.batch_size\); choose anot"
    ):
        study(other, tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "compare.yaml").read_bytes() == kept


def test_a_study_goes_on_from_the_weights_that_it_began_from(preset, tmp_path, started):
    """The folder may move; other weights or none are refused, because the end measures them beside what was trained."""
    softmax = replace(preset.run, model=replace(preset.run.model, attention_type="softmax"))
    for seed, name in enumerate(("first", "other")):
        settings = replace(softmax, training=replace(softmax.training, seed=seed, steps=1, decay_steps=None))
        train_run(settings, tmp_path / name, resume=False)

    def study(name):
        words = [f"compare.arms.softmax.training.start_from={tmp_path / name}"]
        compare(load_preset(str(tmp_path / "tiny.yaml"), words), tmp_path / "out", resume=(tmp_path / "out").exists())

    with pytest.raises(Interrupted):
        study("first")
    (tmp_path / "first").rename(tmp_path / "moved")
    with pytest.raises(Interrupted):
        study("moved")
    with pytest.raises(InputError, match=r"out began from other weights than training\.start_from holds now"):
        study("other")
    for job in started:
        (tmp_path / "out" / job.name / "checkpoint" / "step-00000001").mkdir(parents=True, exist_ok=True)
    with pytest.raises(InputError, match=r"out began from other weights than training\.start_from holds now"):
        study("other")
    shutil.rmtree(tmp_path / "moved")
    with pytest.raises(InputError, match=r"training\.start_from \S+moved"):
        study("moved")


def test_a_threshold_that_guessing_reaches_is_refused(tiny_preset, tmp_path):
    preset = load_preset(str(tiny_preset), ["data.needles=2"])
    for study in (compare, STUDIES["tune"]):
        with pytest.raises(InputError, match=r"^compare\.threshold \(0\.5\) is what guessing reaches .* to 0\.75$"):
            study(preset, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_the_demo_on_text_has_a_threshold_above_guessing(tmp_path):
    (tmp_path / "a.txt").write_text("words")
    preset = load_preset("demo", data=[str(tmp_path / "a.txt")])
    assert preset.compare.threshold > 1 / preset.run.data.needles


def test_sizes_that_no_run_can_have_are_refused_before_anything_is_written(preset, tmp_path):
    with pytest.raises(InputError, match="--widths 17 is not an even number of heads"):
        scaling(preset, tmp_path / "out", widths=[17], steps=[])
    assert not (tmp_path / "out").exists()


def test_text_is_read_from_a_cache_that_is_there_or_from_the_studys_own(tmp_path, preset):
    data = replace(preset.run.data, source="text", paths=["a.txt"])
    tokens, other = tmp_path / "tokens", tmp_path / "other"
    for folder, file in ((tokens, ".a.lock"), (other, "letter.txt")):
        folder.mkdir()
        (folder / file).touch()
    for cache, used in ((None, None), (tokens, tokens), (tmp_path / "no", None), (other, None)):
        given = None if cache is None else str(cache)
        chosen = replace(preset, run=replace(preset.run, data=replace(data, cache=given)))
        grid = Grid(chosen, tmp_path / "out")
        jobs, told = grid.jobs, []
        with (
            pytest.raises(InputError, match=r"a\.txt: there is no such file"),
            grid.held(resume=False, say=told.append),
        ):
            """The text is missing."""
        assert any("is no folder of tokens, so" in line for line in told) == (cache is not None and used is None)
        assert {job.settings.data.cache for job in jobs} == {str(used or tmp_path / "out" / "tokens")}
