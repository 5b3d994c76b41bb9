"""What is told of a grid of learning rates besides its losses."""

import pytest

from antiphase.base.records import Record
from antiphase.lab.studies.tune import Rate, TuneSettings, presentation
from antiphase.lab.studies.tune.measure import BEFORE, best_rate, gradient_spikes, plan

CALM = [1.0, 1.2, 0.9] * 7


@pytest.mark.parametrize(("norms", "count"), [
    (CALM, 0),
    ([*CALM, 5.2], 1),
    ([*CALM, 4.8], 0),
    ([*CALM, 9.0, *CALM, 9.0], 2),
    ([*CALM, None], 1),  # a norm that is no number
    ([100.0, *CALM[: BEFORE - 2]], 0),  # nothing to compare with yet
    ([*[4.0 * 1.1**step for step in range(40)]], 0),  # growing is no spike
    ([None] * 25, 15),
    ([], 0),
])  # fmt: skip
def test_a_spike_stands_far_above_what_came_before(norms, count):
    assert gradient_spikes(norms) == count


@pytest.mark.parametrize(("on_text", "best"), [(True, 2e-3), (False, 4e-3)])
def test_the_primary_measure_chooses_the_rate(on_text, best):
    """On text, where few retrieval answers are right, the loss; the rate that diverged is never chosen."""
    rates = [
        Rate(arm="a", learning_rate=rate, seeds=2, accuracy=accuracy, accuracy_range=None, loss=loss, loss_range=None,
             passed=0, spikes=0, diverged=diverged)
        for rate, accuracy, loss, diverged in ((1e-3, 0.01, 3.0, 0), (2e-3, 0.01, 2.5, 0), (4e-3, 0.02, 2.9, 0),
                                               (8e-3, 0.5, 1.0, 1))
    ]  # fmt: skip
    assert best_rate("a", rates, on_text=on_text) == best


def test_a_best_rate_at_the_edge_of_its_grid_is_named():
    rows = [
        {"arm": arm, "learning_rate": rate, "seeds": 1, "accuracy": 0.5, "accuracy_range": None, "loss": loss,
         "loss_range": None, "passed": 0, "spikes": 0, "diverged": 0}
        for arm, losses in (("a", {1e-3: 2, 2e-3: 1, 4e-3: 3}), ("b", {1e-3: 3, 2e-3: 2, 4e-3: 1}))
        for rate, loss in losses.items()
    ]  # fmt: skip
    record = Record(kind="tune", values={"runs": [], "rates": rows, "chosen": {"a": 2e-3, "b": 4e-3}})
    note = presentation.rates(record).note
    assert "The best of b is at the edge of its rates" in note
    assert "The best of a " not in note


@pytest.mark.parametrize(("validation", "said"), [([], False), (["other.txt"], True)])
def test_choosing_on_the_validation_text_is_said(tmp_path, validation, said):
    """A comparison that reports its loss on the same text would report what it was tuned on."""
    for name in ("text.txt", "other.txt"):
        (tmp_path / name).write_text(f"Words of {name}.")
    settings = TuneSettings(
        learning_rates=[1e-3],
        preset="half-hour",
        data=[str(tmp_path / "text.txt")],
        validation=[str(tmp_path / name) for name in validation],
    )
    lines = plan(settings, tmp_path / "tune").announced
    assert any("chosen on the text of --validation" in line for line in lines) == said
