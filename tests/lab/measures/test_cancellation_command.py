"""``antiphase evaluate cancellation``: from words to the record, trained and untrained, and what it refuses."""

import pytest

from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record, finite
from antiphase.lab.measures.cancellation.measure import cancellation
from antiphase.lab.measures.held_out import data_for
from antiphase.lab.measures.running import settings_of
from antiphase.lab.pages import figures, summary
from antiphase.lab.scoring.loading import load_model, untrained
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run


@pytest.mark.parametrize("kind", ["differential", pytest.param("softmax", marks=pytest.mark.slow)])
def test_a_run_is_measured_beside_itself_untrained(tiny_preset, tmp_path, antiphase, refused, kind):
    preset = load_preset(str(tiny_preset), [f"model.attention_type={kind}", "training.steps=3"])
    train_run(preset.run, tmp_path / "run", resume=False)
    code, _, said = antiphase("evaluate cancellation run --output c --samples 6 --seed 4")
    assert code == 0, said
    record = Record.load(tmp_path / "c")
    assert record.kind == "evaluate-cancellation"
    assert (record.values["attention_type"], record.values["samples"], record.seeds) == (kind, 6, [4])
    rows = [(row["trained"], row["layer"]) for row in record.values["layers"]]
    assert rows == [(trained, layer) for trained in (True, False) for layer in (0, 1, "all")]
    assert len(record.values["heads"]) == 2 * 2 * (2 if kind == "differential" else 4)
    assert (record.values["layers"][0]["cancelled"] is None) == (kind == "softmax")
    loaded = load_model(str(tmp_path / "run"))
    batch = (
        data_for(loaded, settings_of("cancellation", name="run"), tmp_path / "again", print)
        .task()
        .sample(6, keyed_generator(4, "cancellation"))
    )
    expected = finite(cancellation(untrained(loaded.model, 4), batch, trained=False).heads)
    found = [row for row in record.values["heads"] if not row["trained"]]
    for one, other in zip(found, expected, strict=True):
        numbers = {name: value for name, value in other.items() if value is not None}
        assert {name: one[name] for name in numbers} == pytest.approx(numbers, rel=1e-4)
        assert all(one[name] is None for name in other.keys() - numbers.keys())
    trained = [{**row, "trained": False} for row in record.values["heads"] if row["trained"]]
    assert found != trained
    assert [table.title for table in summary.main_tables(record)] == ["Common mode", "Sparsity and noise of the maps"]
    assert len(figures.figures_of(record)["cancellation"].axes) == 3
    refused("not empty", "evaluate cancellation run --output c")
