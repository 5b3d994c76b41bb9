"""Figures of attention maps draw the record's numbers, read back from the axes."""

import numpy
import pytest

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.look import plots as look_plots
from antiphase.lab.measures.look.tables import layers_of, with_head
from antiphase.lab.pages import write_report
from antiphase.lab.pages.figures import save_figures

NAMES = {"look-heads", "look-head", "look-masks", "look-positions"}


def test_every_head_stands_in_its_place(look_record):
    record = look_record()
    figure = look_plots.every_head(record)
    sheet = numpy.ma.filled(figure.axes[0].images[0].get_array(), numpy.nan)
    for line, layer in enumerate(layers_of(record)):
        for head in range(3):
            found = sheet[10 * line : 10 * line + 7, 10 * head : 10 * head + 7]
            numpy.testing.assert_array_equal(numpy.isnan(found), ~layer.visible)
            numpy.testing.assert_allclose(found[layer.visible], layer.weights[head][layer.visible])


def test_layers_of_a_deep_model_stand_beside_each_other(look_record):
    record = look_record(layers=7, heads=2)
    axes = look_plots.every_head(record).axes[0]
    sheet = numpy.ma.filled(axes.images[0].get_array(), numpy.nan)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "head")
    assert sheet.shape == (2 * 10, 7 * 10)
    for number, layer in enumerate(layers_of(record)):
        for head in range(2):
            found = sheet[10 * head : 10 * head + 7, 10 * number : 10 * number + 7]
            numpy.testing.assert_allclose(found[layer.visible], layer.weights[head][layer.visible])


def test_long_texts_show_the_strongest_weight_of_each_block_with_its_sign(look_record):
    record = look_record(layers=1, heads=2, words=["a"] * 130, causal=False)
    figure = look_plots.every_head(record)
    sheet = numpy.ma.filled(figure.axes[0].images[0].get_array(), numpy.nan)
    weights = layers_of(record)[0].weights[1]
    found = sheet[:44, 47 : 47 + 44]
    assert not numpy.isnan(found).any()
    for row in range(44):
        for column in range(44):
            block = weights[3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            assert found[row, column] == block.flat[numpy.abs(block).argmax()]
    assert (found < 0).any()
    assert (found > 0).any()


def test_one_head_shows_both_maps_and_their_difference(look_record):
    record = look_record()
    chosen = look_plots.chosen_head(record)
    figure = look_plots.one_head(record)
    layer, head = chosen
    expected = [layer.maps[head, 0], layer.maps[head, 1], layer.weights[head]]
    panels = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert len(panels) == 3
    for axes, weights in zip(panels, expected, strict=True):
        found = numpy.ma.filled(axes.images[0].get_array(), numpy.nan)
        numpy.testing.assert_array_equal(found[layer.visible], weights[layer.visible])
        assert numpy.isnan(found[~layer.visible]).all()
    assert [label.get_text() for label in panels[0].get_xticklabels()][:5] == ["The", " cat", " sat", ".", "↵"]


def test_the_chosen_head_is_the_most_pointed_beside_the_first_token_and_itself(look_record):
    record = look_record(layers=3, differential=False)
    scales, codes = record.arrays["maps.1.scales"], record.arrays["maps.1.codes"]
    codes[2], scales[2] = 0, 1.0
    codes[2, 0, :, 1] = 255  # every query looks at token 1, which only token 1 itself and token 0 are not counted for
    codes[0], scales[0] = 0, 1.0
    codes[0, 0, :, 0] = 255  # a sink
    found = look_plots.chosen_head(record)
    assert (found[0].layer, found[1]) == (1, 2)


def test_a_head_that_subtracts_is_shown_before_one_that_adds(look_record):
    record = look_record()
    layer, head = look_plots.chosen_head(record)
    record.arrays[f"maps.{layer.layer}.lambda"][head] = -0.5
    found, other = look_plots.chosen_head(record)
    assert (found.layer, other) != (layer.layer, head)
    titles = [axes.get_title() for axes in look_plots.one_head(record).axes]
    assert f"layer {found.name}, head {other}: first − λ · second, λ = {found.lam[other].mean():.2f}" in titles


@pytest.mark.parametrize(("causal", "titles"), [
    (True, ["causal\nlayers 0, 1", "global\nnot in this model"]),
    (False, ["global\nlayers 0, 1", "causal\nnot in this model"]),
])  # fmt: skip
def test_masks_are_drawn_and_the_plain_ones_always(look_record, causal, titles):
    figure = look_plots.masks(look_record(causal=causal))
    assert [axes.get_title() for axes in figure.axes] == titles
    for axes in figure.axes:
        triangle = numpy.tril(numpy.ones((7, 7)))
        expected = triangle if "causal" in axes.get_title() else numpy.ones((7, 7))
        numpy.testing.assert_array_equal(axes.images[0].get_array(), expected)


@pytest.mark.slow
def test_rectangular_maps_are_drawn(look_record, tmp_path):
    record = look_record(target=["Der", " Hund"])
    assert {path.stem for path in save_figures(record, tmp_path)} == NAMES | {"look-alignment"}
    figure = look_plots.one_head(record)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["Der", " Hund"]


@pytest.mark.slow
def test_the_static_page_shows_them_beside_other_records(look_record, hostile_words, tmp_path):
    other = Record(kind="unknown", values={"loss": 2.5})
    source = write_report([other, look_record(words=hostile_words)], tmp_path / "report.html").read_text()
    for name in NAMES:
        assert f'id="record-2-{name}"' in source
        assert f'id="record-1-{name}"' not in source
    assert "Attention by layer" in source
    assert "<script" not in source


def test_alignment_is_the_mean_over_heads_between_the_texts(pair_record, look_record):
    record = pair_record(layers=4)
    figure = look_plots.alignment(record)
    panels = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"layer {layer}" for layer in range(4)]
    for axes, layer in zip(panels, layers_of(record)[:4], strict=True):
        assert (layer.queries, layer.keys) == ("target", "source")
        numpy.testing.assert_allclose(axes.images[0].get_array(), layer.weights.mean(0))
        assert [label.get_text() for label in axes.get_yticklabels()] == ["das", "boot", "alte", "."]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["the", "old", "boat", "sails", "."]
        assert (axes.get_ylabel(), axes.get_xlabel()) == ("target", "source")
    chosen = look_plots.chosen_head(record)
    assert chosen[0].queries == "target"
    masks = look_plots.masks(record)
    assert [axes.get_title() for axes in masks.axes] == [
        "global\ntarget → source", "global\nsource", "causal\ntarget so far"
    ]  # fmt: skip
    heads = look_plots.every_head(record)
    assert heads.axes[0].get_yticklabels()[0].get_text() == "0 (target → source)"
    assert look_plots.alignment(look_record()) is None


def test_a_head_can_be_chosen_by_hand_and_must_exist(look_record):
    record = look_record()
    found = look_plots.chosen_head(with_head(record, "1.0"))
    assert (found[0].layer, found[1]) == (1, 0)
    for wrong in ("9.0", "1.9", "one"):
        with pytest.raises(InputError, match=f"{wrong} is no LAYER"):
            with_head(record, wrong)
    with pytest.raises(InputError, match="is no LAYER"):
        with_head(Record(kind="probe", values={}, config={}), "1.0")
