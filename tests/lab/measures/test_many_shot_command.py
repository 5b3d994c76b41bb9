"""``antiphase evaluate many-shot``: what is left out is told with its reason, and no task takes another's place."""

from dataclasses import replace

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.many_shot import AtShots, TaskShots
from antiphase.lab.measures.many_shot import measure as module
from antiphase.lab.measures.many_shot.presentation import _mean_task
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.pages.figures import figures_of
from antiphase.lab.pages.html import write_report
from antiphase.lab.pages.summary import compared, main_tables
from antiphase.lab.text.tokenization import PAGE_OPENING, train_tokenizer
from support.models import save, small_llama

ROWS = [f"{index % 2} word {index}" for index in range(40)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model that reads 120 tokens, and two tasks of one template and no name."""
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer(["Review: word Sentiment: negative positive 0 1 2 3 4 5 6 7 8 9"] * 9, 300)
    save(small_llama(tokenizer, max_position_embeddings=120), tokenizer, tmp_path / "model")
    (tmp_path / "rows.all").write_text("\n".join(ROWS) + "\n")
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("template: cr\nname: cr\ndata: rows.all\n")
    return tmp_path


def request(**fields):
    known = {"name": "model", "tasks": ["one.yaml"], "shots": [1, 4, 24, 33, 64], "samples": 8, "orders": 0}
    return settings_of("many-shot", **{**known, **fields})


def test_too_few_rows_and_too_long_are_distinguished(folder):
    record = evaluate(request(), folder / "out")
    found = record.values["tasks"]["cr"]
    assert [row["shots"] for row in found["rows"]] == [1, 4]
    assert (found["left_out"], found["too_few_rows"]) == ([24], [33, 64])  # 32 rows are left beside the 8 asked
    page = write_report([record], folder / "page.html").read_text()
    for said in (main_tables(record)[0].note, page):
        assert "Longer than the model reads: 24 examples. Too few rows for: 33, 64 examples." in said
    del found["too_few_rows"]  # as earlier records have it
    table = main_tables(Record(kind=record.kind, values=record.values))[0]
    assert table.note.endswith("Longer than the model reads: 24 examples.")
    (folder / "shown.all").write_text("\n".join(ROWS[:3]) + "\n")
    (folder / "one.yaml").write_text("template: cr\nname: cr\ndata: rows.all\ndemonstrations: shown.all\n")
    found = evaluate(request(), folder / "own").values["tasks"]["cr"]
    assert (found["left_out"], found["too_few_rows"]) == ([], [4, 24, 33, 64])
    assert "Longer" not in main_tables(Record(kind=record.kind, values={"tasks": {"cr": found}}))[0].note


@pytest.mark.parametrize(
    ("fields", "second", "pattern"),
    [
        ({}, "template: cr\nname: cr\ndata: rows.all\n",
         r"--task two\.yaml: one\.yaml has the name 'cr' too; give one of them another, for example 'name: cr-2'"),
        ({}, "template: cr\nname: two\ndata: missing.all\n", r"task two\.yaml: .*there is no such file"),
        ({"samples": 40}, "",
         r"--task one\.yaml: there are too few rows for --shots 1 beside --samples 40; ask for fewer"),
        ({"samples": 41}, "", r"--task one\.yaml: --samples 41 is more than its 40 rows; lower it"),
    ],
)  # fmt: skip
def test_unusable_input_is_refused_before_anything_is_computed(folder, monkeypatch, fields, second, pattern):
    monkeypatch.setattr(module, "many_shot", lambda *given, **named: pytest.fail("something was computed"))
    (folder / "two.yaml").write_text(second)
    with pytest.raises(InputError, match=pattern):
        evaluate(request(tasks=["one.yaml", "two.yaml"], **fields), folder / "out")
    assert not (folder / "out").exists()


def test_tasks_of_one_template_and_two_names(folder):
    (folder / "two.yaml").write_text("template: cr\nname: cr-2\ndata: rows.all\n")
    record = evaluate(request(tasks=["one.yaml", "two.yaml"], shots=[1]), folder / "out")
    assert list(record.values["tasks"]) == ["cr", "cr-2"]


def test_the_mean_of_many_tasks_is_over_all_of_them_at_each_number_of_examples():
    """One that lacks a number is no reason to mix numbers; a number that some tasks lack has no mean."""

    def task(shots):
        return TaskShots(
            samples=9, labels=2, guess_rate=0.5, majority_rate=0.5,
            rows=[AtShots(count, count / 20, [0.0, 1.0], 9, answers_given=2, label_shown=1.0) for count in shots],
        )  # fmt: skip

    found = _mean_task([task((16, 4, 1)), task((4, 1)), task((1, 4, 16))])
    assert [(row.shots, row.accuracy) for row in found.rows] == [(1, pytest.approx(0.05)), (4, pytest.approx(0.2))]


def test_two_models_are_compared_on_the_same_questions_and_continue_after_a_kill(folder, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained("model")
    save(small_llama(tokenizer, max_position_embeddings=120, hidden_size=48), tokenizer, folder / "other")
    asked = {"shots": [1, 4], "orders": 2}
    alone = {name: evaluate(request(name=name, **asked), folder / f"alone-{name}") for name in ("model", "other")}
    answers, left = module.choose_options, iter(range(8))  # 6 parts for each model

    def killed(*given):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return answers(*given)

    monkeypatch.setattr(module, "choose_options", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(request(against=["other"], **asked), folder / "both")
    left, seen = iter(range(4)), []
    record = evaluate(
        request(against=["other"], **asked), folder / "both", resume=True, report=lambda *done: seen.append(done)
    )
    assert next(left, None) is None  # the remaining 4, and no more
    assert seen[-1] == (2, 2)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert record.values["tasks"] == alone["model"].values["tasks"]
    assert record.values["against"]["other"]["tasks"] == alone["other"].values["tasks"] != record.values["tasks"]
    tables = main_tables(record)
    assert [[row[0] for row in table.rows] for table in tables] == [["model", "model", "other", "other"]] * 2
    (drawn,) = figures_of(record).values()
    assert [line.get_label() for line in drawn.axes[0].get_lines() if line.get_marker() == "o"] == ["model", "other"]
    (joint,) = compared(list(alone.values()))
    assert joint.values == record.values
    assert (
        "<h1>evaluate-many-shot, model, against other</h1>" in write_report([record], folder / "both.html").read_text()
    )
    page = write_report(list(alone.values()), folder / "page.html").read_text()
    assert page.count('alt="Line chart of accuracy') == 3  # of both, and of each


def test_losses_per_token_are_compared_only_of_the_same_tokens(folder):
    (folder / "text.txt").write_text("word 1 negative positive word 2. " * 90)
    other = train_tokenizer(["another text with words"] * 9, 280)
    save(small_llama(other, max_position_embeddings=120), other, folder / "other")
    settings = {"name": "model", "paths": ["text.txt"], "length": 32, "samples": 4}
    refused = r"against other has other tokens than model, so their losses per token do not compare"
    with pytest.raises(InputError, match=refused):
        evaluate(settings_of("perplexity", against=["other"], **settings), folder / "refused")
    tokenizer = AutoTokenizer.from_pretrained("model")
    save(small_llama(tokenizer, max_position_embeddings=120, hidden_size=48), tokenizer, folder / "third")
    for measurement in ("perplexity", "long-context"):
        record = evaluate(settings_of(measurement, against=["third"], **settings), folder / measurement)
        alone = evaluate(settings_of(measurement, **{**settings, "name": "third"}), folder / f"{measurement}-third")
        own = {name: value for name, value in alone.values.items() if name not in ("model", "against")}
        assert record.values["against"] == {"third": own}
        assert {row[0] for row in main_tables(record)[0].rows} == {"model", "third"}
    (drawn,) = figures_of(record).values()
    assert [line.get_label() for line in drawn.axes[0].get_lines()] == ["model", "third"]
    tokenizer.init_kwargs.pop(PAGE_OPENING, None)
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    save(small_llama(tokenizer, max_position_embeddings=120), tokenizer, folder / "opening")
    with pytest.raises(InputError, match="against opening opens texts in another way than model; measure each alone"):
        evaluate(settings_of("perplexity", against=["opening"], **settings), folder / "opened")


@pytest.mark.parametrize("measurement", ["perplexity", "long-context"])
@pytest.mark.parametrize("length", [33, None])
def test_no_model_is_given_more_tokens_than_it_reads(folder, measurement, length):
    """The other model is refused before the first is measured, also at the length that is usual for the first."""
    (folder / "text.txt").write_text("word 1 negative positive word 2. " * 90)
    tokenizer = AutoTokenizer.from_pretrained("model")
    save(small_llama(tokenizer, max_position_embeddings=32), tokenizer, folder / "short")
    settings = settings_of(measurement, name="model", against=["short"], paths=["text.txt"], length=length, samples=4)
    said = []
    with pytest.raises(InputError, match=f"--length {length or 120} is longer than the 32 positions of short; shorten"):
        evaluate(settings, folder / "refused", say=said.append)
    assert f"measuring {measurement}" not in said
    assert evaluate(replace(settings, length=32), folder / "out").values["against"].keys() == {"short"}
