"""Several measurements of several models: the commands that are run, and the records that they leave."""

import json
from types import SimpleNamespace

import pytest

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.records import Record
from antiphase.lab.measures.several import Several, SeveralSettings, measure
from antiphase.lab.measures.several.measure import folder_names, planned


@pytest.fixture
def two(tiny_model, text_tokenizer, tmp_path):
    """Two models, whose folders have the same name."""
    folders = [tmp_path / "one" / "model", tmp_path / "two" / "model"]
    for folder, attention in zip(folders, ("softmax", "differential"), strict=True):
        tiny_model(attention, vocab_size=len(text_tokenizer), max_position_embeddings=64).save_pretrained(folder)
        text_tokenizer.save_pretrained(folder)
    return list(map(str, folders))


def test_each_model_has_a_folder_name_of_its_own():
    names = ["a/model", "b/model", "Qwen/Qwen3-0.6B", "b/model-2", "c/ü:x", "c/..", "d/model"]
    assert folder_names(names) == {
        "a/model": "model", "b/model": "model-3", "Qwen/Qwen3-0.6B": "Qwen3-0.6B", "b/model-2": "model-2",
        "c/ü:x": "ü-x", "c/..": "model-4", "d/model": "model-5",
    }  # fmt: skip


def test_words_are_those_of_the_measurements_own_command(tmp_path):
    asked = SeveralSettings(
        models=["m", "-n"], measurements=("needles", "perplexity"), paths=["a b.txt"], device="cpu",
        changes=["needles.depths=0,0.5", "needles.samples=3", "perplexity.length=64", "perplexity.text-field=words"],
    )  # fmt: skip
    tasks = planned(asked, tmp_path)
    assert [task.name for task in tasks] == ["needles-m", "needles-n", "perplexity-m", "perplexity-n"]
    command = tasks[1].command(1)
    needles = ["--device=cpu", "--data=a b.txt", "--depths=0.0,0.5", "--samples=3", "--", "-n"]
    assert command.words[:3] == ["evaluate", "needles", f"--output={tmp_path / 'needles-n'}"]
    assert sorted(command.words[4:]) == sorted(needles)
    assert command.words[-2:] == ["--", "-n"]
    words = tasks[2].command(1).words
    assert {"--length=64", "--text-field=words", "--data=a b.txt"} < set(words)
    texts = ["perplexity.text-field=yes", "many-shot.task=a #1.yaml", "many-shot.task=007"]
    literal = SeveralSettings(models=["m"], measurements=("perplexity", "many-shot"), changes=texts)
    perplexity, many = planned(literal, tmp_path)
    assert "--text-field=yes" in perplexity.command(1).words
    assert [word for word in many.command(1).words if "task" in word] == ["--task=a #1.yaml", "--task=007"]
    halved = SeveralSettings(
        models=["m"], measurements=("perplexity", "probe"), dtype="bfloat16", changes=["probe.dtype=float64"]
    )
    perplexity, probe = ([word for word in task.command(1).words if "dtype" in word]
                         for task in planned(halved, tmp_path))  # fmt: skip
    assert (perplexity, probe) == (["--dtype=bfloat16"], ["--dtype=float64"])
    (gain,) = planned(SeveralSettings(models=["m"], measurements=("document-gain",), paths=["x.jsonl"]), tmp_path)
    assert "--data=x.jsonl" in gain.command(1).words
    probing = SeveralSettings(models=["m"], measurements=("probe",))
    assert planned(probing, tmp_path)[0].command(1).words[0] == "probe"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["perplexity.lenght=4"], "--set perplexity.lenght: there is no such flag; did you mean 'length'?"),
        (["samples=4"], "--set 'samples=4' must be MEASUREMENT.FLAG=VALUE"),
        (["outliers.samples=4"], "'outliers' is not in --measure (perplexity)"),
        (["perplexity.length=1"], "--length must be at least 2, got 1"),
        (["perplexity.length=a"], "perplexity.length must be a whole number, got 'a'"),
        (["perplexity.data=x"], "--set perplexity.data: there is no such flag"),
        (["perplexity.length=4", "perplexity.length=5"], "--set perplexity.length is given twice; remove one"),
        (["perplexity.length="], "has no value; write it as on the command line"),
    ],
)
def test_settings_of_a_measurement_are_checked_first(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        planned(SeveralSettings(models=["m"], changes=changes), tmp_path)
    assert message in str(caught.value)


def test_what_cannot_be_measured_is_refused_before_anything_is_run(refused, two):
    begin = f"evaluate several {two[0]}"
    refused("--measure perplexit: unknown; did you mean 'perplexity'", f"{begin} --measure perplexit --output o")
    refused("MODEL must not repeat a value", f"{begin} {two[0]} --output o")
    refused("MODEL .*nowhere", f"{begin} nowhere --output o")
    refused("--measure several: unknown", f"{begin} --measure several --output o")


def test_a_model_that_has_changed_is_not_measured_further(two, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "run_tasks", lambda tasks, pool: (_ for _ in ()).throw(Interrupted("stopped")))
    asked = SeveralSettings(models=two)
    with pytest.raises(Interrupted):
        measure.evaluate(asked, tmp_path / "all")
    with pytest.raises(Interrupted):
        measure.evaluate(asked, tmp_path / "all", resume=True)
    with (tmp_path / "one" / "model" / "config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(InputError, match=r"the files of .*model have changed since this work began"):
        measure.evaluate(asked, tmp_path / "all", resume=True)


def test_text_and_tasks_that_have_changed_are_not_measured_further(two, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "run_tasks", lambda tasks, pool: (_ for _ in ()).throw(Interrupted("stopped")))
    (tmp_path / "text.txt").write_text("one")
    (tmp_path / "rows.all").write_text("0 bad\n1 good\n")
    task = tmp_path / "task.yaml"
    task.write_text("template: cr\ndata: rows.all\n")
    asked = SeveralSettings(
        models=two, measurements=("perplexity", "many-shot"), paths=[str(tmp_path / "text.txt")],
        changes=[f"many-shot.task={task}"],
    )  # fmt: skip
    with pytest.raises(Interrupted):
        measure.evaluate(asked, tmp_path / "all")
    for name, content in (("text.txt", "one"), ("rows.all", "0 bad\n1 good\n")):
        (tmp_path / name).write_text("1 other\n")
        with pytest.raises(InputError, match=r"the files in .* have changed since this work began"):
            measure.evaluate(asked, tmp_path / "all", resume=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(Interrupted):
        measure.evaluate(asked, tmp_path / "all", resume=True)


def test_every_file_that_is_read_must_be_seen_where_measurements_run(two, tmp_path, monkeypatch):
    """Those of ``--set`` too; what is no file there is not asked for."""
    task, second = tmp_path / "a task.yaml", tmp_path / "b.yaml"
    (tmp_path / "text.txt").write_text("0 word\n")
    for path in (task, second):
        path.write_text("template: cr\ndata: text.txt\n")
    asked = []

    class Executor:
        def check(self, folder, paths, say):
            asked.extend(paths)
            raise Interrupted("asked")

        def close(self):
            """Nothing is open."""

    monkeypatch.setattr(measure, "executor_of", lambda settings: Executor())
    monkeypatch.setattr(measure, "planned", lambda *given: [SimpleNamespace(is_done=lambda: False)])
    changes = [f"many-shot.task={task}", f"needles.x={second},{task}", "needles.samples=3", f"needles.y={'z' * 300}"]
    data = str(tmp_path / "text.txt")
    with pytest.raises(Interrupted, match="asked"):
        measure.evaluate(SeveralSettings(models=two, paths=[data, "hub/name"], changes=changes), tmp_path / "all")
    assert asked == [*two, data, str(task), str(second)]


def test_a_first_measurement_that_is_refused_leaves_nothing(two, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "run_tasks", lambda tasks, pool: (_ for _ in ()).throw(InputError("no text")))
    with pytest.raises(InputError, match="no text"):
        measure.evaluate(SeveralSettings(models=two), tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.slow
def test_records_are_those_of_the_single_commands(antiphase, two, book, tmp_path):
    command = (
        f"evaluate several {two[0]} {two[1]} --measure perplexity,outliers --data {book} --output all --set "
        "perplexity.length=16 --set perplexity.samples=4 --set outliers.length=16 --set outliers.samples=4"
    )
    code, shown, err = antiphase(f"{command} --at-once 2")
    assert code == 0, err
    found = Several.of(Record.load(tmp_path / "all"))
    folders = ["perplexity-model", "perplexity-model-2", "outliers-model", "outliers-model-2"]
    assert [row.folder for row in found.rows] == folders
    for row in found.rows:
        code, out, err = antiphase(
            f"evaluate {row.measurement} {row.model} --data {book} --length 16 --samples 4 --output {row.folder}"
        )
        assert code == 0, err
        tables, paths, _ = out.partition("\nrecord:")
        begins = next(title for title in ("Perplexity", "Largest values") if title in tables)
        below = shown.partition(f"{row.folder} ─")[2]
        assert paths
        assert below.lstrip("─\n").startswith(tables[tables.index(begins) :].rstrip())
        single, one = Record.load(tmp_path / row.folder), Record.load(tmp_path / "all" / row.folder)
        assert (one.values, one.config) == (single.values, single.config)
    page = (tmp_path / "all" / "report.html").read_text("utf-8")
    assert all(folder in page for folder in folders)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*/record.json")}
    code, out, err = antiphase(f"{command} --resume --json")
    assert code == 0, err
    assert len(json.loads(out)["values"]["rows"]) == 4
    assert before == {path: path.stat().st_mtime_ns for path in before}
