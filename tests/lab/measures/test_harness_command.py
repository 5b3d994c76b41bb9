"""``antiphase evaluate harness``: models as rows of one table, and nothing measured twice."""

import json

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import antiphase
from antiphase.base.errors import InputError
from antiphase.base.records import Record, finite
from antiphase.lab.measures.harness import PAPER_TASKS, HarnessSettings, MeasuredTask, measure
from antiphase.lab.measures.harness.presentation import PUBLISHED_MODELS, PUBLISHED_PAIR, SEVEN, scores_by_task
from antiphase.lab.measures.running import evaluate
from antiphase.lab.pages.html import write_report
from antiphase.lab.pages.summary import main_tables
from antiphase.lab.text.tokenization import train_tokenizer

pytest.importorskip("lm_eval", reason="lm-eval is an extra: pip install 'antiphase[harness]'")
from antiphase.lab.measures.harness import lm_eval_adapter as harness
from support.models import save

AVERAGES = (57.5, 56.8, 60.6, 55.4, 56.2, 56.4, 58.0)
"""The last column of the paper's tables 1 and 8."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two models, and a folder with two tasks."""
    monkeypatch.chdir(tmp_path)
    rows = [{"q": f"word {i % 7} or {i % 3}", "choices": ["yes", "no", "never"], "answer": i % 3} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    for name in ("first", "second"):
        task = {
            "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"validation": "rows.jsonl"}},
            "validation_split": "validation", "output_type": "multiple_choice", "doc_to_text": f"{name}: {{{{q}}}}",
            "doc_to_target": "answer", "doc_to_choice": "choices", "metric_list": [{"metric": "acc"}],
        }  # fmt: skip
        (tmp_path / "tasks" / f"{name}.yaml").write_text(yaml.safe_dump(task))
    tokenizer = train_tokenizer(["first second word or yes no never 0 1 2 3 4 5 6 :" * 9], 280)
    for seed, kind in enumerate(("softmax", "differential")):
        torch.manual_seed(seed)
        config = antiphase.AntiphaseConfig(
            attention_type=kind, vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, intermediate_size=16,
            num_attention_heads=4, max_position_embeddings=64,
        )  # fmt: skip
        save(antiphase.AntiphaseForCausalLM(config), tokenizer, tmp_path / kind)
    return tmp_path


def request(**fields):
    known = {"names": ["softmax", "differential"], "tasks": ["first", "second"], "include_path": "tasks", "limit": 12}
    return HarnessSettings(**{**known, "num_fewshot": [0, 2], **fields})


def test_models_tasks_and_examples_are_rows_of_one_record(folder):
    record = evaluate(request(), folder / "out")
    assert Record.load(folder / "out").values == record.values
    rows = record.values["rows"]
    asked = [(row["model"], row["task"], row["shots"]) for row in rows]
    assert asked == [(m, t, s) for m in ("softmax", "differential") for t in ("first", "second") for s in (0, 2)]
    assert all(row["samples"] == 12 and "scores" not in row for row in rows)
    assert record.values["lm_eval"] == harness.VERSION
    assert record.seeds == [1234]  # the examples that lm-eval's own command draws
    base = {(row["task"], row["shots"]): row["metrics"]["acc"]["value"] for row in rows[:4]}
    assert all(row["difference"] is None for row in rows[:4])
    for row in rows[4:]:
        expected = row["metrics"]["acc"]["value"] - base[row["task"], row["shots"]]
        assert row["difference"]["value"] == pytest.approx(expected)
    (table,) = main_tables(record)
    assert [column.name for column in table.columns[2:]] == ["softmax", "differential", "Chance", "Constant"]
    assert [line[:2] for line in table.rows] == [
        [0, "first"], [0, "second"], [0, "average"], [2, "first"], [2, "second"], [2, "average"],
    ]  # fmt: skip
    assert table.rows[0][2:5] == pytest.approx([base["first", 0], rows[4]["metrics"]["acc"]["value"], 1 / 3])
    page = write_report([record], folder / "page.html").read_text()
    assert "Downstream tasks, every metric" in page
    assert page.count("<img") == 1


def test_a_loaded_model_has_the_scores_of_the_command(folder):
    record = evaluate(request(names=["softmax"]), folder / "out")
    model, tokenizer = (kind.from_pretrained("softmax") for kind in (AutoModelForCausalLM, AutoTokenizer))
    tasks = ["first", "second"]
    found = measure.harness(model, tokenizer, tasks, num_fewshot=[0, 2], limit=12, include_path="tasks")
    assert finite(found) == {name: record.values[name] for name in ("models", "lm_eval", "rows")}
    assert "Downstream tasks" in found._repr_html_()
    with pytest.raises(InputError, match="--limit must be a number of rows"):
        measure.harness(model, tokenizer, tasks, limit=-1)


@pytest.mark.slow
def test_nothing_is_measured_twice(folder, monkeypatch):
    out = folder / "out"
    first = evaluate(request(names=["softmax"], tasks=["first"]), out)
    with pytest.raises(InputError, match="already contains this work; add resume"):
        evaluate(request(), out)
    calls = []
    real = harness.measure
    monkeypatch.setattr(
        harness, "measure", lambda *given, **named: calls.append(named["shots"]) or real(*given, **named)
    )
    again = evaluate(request(names=["softmax"], tasks=["first"]), out, resume=True)
    assert again.values == first.values
    assert not calls
    whole = evaluate(request(), out, resume=True)
    assert len(calls) == 6  # the other task, and the other model on both
    assert whole.values["rows"][:2] == first.values["rows"]
    text = (folder / "rows.jsonl").read_text()
    (folder / "rows.jsonl").write_text(text.replace("word 0", "word 5"))
    evaluate(request(names=["softmax"], tasks=["first"]), out, resume=True)
    assert len(calls) == 8  # other rows: measured anew
    path = folder / "tasks" / "first.yaml"
    path.write_text(path.read_text().replace("first: {{q}}", "First: {{q}}"))
    evaluate(request(names=["softmax"], tasks=["first"]), out, resume=True)
    assert len(calls) == 10  # another prompt
    model = antiphase.AntiphaseForCausalLM.from_pretrained(folder / "softmax")
    with torch.no_grad():
        model.lm_head.weight[-1, -1] += 1e-3
    model.save_pretrained(folder / "softmax")
    evaluate(request(names=["softmax"], tasks=["first"]), out, resume=True)
    assert len(calls) == 12  # another weight


@pytest.mark.slow
def test_finished_parts_survive_a_stop(folder, monkeypatch):
    real, done = harness.measure, []

    def stopped(*given, **named):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(0)
        return real(*given, **named)

    monkeypatch.setattr(harness, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(request(), folder / "out")
    assert not (folder / "out" / "record.json").exists()
    monkeypatch.setattr(harness, "measure", lambda *given, **named: done.append(0) or real(*given, **named))
    assert len(evaluate(request(), folder / "out", resume=True).values["rows"]) == 8
    assert len(done) == 8


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"names": ["softmax", "softmax"]}, "MODEL must name at least one, without repetition"),
    ({"tasks": ["first", "first"]}, "--tasks must name at least one, without repetition"),
    ({"limit": 2.5}, "--limit must be a number of rows, or a share"),
    ({"limit": 0}, "--limit must be a number of rows, or a share"),
    ({"batch_size": "many"}, "--batch-size must be a number from 1, or auto"),
    ({"names": ["missing/model"]}, "model missing/model"),
])  # fmt: skip
def test_unusable_input_costs_one_sentence_and_nothing_on_disk(folder, fields, pattern):
    with pytest.raises(InputError, match=pattern):
        evaluate(request(**fields), folder / "out")
    assert not (folder / "out").exists()


def test_a_folders_own_python_runs_only_on_demand(folder):
    """Also what only a row deep in the data brings to light."""
    path = folder / "tasks" / "first.yaml"
    call = f"cycler.__init__.__globals__.os.popen('touch {folder / 'mark'}').read()"
    text = f"{{% if q == 'word 5 or 2' %}}{{{{ {call} }}}}{{% endif %}}"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "doc_to_text": text}))
    asked = {"names": ["softmax"], "tasks": ["first"], "num_fewshot": [0]}
    with pytest.raises(InputError, match=r"--tasks first.*read it, then add --trust-task-code"):
        evaluate(request(**asked), folder / "out")
    assert not (folder / "mark").exists()
    evaluate(request(**asked, trust_task_code=True), folder / "other")
    assert (folder / "mark").exists()


def test_the_folder_of_other_work_is_left_alone(folder):
    with pytest.raises(InputError, match="is not empty"):
        evaluate(request(), folder / "softmax", resume=True)


def test_a_missing_lm_eval_is_named(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"lm-eval is not installed; run pip install 'antiphase\[harness\]'"):
        evaluate(request(), folder / "out")


@pytest.mark.slow
def test_the_papers_seven_tasks_are_known_and_need_the_network(folder, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    library = harness.TaskLibrary()
    assert set(PAPER_TASKS) <= set(library.manager.all_subtasks)
    with pytest.raises(InputError, match=r"--tasks arc_challenge: its data cannot be loaded .*--include-path"):
        evaluate(HarnessSettings(names=["softmax"]), folder / "out")
    assert not (folder / "out").exists()


def test_the_papers_rows_have_the_papers_averages():
    assert tuple(SEVEN) == PAPER_TASKS
    published = [*PUBLISHED_MODELS.values(), *PUBLISHED_PAIR[0], *PUBLISHED_PAIR[5]]
    for numbers, average in zip(published, AVERAGES, strict=True):
        assert sum(numbers) / 7 == pytest.approx(average, abs=0.06)


def test_a_task_that_fixes_its_examples_is_not_compared_with_itself():
    def row(shots, scores):
        return MeasuredTask(
            task="t", version=None, shots=shots, samples=2, cut=0.0, metric="acc", metrics={}, scores=scores,
            guess_rate=None, constant_rate=None,
        )  # fmt: skip

    rows = measure._compared([("a", row(0, [1.0, 0.0]))] * 2 + [("b", row(0, [1.0, 1.0]))] * 2)
    assert [one.model for one in rows] == ["a", "b"]
    assert (rows[0].difference, rows[1].difference.value) == (None, 0.5)


def test_the_papers_numbers_stand_beside_its_tasks(folder):
    metrics = {"acc": {"value": 0.5, "stderr": 0.1, "interval": [0.4, 0.6]}}
    metrics |= {"acc_norm": {"value": 0.7, "stderr": 0.1, "interval": [0.6, 0.8]}}
    rows = [
        {"model": "m", "task": task, "version": 1.0, "shots": 5, "samples": 9, "cut": 0.0, "metrics": metrics,
         "metric": "acc_norm" if task == "hellaswag" else "acc", "guess_rate": 0.25, "constant_rate": None,
         "difference": None} for task in PAPER_TASKS
    ]  # fmt: skip
    record = Record(kind="evaluate-harness", values={"models": ["m"], "lm_eval": "0", "rows": rows})
    (table,) = main_tables(record)  # the other one is of runs without examples
    by_task = {line[1]: line for line in table.rows}
    assert by_task["HellaSwag"][2:4] == [0.7, 0.25]
    assert by_task["HellaSwag"][5:] == pytest.approx([0.634, 0.669])
    assert by_task["average"][2:4] == pytest.approx([(6 * 0.5 + 0.7) / 7, 0.25])
    assert by_task["average"][5:] == pytest.approx([0.564, 0.580], abs=6e-4)
    for row in rows:
        row["shots"] = 0
    table, larger = main_tables(record)
    assert table.rows[0][-2:] == pytest.approx([0.322, 0.330])
    assert larger.rows[-1][1:] == pytest.approx([0.575, 0.568, 0.606], abs=6e-4)
    for row in rows:
        row["shots"] = 3
    (table,) = main_tables(record)
    assert len(table.columns) == 5  # nothing published


def test_a_perplexity_is_no_share_and_part_of_no_average():
    def row(task, metric, value):
        return {
            "model": "m", "task": task, "version": 1.0, "shots": 0, "samples": 9, "cut": 0.0, "metric": metric,
            "metrics": {metric: {"value": value, "stderr": 0.1, "interval": None}}, "guess_rate": None,
            "constant_rate": None, "difference": None,
        }  # fmt: skip

    rows = [row("a", "acc", 0.5), row("b", "word_perplexity", 23.4), row("c", "exact_match (strict)", 0.25)]
    record = Record(kind="evaluate-harness", values={"models": ["m"], "lm_eval": "0", "rows": rows})
    (table,) = main_tables(record)
    assert [line[2] for line in table.text()] == ["50.0 %", "23.4", "25.0 %", "37.5 %"]
    assert "The average is over shares alone. Other measures: word_perplexity of b" in table.note
    figure = scores_by_task(record)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["a", "c"]
