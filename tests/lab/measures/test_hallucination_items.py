"""Contextual hallucination: systems whose score is known get it, and the measures beside it tell them apart."""

import json
import random

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.measures.hallucination import GOLD, MODEL, WRONG
from antiphase.lab.measures.hallucination.items import Item, draw, lead, load_items, measures, score, wrong_references

TOWNS = ["Oban", "Tobermory", "Ullapool", "Stornoway", "Kirkwall", "Lerwick", "Mallaig", "Portree"]
COLOURS = ["red", "blue", "green", "grey"]


def documents(count=40):
    """Documents of five sentences; the fourth is what the summary says."""
    draws = random.Random(3)
    found = []
    for index in range(count):
        town, colour = TOWNS[index % len(TOWNS)], draws.choice(COLOURS)
        said = f"The council of {town} painted the harbour {colour}."
        text = f"It rained in {town} all day long. Nobody went out to sea. The shops closed early. {said} More to come."
        found.append(Item("summarization", f"row {index}", text, (said,)))
    return found


def replies(count=40):
    """Questions about the same documents; the answer is the colour."""
    return [
        Item(
            "question answering",
            item.place,
            item.context,
            (item.references[0].split()[-1].strip("."),),
            "Which colour?",
        )
        for item in documents(count)
    ]


def honest(items, outputs):
    """A judge that is never wrong here: every sentence of a summary stands in the text; the reply is the answer."""
    return [
        all(sentence.strip(" .") in item.context for sentence in output.split(". "))
        if item.kind == "summarization"
        else output.strip(" .") == item.references[0]
        for item, output in zip(items, outputs, strict=True)
    ]


def judged(items, outputs, judge=honest):
    return score(MODEL, items, outputs, judge(items, outputs))


SYSTEMS = {
    "perfect": lambda items: [item.references[0] for item in items],
    "constant": lambda items: [items[0].references[0]] * len(items),
    "empty": lambda items: ["", " ", "\n"] + [""] * (len(items) - 3), "copying": lead,
    "listing": lambda items: [item.context if item.kind == "summarization" else ", ".join(COLOURS) for item in items],
}  # fmt: skip


def guesses(items):
    draws = random.Random(11)
    return [
        f"The council of {draws.choice(TOWNS)} painted the harbour {draws.choice(COLOURS)}."
        if item.kind == "summarization"
        else draws.choice(COLOURS)
        for item in items
    ]


def test_summaries_of_known_systems():
    items = documents()
    found = {name: judged(items, system(items)) for name, system in SYSTEMS.items()}
    assert found["perfect"].accuracy == 1
    assert found["perfect"].coverage == found["perfect"].entity_coverage == 1
    right = sum(items[0].references[0] in item.context for item in items)
    assert found["constant"].right == right < len(items)
    assert found["empty"].accuracy == found["empty"].coverage == found["empty"].copied == 0
    assert (found["empty"].empty, found["empty"].wrong) == (40, 40)
    # who copies says nothing wrong, and is seen in what it covers and copies
    assert found["copying"].accuracy == 1
    assert found["copying"].copied == 1
    assert found["copying"].coverage < 0.3
    # who lists everything covers everything, and is seen in what it copies and how much it says
    assert found["listing"].accuracy == found["listing"].copied == found["listing"].coverage == 1
    assert found["listing"].words > 3 * found["perfect"].words


def test_a_guessing_summarizer_is_right_as_often_as_it_guesses():
    items = documents(8 * 4 * 100)
    found = judged(items, guesses(items))
    assert found.accuracy == pytest.approx(1 / 32, abs=0.01)
    assert found.interval[0] < 1 / 32 < found.interval[1]


def test_replies_of_known_systems():
    items = replies(400)
    found = {name: judged(items, system(items)) for name, system in {**SYSTEMS, "guessing": guesses}.items()}
    assert found["perfect"].accuracy == found["perfect"].f1 == 1
    assert found["constant"].accuracy == sum(i.references == items[0].references for i in items) / 400
    assert found["guessing"].accuracy == pytest.approx(1 / 4, abs=0.06)
    assert found["guessing"].f1 == found["guessing"].accuracy
    assert found["empty"].accuracy == found["empty"].f1 == 0
    assert found["copying"].accuracy == found["listing"].accuracy == 0
    assert found["listing"].coverage == 1  # and yet it is not right, nor near:
    assert found["listing"].f1 == pytest.approx(2 / 5)


def test_unjudged_outputs_are_never_right_and_an_empty_output_is_wrong_whatever_the_judge_says():
    items = documents(4)
    found = score(MODEL, items, ["a", "b", "", " "], [None, True, True, None])
    assert (found.right, found.wrong, found.empty, found.unjudged) == (1, 2, 2, 1)
    assert found.accuracy == 1 / 4
    assert found.accuracy_at_most == 2 / 4


def test_the_judge_errs_where_the_truth_is_known():
    """Of references it is wrong to say no, of references made wrong to say yes; no verdict and no text are no error."""
    items = documents(6)
    texts, said = ["a", "b", "c", "d", "e", ""], [True, True, True, False, None, None]
    errors = {system: score(system, items, texts, said).judge_error for system in (MODEL, GOLD, WRONG)}
    assert errors == {MODEL: None, GOLD: 1 / 4, WRONG: 3 / 4}


def test_measures_take_the_reference_that_fits_best():
    item = Item("question answering", "row", "It is 3 miles to Oban.", ("three", "3 miles"), "How far?")
    assert measures(item, "3 miles") == {"coverage": 1, "entity_coverage": 1, "copied": 1, "words": 2, "f1": 1}
    assert measures(item, "three")["coverage"] == 1


@pytest.mark.parametrize("make", [documents, replies])
def test_wrong_references_are_wrong(make):
    items = make()
    wrong = wrong_references(items, 0)
    assert wrong == wrong_references(items, 0)
    assert wrong != wrong_references(items, 1)
    assert all(text is not None and text != item.references[0] for item, text in zip(items, wrong, strict=True))
    assert not any(honest(items, wrong))
    assert wrong_references(items[:1], 0) == [None]  # nothing to take another from


def test_rows_of_either_kind_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {"document": " A text. ", "summary": "Text.", "id": 1},
        {"context": "A text.", "question": "What?", "answers": {"text": ["text", "a text"]}},
        {"article": "A text.", "highlights": "Text."}, {"passage": "A text.", "question": "What?", "answer": "text"},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = load_items(str(path))
    assert [item.kind for item in items] == ["summarization", "question answering"] * 2
    assert [item.references for item in items] == [("Text.",), ("text", "a text"), ("Text.",), ("text",)]
    assert items[0].prompt == "Document: A text.\n\nSummary of the document in one sentence:"
    assert "A text." in items[1].asked("{broken")
    assert "text / a text" in items[1].asked("")
    assert "{broken" in items[1].asked("{broken")


@pytest.mark.parametrize(("row", "pattern"), [
    ({"document": "A text."}, "line 1: summarization needs one of the columns summary, highlights, target"),
    ({"summary": "A text."}, "needs one of the columns document, article"),
    ({"document": "  ", "summary": "x"}, "line 1: the text is empty"),
    ({"document": 3, "summary": "x"}, "line 1: the text is empty or not text"),
    ({"document": "A text.", "summary": ""}, "there is no right summary"),
    ({"document": "A text.", "summary": None}, "there is no right summary"),
    ({"context": "A text.", "question": "q?", "answers": ["x", None]}, "there is no right answer"),
    ({"context": "A text.", "question": "q?", "answers": {"text": None}}, "there is no right answer"),
    ({"context": "A text.", "question": "q?", "answers": {"start": [1]}}, "there is no right answer"),
    ({"context": None, "question": "q?", "answer": "x"}, "the text is empty"),
    ({"context": "A text.", "question": "Q", "answers": []}, "there is no right answer"),
    ({"context": "A text.", "question": " ", "answer": "x"}, "the question is empty"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_named(tmp_path, row, pattern):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=pattern):
        load_items(str(path))


def test_plain_text_has_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("Etymology. The word is old.\n\nIt rained.\n")
    with pytest.raises(InputError, match=r"a\.txt: plain text has no columns; give .* with document and summary, or"):
        load_items(str(tmp_path / "a.txt"))


def test_items_are_drawn_alike_for_every_model_and_those_that_do_not_fit_are_counted(text_tokenizer):
    items = [*documents(20), Item("summarization", "long", "word " * 500, ("word",))]
    first = draw(items, text_tokenizer, name="a", samples=12, seed=0, room=None)
    assert first == draw(items, text_tokenizer, name="a", samples=12, seed=0, room=None)
    assert first.items != draw(items, text_tokenizer, name="a", samples=12, seed=1, room=None).items
    assert first.left_out == 0
    room = max(len(text_tokenizer(item.prompt)["input_ids"]) for item in items[:20])
    fitting = draw(items, text_tokenizer, name="a", samples=20, seed=0, room=room)
    assert all(len(ids) <= room for ids in fitting.prompts)
    assert fitting.left_out == ("long" in [i.place for i in draw(
        items, text_tokenizer, name="a", samples=20 + 1, seed=0, room=None).items[:-1]])  # fmt: skip
    with pytest.raises(InputError, match=f"more than the 20 rows of a .*1 do not fit into the {room} tokens"):
        draw(items, text_tokenizer, name="a", samples=21, seed=0, room=room)
