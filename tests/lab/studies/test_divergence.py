"""A study goes on where a run diverges, and says so; what is left is no fair sample."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphase import cli
from antiphase.base.errors import DivergedError, InputError
from antiphase.base.records import PAGE, Record
from antiphase.lab.pages.html import write_report
from antiphase.lab.pages.summary import main_tables
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.ablations.measure import ablations, layer_means
from antiphase.lab.studies.ablations.rows import ablation_preset
from antiphase.lab.studies.compare import Comparison
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.grid import Grid
from antiphase.lab.studies.jobs import check_any_left, run_jobs
from antiphase.lab.studies.reproduce.readings import diverged
from antiphase.lab.studies.scaling.measure import scaling
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.studies.tune.measure import tune
from antiphase.lab.training.execution.local import LocalPool
from antiphase.lab.training.objective import NextTokenLoss

SMALL = ("training.steps=6", "training.evaluate_every=3", "training.checkpoint_every=2", "compare.seeds=[0,1]")


@pytest.fixture
def diverging(monkeypatch, tmp_path, tiny_preset):
    """``diverging("differential-seed1", *overrides)``: a preset, and studies whose named runs diverge at step 5."""
    names, trained = set(), []

    def train(job, output):
        steps, real = [], NextTokenLoss.forward

        def forward(self, *batch):
            steps.append(1)
            loss = real(self, *batch)
            return loss * math.nan if len(steps) == 5 and job.name in names else loss

        trained.append(job.name)
        with monkeypatch.context() as patch:
            patch.setattr(NextTokenLoss, "forward", forward)
            train_run(job.settings, output / job.name, resume=True)

    def run_here(jobs, output, **_):
        for job in jobs:
            if (output / job.name / "record.json").is_file():
                continue
            if job.name in names:
                with pytest.raises(DivergedError):
                    train(job, output)
            else:
                train(job, output)

    monkeypatch.setattr("antiphase.lab.studies.grid.run_jobs", run_here)

    def preset(*chosen, overrides=()):
        names.update(chosen)
        return load_preset(str(tiny_preset), [*SMALL, *overrides])

    preset.trained = trained
    return preset


def drawn(record, folder):
    """The cells of the record's main tables by title; the page is written too."""
    write_report([record], folder / "page.html")
    return {table.title: table.text() for table in main_tables(record)}


@pytest.mark.slow
def test_a_comparison_measures_what_is_left(tmp_path, diverging):
    preset = diverging("differential-seed1")
    record = compare(preset, tmp_path / "c")
    runs = {(run["arm"], run["seed"]): run for run in record.values["runs"]}
    assert runs["differential", 1]["diverged"]["step"] == 5
    assert [(run.arm, run.seed) for run in Comparison.of(record).runs if run.is_diverged] == [("differential", 1)]
    for part in (record.values["needles"]["cells"], record.values["allocation"], record.values["perplexity"]):
        seen = {(row["arm"], row["seed"], row["trained"]) for row in part}
        assert ("differential", 1, True) not in seen
        assert ("differential", 1, False) in seen
        assert len(seen) == 7
    entry = next(entry for entry in record.values["comparison"] if entry["metric"] == "held-out loss")
    assert entry["differences"]["differential"]["seeds"] == 1
    assert entry["differences"]["differential"]["interval"] is None
    assert diverged(record) == [1]
    table = {row[0]: row[1:] for row in drawn(record, tmp_path)["Headline"]}
    assert table["Diverged"] == ["–", "1 of 2, at step 5"]
    assert len(diverging.trained) == 4
    again = compare(preset, tmp_path / "c", resume=True)
    assert len(diverging.trained) == 4
    assert again.values["runs"] == record.values["runs"]


@pytest.mark.slow
def test_a_comparison_of_which_nothing_is_left(tmp_path, diverging):
    every = [f"{arm}-seed{seed}" for arm in ("softmax", "differential") for seed in (0, 1)]
    record = compare(diverging(*every), tmp_path / "c")
    assert all(run.is_diverged for run in Comparison.of(record).runs)
    assert diverged(record) == [0, 1]
    assert "Headline" in drawn(record, tmp_path)
    with pytest.raises(DivergedError, match=f"--output {tmp_path}/c: all 4 runs diverged"):
        check_any_left(tmp_path / "c")


@pytest.mark.slow
def test_a_command_whose_runs_all_diverged_says_so(tmp_path, monkeypatch, capsys, tiny_preset):
    settings = ("compare.seeds=[0]", "training.steps=4", "training.learning_rate=1e30", "training.clip=1e30")
    words = ["compare", "--preset", str(tiny_preset), "--output", str(tmp_path / "c")]
    monkeypatch.setattr("sys.argv", ["antiphase", *words, *(word for one in settings for word in ("--set", one))])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (3, 1)
    assert "c: all 2 runs diverged" in err
    assert Record.load(tmp_path / "c").kind == "compare"
    assert (tmp_path / "c" / PAGE).is_file()


@pytest.mark.slow
def test_a_rate_that_diverged_is_not_the_best(tmp_path, diverging):
    preset = diverging(*(f"{arm}-rate0.02-seed1" for arm in ("softmax", "differential")))
    record = tune(preset, tmp_path / "t", learning_rates=[0.02, 1e-9])  # the other one learns nothing
    rates = {(row["arm"], row["learning_rate"]): row["diverged"] for row in record.values["rates"]}
    assert rates == {(arm, rate): int(rate == 0.02) for arm in ("softmax", "differential") for rate in (0.02, 1e-9)}
    assert record.values["chosen"] == {"softmax": 1e-9, "differential": 1e-9}
    assert [row[-2] for row in drawn(record, tmp_path)["Learning rates"]] == ["1", "0", "1", "0"]


def test_a_ladder_with_a_diverged_run_has_no_law(tmp_path, diverging):
    preset = diverging("softmax-width16-steps6-seed0", overrides=["compare.seeds=[0]"])
    record = scaling(preset, tmp_path / "s", widths=[16], steps=[])
    assert [run["loss"] is None for run in record.values["runs"]] == [True, False]
    assert record.values["runs"][0]["non_embedding_parameters"] > 0
    assert {ladder["why_no_law"] for ladder in record.values["ladders"]} == {"a model's loss is not finite"}
    drawn(record, tmp_path)


@pytest.mark.slow
def test_a_row_of_ablations_says_how_many_diverged(tmp_path, diverging):
    preset = diverging("no-norm-seed1")
    chosen, left_out = ablation_preset(preset, ["no-norm"])
    record = ablations(chosen, tmp_path / "a", left_out=left_out)
    rows = {row["arm"]: row for row in record.values["rows"]}
    assert [rows[arm]["diverged"] for arm in ("softmax", "differential", "no-norm")] == [0, 0, 1]
    assert rows["no-norm"]["loss_difference"]["seeds"] == 1
    cells = {row[0]: row[1] for row in drawn(record, tmp_path)["Ablations and rivals"]}
    assert cells["no-norm"].endswith("(1 of 2 diverged)")
    every = [f"{arm}-seed{seed}" for arm in rows for seed in (0, 1)]
    record = ablations(ablation_preset(diverging(*every), ["no-norm"])[0], tmp_path / "b")
    for row in record.values["rows"]:
        assert (row["diverged"], row["loss"]) == (2, None)
        assert (row.get("loss_difference") or {}).get("interval") is None  # and so nothing is said of it


def test_gradients_are_a_mean_of_the_runs_that_logged_some():
    assert layer_means([[1.0, 2.0], [], [3.0, None]]) == [2.0, None]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_finished_run_with_another_model_is_not_measured_again(tmp_path, diverging, file):
    preset = diverging()
    compare(preset, tmp_path / "c")
    path = tmp_path / "c" / "softmax-seed1" / file
    before = path.read_bytes()
    if path.suffix == ".json":
        path.write_text(path.read_text() + " ")
    else:
        weights = load_file(path)
        weights["model.norm.weight"][0] = torch.nextafter(weights["model.norm.weight"][0], torch.tensor(9.0))
        save_file(weights, path, metadata={"format": "pt"})

    def again():
        run_jobs(Grid(preset, tmp_path / "c").jobs, tmp_path / "c", pool=LocalPool(1, 1), report=lambda *_: None)

    (path.parent / PAGE).touch()  # the run was finished
    with pytest.raises(InputError, match=f"{path.parent} holds another model than its run wrote"):
        again()
    (path.parent / PAGE).unlink()  # it was stopped while it wrote its last files, and writes them again
    again()
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_finished_run_says_where_its_model_stands(tmp_path, diverging):
    compare(diverging("softmax-seed0"), tmp_path / "c")
    folders = {path.parent.name for path in (tmp_path / "c").glob("*/model.sha256")}
    assert folders == {"differential-seed0", "softmax-seed1", "differential-seed1"}
    assert Record.load(tmp_path / "c" / "softmax-seed0").values["diverged"]
