"""``antiphase evaluate hallucination``: nothing is written or paid twice, and no failure counts as right."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.hallucination import Hallucination, HallucinationSettings
from antiphase.lab.measures.hallucination import measure as module
from antiphase.lab.measures.hallucination.judges import Answer
from antiphase.lab.measures.hallucination.measure import evaluate, hallucination
from antiphase.lab.pages.html import write_report
from antiphase.lab.pages.summary import main_tables, presentation_of
from antiphase.lab.scoring.loading import load_model
from support.endpoints import ECHO, Endpoint
from support.models import save

TOWNS = ["Oban", "Tobermory", "Ullapool", "Stornoway", "Kirkwall", "Lerwick"]


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_model, text_tokenizer):
    """A model, documents with summaries, and questions with answers."""
    monkeypatch.chdir(tmp_path)
    model = tiny_model("softmax", vocab_size=len(text_tokenizer), max_position_embeddings=400)
    save(model, text_tokenizer, tmp_path / "model")
    documents, questions = [], []
    for index in range(18):
        town = TOWNS[index % 6]
        text = f"It rained. Nobody was out. Then day {index} began. The ferry to {town} left."
        documents.append({"document": text, "summary": f"The ferry to {town} left."})
        questions.append({"context": text, "question": "Where to?", "answer": town})
    (tmp_path / "towns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (tmp_path / "where.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    return tmp_path


class Reader:
    """A judge that looks whether every sentence stands in the text; ``says`` may change its answers."""

    identity = name = "reader"

    def __init__(self, says=lambda number, answer: answer):
        self.says, self.questions = says, []

    def answers(self, questions):
        for question in questions:
            text = re.search(r"(?:Document|Passage): (.*?)\n\n", question)[1]
            output = re.search(r"(?:Summary|Reply): (.*?)\n\n", question, re.DOTALL)[1]
            right = re.search(r"Right: (.*?)\n\n", question)
            good = output == right[1] if right else all(part.strip(" .") in text for part in output.split(". "))
            self.questions.append(question)
            yield self.says(len(self.questions) - 1, Answer("Yes" if good else "No"))


def request(**fields):
    known = {"name": "model", "data": ["towns.jsonl", "where.jsonl"], "judge": "reader", "samples": 12}
    return HallucinationSettings(**{**known, "max_new_tokens": 6, **fields})


def rows(record, data="towns"):
    return {row["system"]: row for row in record.values["tasks"][data]["systems"]}


def test_controls_get_the_score_that_they_must_and_the_judge_has_no_error(folder):
    record = evaluate(request(), folder / "out", judge=Reader())
    assert Record.load(folder / "out").values == record.values
    found = rows(record)
    assert list(found) == ["model", "lead", "gold", "wrong"]
    assert found["lead"]["accuracy"] == found["gold"]["accuracy"] == 1
    assert found["lead"]["copied"] == 1
    assert found["lead"]["entity_coverage"] == 0
    assert found["gold"]["coverage"] == 1
    assert found["wrong"]["accuracy"] == 0
    assert [found[name]["judge_error"] for name in ("lead", "gold", "wrong")] == [0, 0, 0]
    assert list(rows(record, "where")) == ["model", "gold", "wrong"]
    assert record.values["without_answer"] == {}
    lines = [json.loads(line) for line in (folder / "out" / "verdicts.jsonl").read_text().splitlines()]
    assert len(lines) == sum(row["samples"] for name in ("towns", "where") for row in rows(record, name).values())
    assert {line["system"] for line in lines if line["verdict"] is False} >= {"wrong"}
    page = write_report([record], folder / "page.html").read_text()
    assert page.count("<img") == 1
    faithful, paper, beside, errors, can_tell = main_tables(record)
    shown = {(line[0], line[1]): line for line in faithful.text()}
    assert ["XSum", "44.0 %", "53.0 %"] in paper.text()
    assert ["HotpotQA", "36.0 %", "46.0 %"] in paper.text()
    assert shown["towns", "first three sentences"][2:5] == ["100.0 %", "75.8 to 100.0 %", "100.0 %"]
    covered = {(line[0], line[1]): line for line in beside.text()}
    assert covered["towns", "first three sentences"][3:5] == ["0.0 %", "100.0 %"]
    assert [line[5] for line in errors.text()] == ["0.0 %"] * 5
    assert [line[2] for line in can_tell.text()] == ["100.0 %"] * 2
    assert [line[4] for line in can_tell.text()] == ["–"] * 2


def test_a_script_gets_what_the_command_writes(folder):
    loaded = load_model("model")
    data = {name: module.load_items(f"{name}.jsonl") for name in ("towns", "where")}
    found = hallucination(loaded.model, loaded.tokenizer, data, Reader(), samples=12, max_new_tokens=6)
    written = Hallucination.read(evaluate(request(), folder / "out", judge=Reader()))
    assert (found.model, found.judge.model) == ("model", "reader")
    assert found == written
    page = found._repr_html_()
    assert "Contextual hallucination" in page
    assert page.count("<img") == 1


def test_the_judges_own_error_is_measured(folder):
    found = rows(evaluate(request(), folder / "no", judge=Reader(lambda i, a: Answer("no"))))
    assert [found[name]["judge_error"] for name in ("lead", "gold", "wrong")] == [1, 1, 0]
    found = rows(evaluate(request(), folder / "yes", judge=Reader(lambda i, a: Answer("yes"))))
    assert [found[name]["judge_error"] for name in ("lead", "gold", "wrong")] == [0, 0, 1]
    found = rows(evaluate(request(), folder / "x", judge=Reader(lambda i, a: Answer("perhaps"))))
    assert [found[name]["judge_error"] for name in ("lead", "gold", "wrong")] == [None] * 3


def test_nonsense_and_failures_are_unjudged_and_never_right(folder):
    def says(number, answer):
        return (Answer("as you like"), Answer(None, "no connection"), answer)[number % 3]

    judge = Reader(says)
    record = evaluate(request(), folder / "out", judge=judge)
    for data in ("towns", "where"):
        for row in rows(record, data).values():
            assert row["right"] + row["wrong"] + row["unjudged"] == row["samples"]
            assert row["accuracy"] == row["right"] / row["samples"]
    assert rows(record)["gold"]["right"] < 12
    assert rows(record)["gold"]["accuracy_at_most"] == 1
    assert set(record.values["without_answer"]) == {"neither yes nor no", "no connection"}
    # a second run asks again where there was no answer, and pays for nothing else
    again = Reader()
    second = evaluate(request(), folder / "out", judge=again, resume=True)
    unanswered = [question for i, question in enumerate(judge.questions) if i % 3 == 1]
    assert again.questions == unanswered
    assert set(second.values["without_answer"]) == {"neither yes nor no"}
    third = Reader()
    assert evaluate(request(), folder / "out", judge=third, resume=True).values == second.values
    assert not third.questions


@pytest.mark.slow
def test_finished_parts_survive_a_stop(folder, monkeypatch):
    real, prompts = module.write, []

    def stopped(loaded, some, *, longest):
        if prompts:
            raise KeyboardInterrupt
        prompts.extend(some)
        return real(loaded, some, longest=longest)

    monkeypatch.setattr(module, "write", stopped)
    monkeypatch.setattr(module, "AT_ONCE", 5)
    with pytest.raises(KeyboardInterrupt):
        evaluate(request(), folder / "out", judge=Reader())
    monkeypatch.setattr(
        module, "write", lambda loaded, some, *, longest: prompts.extend(some) or real(loaded, some, longest=longest)
    )
    with pytest.raises(InputError, match="already contains this work; add resume"):
        evaluate(request(), folder / "out", judge=Reader())
    first = evaluate(request(), folder / "out", judge=Reader(), resume=True)
    assert len(prompts) == 24
    assert first.values == evaluate(request(), folder / "new", judge=Reader()).values


def test_an_empty_output_is_wrong_and_nobody_is_asked(folder, monkeypatch):
    monkeypatch.setattr(module, "write", lambda loaded, some, *, longest: [""] * len(some))
    judge = Reader()
    record = evaluate(request(data=["towns.jsonl"]), folder / "out", judge=judge)
    row = rows(record)["model"]
    assert (row["accuracy"], row["wrong"], row["empty"], row["unjudged"]) == (0, 12, 12, 0)
    assert not any("Summary: \n" in question for question in judge.questions)


def test_a_judge_is_asked_everything_about_one_text_before_the_next(folder):
    judge = Reader()
    evaluate(request(), folder / "out", judge=judge)
    asked = [re.search(r"(?:Document|Passage): (.*?)\n\n", question)[1] for question in judge.questions]
    changes = sum(one != other for one, other in pairwise(asked))
    assert len(asked) > 2 * len(set(asked))
    assert changes == len(set(asked)) - 1


def test_a_model_that_copies_is_seen_in_what_it_copies(folder, monkeypatch):
    copied = "It rained. Nobody was out."
    monkeypatch.setattr(module, "write", lambda loaded, some, *, longest: [copied] * len(some))
    row = rows(evaluate(request(data=["towns.jsonl"]), folder / "out", judge=Reader()))["model"]
    assert (row["accuracy"], row["copied"], row["coverage"]) == (1, 1, 0)


def test_the_price_is_reported_before_anything_is_written_and_kept_under_the_budget(folder, monkeypatch):
    said = []
    fields = {"judge_url": "http://localhost:9/v1", "judge_price": (2.0, 10.0)}
    evaluate(request(**fields), folder / "out", judge=Reader(), say=said.append)
    price, writing = said[:2]
    assert "writes about" in writing
    count, read, written, cost = re.search(
        r"up to (\d+) questions: about ([\d,]+) tokens to read, ([\d,]+) to write, \$(\d+\.\d\d)", price
    ).groups()
    assert int(count) == 12 * 2 + 12 * 3 + 12 * 2  # two data sets written; lead, gold and wrong; gold and wrong
    assert int(written.replace(",", "")) == int(count) * 16
    paid = (int(read.replace(",", "")) * 2 + int(written.replace(",", "")) * 10) / 1e6
    assert float(cost) == pytest.approx(paid, abs=0.006)
    monkeypatch.setattr(module, "write", None)
    with pytest.raises(InputError, match=r"--judge-budget 0.0001: .*raise it or lower --samples"):
        evaluate(request(**fields, judge_budget=0.0001), folder / "dear", judge=Reader())
    assert not (folder / "dear").exists()


def test_answers_in_a_file_of_ones_own_serve_other_models(folder):
    first, second = Reader(), Reader()
    evaluate(request(judge_answers="kept/answers.jsonl"), folder / "one", judge=first)
    evaluate(request(judge_answers="kept/answers.jsonl"), folder / "two", judge=second)
    assert len(first.questions) > 12
    assert not second.questions
    other = Reader()
    other.identity = "another reader"
    evaluate(request(judge_answers="kept/answers.jsonl"), folder / "other", judge=other)
    assert other.questions == first.questions
    Path("kept/answers.jsonl").write_text("[]\n")
    with pytest.raises(InputError, match=r"--judge-answers kept/answers.jsonl holds no answers"):
        evaluate(request(judge_answers="kept/answers.jsonl"), folder / "three", judge=Reader())


def test_a_local_model_judges(folder, tiny_model, text_tokenizer):
    reader = tiny_model("softmax", vocab_size=len(text_tokenizer), max_position_embeddings=2000)
    save(reader, text_tokenizer, folder / "chooser")
    record = evaluate(request(judge="chooser", data=["towns.jsonl"]), folder / "out")
    assert all(row["unjudged"] == 0 for row in rows(record).values())
    assert record.values["without_answer"] == {}
    assert record.values["judge"] == {"model": "chooser", "url": None}
    lines = [json.loads(line) for line in (folder / "out" / "verdicts.jsonl").read_text().splitlines()]
    judged = [line for line in lines if line["output"]]
    assert all((line["log_odds"] > 0) == line["verdict"] for line in judged)
    gold, wrong = ([line["log_odds"] for line in judged if line["system"] == role] for role in ("gold", "wrong"))
    area = sum((one > other) + (one == other) / 2 for one in gold for other in wrong) / (len(gold) * len(wrong))
    control = record.values["tasks"]["towns"]["judge"]
    assert control["auc"] == pytest.approx(area)
    assert (control["texts"], control["accuracy"]) == (24, sum(one > 0 for one in gold) / 24 +
                                                       sum(one < 0 for one in wrong) / 24)  # fmt: skip
    again = evaluate(request(judge="chooser", data=["towns.jsonl"]), folder / "out", resume=True)  # stored answers
    assert again.values == record.values


def test_a_judge_at_chance_is_named_and_one_that_knows_is_not(folder):
    def leaning(number, answer):
        return Answer("Yes", log_odds=3.0)

    def knowing(number, answer):
        return Answer(answer.text, log_odds=3.0 if answer.text == "Yes" else -1.0)

    record = evaluate(request(), folder / "leaning", judge=Reader(leaning))
    control = record.values["tasks"]["towns"]["judge"]
    assert (control["accuracy"], control["auc"]) == (0.5, 0.5)
    told = presentation_of(record.kind).sentences(record)
    assert [sentence.split(",")[0] for sentence in told] == ["On towns", "On where"]
    assert all("the judge is not better than chance" in sentence for sentence in told)
    record = evaluate(request(), folder / "knowing", judge=Reader(knowing))
    assert presentation_of(record.kind).sentences(record) == []
    assert [line[2:6] for line in main_tables(record)[-1].text()] == [
        ["100.0 %", "86.2 to 100.0 %", "100.0 %", "83.2 to 100.0 %"]
    ] * 2


def test_the_key_is_in_no_file(folder, monkeypatch):
    (folder / "key.txt").write_text("sk-hidden\n")
    monkeypatch.setenv("SOME_KEY", "sk-hidden")
    local = {"judge_url": "http://127.0.0.1:9/v1"}
    assert request(judge_key_file="key.txt", **local).key() == "sk-hidden"
    assert request(judge_key_variable="SOME_KEY", **local).key() == "sk-hidden"
    endpoint = Endpoint([ECHO])
    evaluate(request(judge_key_file="key.txt", judge_url=endpoint.url), folder / "out")
    endpoint.server.shutdown()
    endpoint.server.server_close()
    assert b"Bearer [key]" in (folder / "out" / "answers.jsonl").read_bytes()
    assert not [path for path in (folder / "out").rglob("*") if path.is_file() and b"sk-hidden" in path.read_bytes()]


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"data": []}, "--data must name one or more files"),
    ({"data": ["a/x.jsonl", "b/x.jsonl"]}, "--data must name one or more files of different names"),
    ({"max_new_tokens": 399}, "--samples 12 is more than the 0 rows of towns"),
    ({"samples": 19}, "--samples 19 is more than the 18 rows of towns"),
    ({"judge_price": (1.0, 2.0)}, "cannot be used without --judge-url"),
    ({"judge_url": "http://h/v1", "judge_price": (1.0,)}, "--judge-price must be two numbers"),
    ({"judge_url": "http://h/v1", "judge_budget": 1.0}, "--judge-budget needs --judge-price"),
    ({"judge_url": "http://h/v1", "judge_key_file": "k", "judge_key_variable": "V"}, "are both given; give one"),
    ({"judge_url": "http://h/v1", "judge_key_file": "nowhere"}, "judge_key_file nowhere: there is no such file"),
    ({"judge_url": "http://h/v1", "judge_key_variable": "NO_SUCH_NAME"}, "NO_SUCH_NAME: it is not set, or empty"),
    ({"name": "no/model", "judge": "model"}, "model no/model"),
])  # fmt: skip
def test_unusable_input_costs_one_sentence_and_nothing_on_disk(folder, fields, pattern):
    with pytest.raises(InputError, match=pattern):
        evaluate(request(**{"judge": "model", **fields}), folder / "out")
    assert not (folder / "out").exists()


def test_a_model_without_numbers_is_named(folder, monkeypatch):
    real = module.load_model

    def broken(*given, **named):
        loaded = real(*given, **named)
        with torch.no_grad():
            loaded.model.lm_head.weight.fill_(torch.nan)
        return loaded

    monkeypatch.setattr(module, "load_model", broken)
    with pytest.raises(InputError, match=r"model model: .* not numbers"):
        evaluate(request(), folder / "out", judge=Reader())
