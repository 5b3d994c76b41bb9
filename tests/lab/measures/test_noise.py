"""``antiphase evaluate noise``: symbols beyond the trained length, text in any family, and what is refused."""

import pytest
from transformers import AutoConfig

from antiphase.base.records import Record
from antiphase.lab.measures.noise import Noise
from antiphase.lab.measures.noise.measure import noise_in_text
from antiphase.lab.pages import figures, summary
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run
from support.models import foreign_model

MAPS = {"softmax": {"softmax"}, "differential": {"first", "second", "difference"}}


@pytest.fixture
def runs(tmp_path, tiny_preset):
    for kind in MAPS:
        run = load_preset(str(tiny_preset), [f"model.attention_type={kind}", "training.steps=2"]).run
        train_run(run, tmp_path / kind, resume=False)


def test_models_of_the_task_are_measured_beyond_their_length(tmp_path, runs, antiphase, refused):
    words = "--samples 3 --resamples 4 --times 1,3"
    code, _, said = antiphase(f"evaluate noise differential --against softmax {words} --output out")
    assert code == 0, said
    record = Record.load(tmp_path / "out")
    found = Noise.read(record)
    assert AutoConfig.from_pretrained(tmp_path / "softmax").max_position_embeddings == 25
    assert [(row.arm, row.trained, row.length, row.part) for row in found.resampled] == [
        (arm, trained, length, part)
        for arm in ("differential", "softmax") for trained in (True, False) for length in (25, 75)
        for part in ("filler", "other_needles")
    ]  # fmt: skip
    assert {(row.contexts, row.copies) for row in found.resampled} == {(3, 4)}
    assert all(row.ratio is None or row.sd.value > 0 for row in found.resampled)
    forms = {arm: {row.change for row in found.changed if row.arm == arm} for arm in MAPS}
    assert forms == {"differential": {"hidden", "removed", "exchanged"}, "softmax": {"hidden"}}
    assert [row.layers for row in found.changed if row.change == "removed" and row.trained and row.length == 25] == [
        [0], [1], None,
    ]  # fmt: skip
    assert {arm: {row.map for row in found.allocation if row.arm == arm} for arm in MAPS} == MAPS
    for row in found.allocation:
        if row.map == "difference":
            parts = [
                one.spans["filler"].contribution for one in found.allocation
                if one.map in ("first", "second")
                and (one.arm, one.trained, one.length, one.layer) == (row.arm, row.trained, row.length, row.layer)
            ]  # fmt: skip
            assert sum(parts) == pytest.approx(row.spans["filler"].contribution, abs=1e-4)
    again, changes, layers = summary.main_tables(record)
    assert len(again.rows) == 16
    assert "softmax: no second map." in changes.note
    assert {row[3] for row in layers.rows} == {0, 1}
    assert len(figures.figures_of(record)["noise"].axes) == 2
    refused(
        "--second-map removed: --against softmax has no second map",
        f"evaluate noise differential --against softmax {words} --second-map removed --output new",
    )
    refused("--length takes one number, got 25, 50", "evaluate noise softmax --length 25,50 --output new")
    code, _, said = antiphase(f"evaluate noise differential {words} --times 1 --second-map exchanged --output new")
    assert code == 0, said
    assert {row.change for row in Noise.read(Record.load(tmp_path / "new")).changed} == {"hidden", "exchanged"}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "diffllama", "mistral"])
def test_models_of_other_families_are_measured_in_text(family, text_tokenizer, generated_text):
    model = foreign_model(family, "sdpa")
    model.resize_token_embeddings(len(text_tokenizer))
    found = noise_in_text(
        model, text_tokenizer, [generated_text], needles=3, lengths=[200, 300], samples=2, resamples=3
    )
    assert {row.length for row in found.resampled} == {200, 300}
    sees_the_end_alone = family == "mistral"  # a window of four tokens, in two layers
    assert {row.ratio is None for row in found.resampled} == {sees_the_end_alone}
    assert all(row.log_odds.interval is not None for row in found.changed)
    assert ({row.change for row in found.changed} == {"hidden"}) == (family != "diffllama")
    repeated = noise_in_text(model, text_tokenizer, [generated_text], needles=3, lengths=[200], samples=2, resamples=3)
    assert repeated.resampled[0] == found.resampled[0]
