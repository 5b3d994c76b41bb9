"""What is said before training begins, and how much there is to train."""

import pytest

from antiphase.lab.studies.ablations import AblationsSettings
from antiphase.lab.studies.ablations.measure import plan as plan_ablations
from antiphase.lab.studies.scaling import ScalingSettings
from antiphase.lab.studies.scaling.measure import plan as plan_scaling
from antiphase.lab.studies.tune import TuneSettings
from antiphase.lab.studies.tune.measure import plan as plan_tune


def test_a_schedule_without_decay_is_told(antiphase, tiny_preset):
    words = f"train --preset {tiny_preset.name} --set training.steps=2 --set training.warmup_steps"
    code, out, _ = antiphase(f"{words}=8 --output a")
    assert code == 0
    assert "the learning rate only rises, to 25 % of its peak, because training.warmup_steps (8)" in " ".join(
        out.split()
    )
    assert "only rises" not in antiphase(f"{words}=1 --output b")[1]


@pytest.mark.parametrize(
    ("plan", "settings", "runs", "steps"),
    [
        (plan_tune, TuneSettings(preset="demo", learning_rates=(1e-3, 2e-3), seeds=(0, 1, 2)), 12, 12 * 800),
        (plan_scaling, ScalingSettings(preset="demo", widths=(64, 128), steps=(10, 20), seeds=(0,)), 8, 4 * 815),
        (plan_ablations, AblationsSettings(preset="demo", rows=("softmax", "v2"), seeds=(0,)), 3, 3 * 800),
    ],
    ids=["tune", "scaling", "ablations"],
)
def test_a_study_knows_all_of_its_runs(tmp_path, plan, settings, runs, steps):
    """For one total of progress."""
    found = plan(settings, tmp_path)
    assert (found.runs, found.tokens) == (runs, steps * 64 * 56)
    assert not list(tmp_path.iterdir())
