"""Figures draw the record's numbers: lines, bars and maps are read back from the axes."""

import io
import os
import statistics
import subprocess
import sys
import warnings

import numpy
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.measures import retrieval_presentation
from antiphase.lab.pages import figures, plots
from antiphase.lab.pages.html import write_page
from antiphase.lab.studies.compare import figures as trained
from antiphase.lab.studies.compare.reading import retrieval_of


def numbers(data):
    return numpy.asarray(data, dtype=float)


def patch_of(container):
    return container.patches[0]


def drawn(figure):
    assert figure is not None
    return figure


def test_learning_curves_are_the_runs_and_their_median(comparison):
    accuracy, loss = drawn(trained.learning_curves(comparison)).axes
    for axes, key in ((accuracy, "accuracy"), (loss, "loss")):
        lines = {str(line.get_label()): line for line in axes.lines}
        for arm in comparison.values["arms"]:
            runs = [run for run in comparison.values["runs"] if run["arm"] == arm]
            for run in runs:
                expected = [point[key] for point in run["curve"]]
                numpy.testing.assert_array_equal(numbers(lines[f"_{arm} seed {run['seed']}"].get_ydata()), expected)
            middle = [
                statistics.median(run["curve"][index][key] for run in runs) for index in range(len(runs[0]["curve"]))
            ]
            numpy.testing.assert_allclose(numbers(lines[f"{arm}, median of 3 seeds"].get_ydata()), middle)
    levels = {str(line.get_label()): numbers(line.get_ydata())[0] for line in accuracy.lines}
    assert levels["_threshold"] == 0.5
    assert levels["_guess rate"] == 0.125
    assert {text.get_text() for text in accuracy.texts} == {"threshold\n50 %", "guess rate\n12.5 %"}


def test_median_only_where_every_seed_was_measured(comparison):
    comparison.values["runs"][0]["curve"][3]["accuracy"] = None
    axes = drawn(trained.learning_curves(comparison)).axes[0]
    (median,) = [line for line in axes.lines if line.get_label() == "softmax, median of 3 seeds"]
    assert 150 not in list(numbers(median.get_xdata()))
    assert 200 in list(numbers(median.get_xdata()))


def test_needle_points_carry_the_intervals(comparison):
    (axes,) = drawn(retrieval_presentation.needle_grid(retrieval_of(comparison))).axes
    assert [container.get_label() for container in axes.containers] == [
        "softmax, trained",
        "differential, trained",
        "softmax, untrained",
        "differential, untrained",
    ]
    rows = [row for row in comparison.values["needles"]["summary"] if row["arm"] == "softmax" and row["trained"]]
    points, _, (bars,) = axes.containers[0]
    numpy.testing.assert_allclose(numbers(points.get_ydata()), [row["accuracy"] for row in rows])
    for segment, row in zip(bars.get_segments(), rows, strict=True):
        numpy.testing.assert_allclose(segment[:, 1], row["interval"])


def test_needle_heatmaps_share_one_scale_and_show_the_guess_rate(grid_comparison):
    figure = drawn(retrieval_presentation.needle_grid(retrieval_of(grid_comparison)))
    panels = {axes.get_title(): axes.images[0] for axes in figure.axes if axes.images and axes.get_title()}
    assert list(panels) == [f"{arm}, {model}" for model in ("trained", "untrained")
                            for arm in ("softmax", "differential")]  # fmt: skip
    assert {image.get_clim() for image in panels.values()} == {(0.0, 1.0)}
    table = numbers(panels["differential, trained"].get_array())
    for row in grid_comparison.values["needles"]["summary"]:
        if row["arm"] == "differential" and row["trained"]:
            line = 5 if row["depth"] is None else int(4 * row["depth"])
            assert table[line, [4, 8, 16].index(row["needles"])] == row["accuracy"]
    numpy.testing.assert_allclose(table[-1], [1 / 4, 1 / 8, 1 / 16])


def test_allocation_bars_are_means_over_seeds_of_the_map_in_use(comparison):
    axes = drawn(retrieval_presentation.allocation_bars(retrieval_of(comparison))).axes
    for panel, measure in zip(axes[:3], ("share", "signed", "contribution"), strict=True):
        widths = {str(bar.get_label()): patch_of(bar).get_width() for bar in panel.containers}
        assert len(widths) == 2 * 2 * 6
        values = [
            row["spans"]["filler"][measure]
            for row in comparison.values["allocation"]
            if (row["arm"], row["trained"], row["layer"], row["map"]) == ("differential", False, "all", "difference")
        ]
        assert widths["_differential untrained filler"] == pytest.approx(statistics.fmean(values))


def test_knock_outs_have_a_panel_where_the_record_has_them(comparison):
    *_, panel = drawn(retrieval_presentation.allocation_bars(retrieval_of(comparison))).axes
    widths = {str(bar.get_label()): patch_of(bar).get_width() for bar in panel.containers}
    assert widths.keys() == {f"_{arm} {state} {span}" for arm in comparison.values["arms"]
                             for state in ("trained", "untrained") for span in ("answer", "filler")}  # fmt: skip
    assert widths["_softmax trained answer"] == pytest.approx(-1.75)  # of all layers at once, mean over seeds
    for row in comparison.values["allocation"]:
        row.pop("knockout", None)
        for span in row["spans"].values():
            span.pop("contribution", None)
    assert len(drawn(retrieval_presentation.allocation_bars(retrieval_of(comparison))).axes) == 2


def test_attention_maps_show_the_strongest_head_on_one_centred_scale(comparison):
    figure = drawn(trained.attention_maps(comparison))
    images = {axes.get_title(): axes.images[0] for axes in figure.axes if axes.images and axes.get_title()}
    for arm, choice in trained.strongest_heads(comparison).items():
        weights = comparison.arrays[f"attention_map.{arm}"]
        on_answer = numpy.abs(weights[:, :, 39, 10:12]).sum(-1)
        assert on_answer[choice.layer, choice.head] == on_answer.max() == pytest.approx(choice.answer_weight)
        shown = images[f"{arm}: layer {choice.layer}, head {choice.head}"]
        numpy.testing.assert_array_equal(numbers(shown.get_array()), weights[choice.layer, choice.head])
        mean = images[f"{arm}: mean over all heads and layers"]
        numpy.testing.assert_allclose(numbers(mean.get_array()), weights.mean((0, 1)), atol=1e-6)
    ((low, high),) = {image.get_clim() for image in images.values()}
    assert low == -high


def test_attention_maps_of_the_last_rows_alone(comparison):
    whole = trained.strongest_heads(comparison)
    comparison.arrays = {name: weights[:, :, -3:] for name, weights in comparison.arrays.items()}
    comparison.values["attention_map"]["rows"] = [37, 38, 39]
    assert trained.strongest_heads(comparison) == whole
    figure = drawn(trained.attention_maps(comparison))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == comparison.values["attention_map"]["tokens"][-3:]


def test_lambdas_by_layer(comparison):
    (axes,) = drawn(trained.lambdas(comparison)).axes
    (median,) = [line for line in axes.lines if line.get_label() == "differential, median of 3 seeds"]
    numpy.testing.assert_allclose(numbers(median.get_ydata()), [0.22, 0.35, 0.46])
    assert len(axes.lines) == 4


def test_an_arm_has_one_colour_everywhere(comparison):
    arms = comparison.values["arms"]
    lines = drawn(trained.learning_curves(comparison)).axes[0].lines
    bars = drawn(retrieval_presentation.allocation_bars(retrieval_of(comparison))).axes[0].containers
    for arm in arms:
        assert {line.get_color() for line in lines if arm in str(line.get_label())} == {plots.arm_colour(arms, arm)}
        (bar,) = [bar for bar in bars if bar.get_label() == f"_{arm} trained answer"]
        assert numpy.allclose(patch_of(bar).get_facecolor()[:3], numpy.array(
            [int(plots.arm_colour(arms, arm)[place : place + 2], 16) / 255 for place in (1, 3, 5)]))  # fmt: skip


@pytest.mark.slow
def test_figures_of_records_with_one_name_go_to_numbered_folders(comparison, tmp_path, antiphase):
    for name in ("one/lr-0.001", "two/lr-0.001", "two/lr-0.002"):
        comparison.save(tmp_path / name)
    assert antiphase("report two/lr-0.001 two/lr-0.002 --output a.html --figures a")[0] == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["lr-0.001", "lr-0.002"]
    assert antiphase("report one/lr-0.001 two/lr-0.001 --output b.html --figures b")[0] == 0
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["1-lr-0.001", "2-lr-0.001"]


@pytest.mark.slow
def test_save_figures_writes_what_the_record_has(comparison, awkward, tmp_path):
    names = [path.name for path in figures.save_figures(comparison, tmp_path / "plain")]
    assert names == ["learning-curves.png", "needles.png", "allocation.png", "attention-map.png", "lambda.png"]
    paths = figures.save_figures(awkward, tmp_path / "awkward")
    assert [path.stem for path in paths] == ["learning-curves", "needles", "attention-map", "lambda"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert figures.save_figures(Record(kind="odd", values={}), tmp_path / "none") == []


def test_many_tasks_leave_room_for_their_lines():
    row = {
        "shots": 4, "accuracies": [0.5, 0.7], "mean_accuracy": 0.6, "margin": 0.2, "flip_share": 0.1, "pair_flips": 0.2
    }  # fmt: skip
    few = {"accuracy": 0.5, "interval": [0.4, 0.6], "tokens": 9, "answers_given": 2, "label_shown": 1.0}
    task = {
        "rows": [{"shots": count, **few} for count in (1, 4)], "labels": 4,
        "orders": {"random": row, "alternating": row}, "majority_rate": 0.3, "guess_rate": 0.25, "samples": 20,
    }  # fmt: skip
    tasks = {f"a-task-of-many-words-{number}": task for number in range(25)}
    figure = figures.figures_of(Record(kind="evaluate-many-shot", values={"tasks": tasks}))["many-shot"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO(), format="png")
    assert all(axes.get_position().width > 0.2 for axes in figure.axes)


@pytest.mark.slow
def test_what_killed_writers_leave_of_pages_and_figures_is_removed(comparison, tmp_path):
    """They may lie in a folder of others, of which only the file's own leftovers are removed."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    figure = next(iter(figures.figures_of(comparison)))
    writers = {
        "page[1].html": lambda path: write_page("<p>", path),
        f"{figure}.png": lambda path: figures.save_figures(comparison, path.parent),
    }
    for name, write in writers.items():
        gone = tmp_path / f".{name}.{dead.pid}.tmp"
        kept = [tmp_path / f".{name}.{os.getppid()}.tmp", tmp_path / f".other.html.{dead.pid}.tmp"]
        for path in (gone, *kept):
            path.touch()
        write(tmp_path / name)
        assert not gone.exists()
        assert all(path.exists() for path in kept)


@pytest.mark.parametrize("letters", [3, 30, 90])
def test_a_legend_is_no_wider_than_its_figure_if_one_column_is_not(letters):
    figure = Figure(figsize=(5.2, 3), layout="constrained")
    axes = figure.subplots()
    for name in "abcde":
        axes.plot([0, 1], label=name * letters)
    plots.legend_below(figure, 3)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [name * letters for name in "abcde"]
    width = legend.get_window_extent(FigureCanvasAgg(figure).get_renderer()).width
    assert width <= figure.bbox.width or legend._ncols == 1
    assert legend._ncols == {3: 3, 30: 1, 90: 1}[letters]
