"""Tasks: prompts say what the template says, options follow the prompt alone, known systems get their score."""

import copy
import json
import logging

import pyarrow
import pyarrow.parquet
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from antiphase.base.errors import InputError
from antiphase.lab.scoring.task_scores import exact_match, f1, log_probabilities, probabilities, score_samples
from antiphase.lab.studies.calibrate.measuring import hash_of_sample
from antiphase.lab.text.tasks.task_files import template_names
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import END
from support.models import alone
from support.tasks import data, score_of, written

FORMATS = {  # template: (file, content, extra keys, first prompt, its options, the right one)
    "trec": ("t.txt", "HUM:ind Who ?\nNUM:date When ?\n", {}, "Question: Who ?\nType:",
             [" abbreviation", " description", " entity", " person", " location", " number"], 3),
    "trec-fine": ("t.txt", "HUM:ind Who ?\nNUM:date When ?\n", {}, "Question: Who ?\nType:",
                  [" hum ind", " num date"], 0),
    "subj": ("s.all", "1 so it is\n0 lovely\n", {}, "Sentence: so it is\nThis is", [" an opinion", " a fact"], 1),
    "cr": ("c.all", "0 broke\n1 fine\n", {}, "Review: broke\nSentiment:", [" negative", " positive"], 0),
    "mpqa": ("m.all", "0 failing\n1 fine\n", {}, "Phrase: failing\nSentiment:", [" negative", " positive"], 0),
    "word-colours": ("w", "red apple\nblue boat\n", {}, "Colour: apple", [" blue", " red"], 1),
    "sst-5": ("s5", "4 wow\n0 no\n", {}, "Review: wow\nSentiment:",
              [" terrible", " bad", " okay", " good", " great"], 4),
    "stsa-binary": ("s5", "2 so so\n4 wow\n1 no\n0 never\n", {}, "Review: wow\nSentiment:",
                    [" negative", " positive"], 1),
    "clinc-150": ("c.json", json.dumps({"test": [["pay it", "pay_bill"], ["hi", "hello"]],
                                         "train": [["pay me", "pay_bill"]]}), {},
                  "Request: pay it\nIntent:", [" hello", " pay bill"], 1),
    "banking-77": ("b77.csv", 'text,category\n"\nPay, how?",activate_my_card\nMine?,Refund_not_showing_up\n', {},
                   "Request: Pay, how?\nIntent:", [" refund not showing up", " activate my card"], 1),
    "sst-2": ("s2.tsv", "sentence\tlabel\na joy \t1\nno\t0\n", {}, "Review: a joy\nSentiment:",
              [" negative", " positive"], 1),
    "mr": ({"negative": "n.txt", "positive": "p.txt"}, "dull \n", {}, "Review: dull\nSentiment:",
           [" negative", " positive"], 0),
    "ag-news": ("ag.csv", '"3","Oil, up","It rose."\n"1","War","It began."\n', {}, "Oil, up\nIt rose.\nTopic:",
                [" world", " sports", " business", " technology"], 2),
    "boolq": ("b.jsonl", [{"question": "is it", "passage": "It is.", "answer": True},
                          {"question": "is it not", "passage": "It is.", "answer": False}], {},
              "It is.\nQuestion: is it?\nAnswer:", [" no", " yes"], 1),
    "hellaswag": ("h.jsonl", [{"ctx": "A man", "endings": ["sits.", "runs.", "eats.", "sleeps."], "label": "2"}], {},
                  "A man", [" sits.", " runs.", " eats.", " sleeps."], 2),
    "arc": ("a.jsonl", [{"question": "Why?", "choices": {"text": ["so", "thus"], "label": ["A", "B"]},
                         "answerKey": "B"}], {}, "Question: Why?\nAnswer:", [" so", " thus"], 1),
    "arc-original": ("a.jsonl", [{"question": {"stem": "Why?", "choices": [{"text": "so", "label": "1"},
                                                                         {"text": "thus", "label": "2"}]},
                                  "answerKey": "1"}], {}, "Question: Why?\nAnswer:", [" so", " thus"], 0),
    "piqa": ("p.jsonl", [{"goal": "Open it", "sol1": "push", "sol2": "pull"}], {"columns": {"label": "p.lst"}},
             "Question: Open it\nAnswer:", [" push", " pull"], 1),
    "squad": ("s.json", json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "I am.", "qas": [
        {"id": "1", "question": "Who?", "answers": [{"text": "I"}, {"text": "me"}]}]}]}]}), {},
              "Title: T\n\nI am.\n\nQuestion: Who?\nAnswer:", [" I"], 0),
}  # fmt: skip


def test_every_template_is_tried():
    assert set(FORMATS) | {"continuation", "needles"} == set(template_names())


KIM = {
    "sst-2": ("stsa.binary.test", "Review: {}\nSentiment:"), "mr": ("rt-polarity.all", "Review: {}\nSentiment:"),
    "sst-5": ("stsa.fine.test", "Review: {}\nSentiment:"), "cr": ("custrev.all", "Review: {}\nSentiment:"),
    "mpqa": ("mpqa.all", "Phrase: {}\nSentiment:"), "subj": ("subj.all", "Sentence: {}\nThis is"),
}  # fmt: skip
"""Sets as Y. Kim published them (1408.5882): ``LABEL text`` lines, some in Latin-1."""


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("template", KIM)
def test_sets_are_read_as_they_were_published(template, encoding, tmp_path, tokenizer, caplog):
    name, prompt = KIM[template]
    (tmp_path / name).write_bytes("1 a good café , été\n0 naïve stuff\n".encode(encoding))
    task = load_task(written(tmp_path, {"template": template, "data": name}), tokenizer)
    first, second = task.samples
    assert tokenizer.decode(first.prompt) == prompt.format("a good café , été")
    assert (first.target, second.target) == (1, 0)
    said = [line.getMessage() for line in caplog.records]
    assert said == (
        [] if encoding == "utf-8" else [f"data {tmp_path / name}: the text is not UTF-8, it is read as Latin-1"]
    )


def test_latin_1_is_read_only_where_the_task_says_so(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_bytes("1 café\n0 naïve\n".encode("latin-1"))
    tree = {"kind": "classification", "data": "a.txt", "prompt": "{{ text }}:"}
    with pytest.raises(InputError, match=r"a\.txt, line 1: the text is not UTF-8 at byte 5"):
        load_task(written(tmp_path, tree), tokenizer)
    assert len(load_task(written(tmp_path, {**tree, "encoding": "latin-1"}), tokenizer).samples) == 2
    with pytest.raises(InputError, match="encoding"):
        load_task(written(tmp_path, {**tree, "encoding": "utf-16"}), tokenizer)


@pytest.mark.parametrize("template", FORMATS)
def test_public_formats(template, tmp_path, tokenizer):
    source, content, extra, prompt, options, target = FORMATS[template]
    for name in source.values() if isinstance(source, dict) else [source]:
        data(tmp_path, name, content)
    data(tmp_path, "p.lst", "1\n")
    task = load_task(written(tmp_path, {"template": template, "data": source, **extra}), tokenizer)
    sample = task.samples[0]
    assert task.name == "task"  # the file's: two files may use one template
    assert tokenizer.decode(sample.prompt) == prompt
    assert [tokenizer.decode(option) for option in sample.options] == options
    assert sample.target == target
    if template == "squad":
        assert (sample.answers, sample.metric, task.chance) == (
            ("I", "me"),
            "f1",
            1.0,
        )  # one row: its own answer is the best constant
    else:
        assert sample.metric == "accuracy"
        assert task.chance >= 1 / len(options)


def test_examples_are_the_same_for_all_and_are_not_asked(tmp_path, tokenizer):
    rows = "".join(f"{i % 2} word{i}\n" for i in range(12))
    path = written(tmp_path, {"template": "cr", "data": data(tmp_path, "c.all", rows), "shots": 3})
    one, again, other = (load_task(path, tokenizer, seed=seed) for seed in (0, 0, 1))
    prompts = [tokenizer.decode(sample.prompt) for sample in one.samples]
    assert len(prompts) == 9
    assert prompts == [tokenizer.decode(sample.prompt) for sample in again.samples]
    assert prompts != [tokenizer.decode(sample.prompt) for sample in other.samples]
    shown = prompts[0].rsplit("\n\n", 1)[0]
    assert shown.count("Sentiment: ") == 3
    for sample, prompt in zip(one.samples, prompts, strict=True):
        start, asked = prompt.rsplit("\n\n", 1)
        assert start == shown
        assert asked.split("\n")[0].removeprefix("Review: ") not in shown.replace("\n", " ").split(" ")
        name, first, last = sample.spans[1]
        assert name == "question"
        assert tokenizer.decode(sample.prompt[first:last]) == asked
    few = load_task(path, tokenizer, samples=4, shots=0)
    assert len(few.samples) == 4
    assert "\n\n" not in tokenizer.decode(few.samples[0].prompt)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"kind": "classification", "data": "c.all"}, "prompt is missing"), ({"template": "cr"}, "data is missing"),
        ({"template": "crr", "data": "c.all"}, "unknown template 'crr'; did you mean 'cr'?"),
        ({"template": "cr", "data": "c.all", "promt": "x"}, "unknown key 'promt'; did you mean 'prompt'?"),
        ({"template": "cr", "data": "missing.txt"}, "there is no such file"),
        ({"template": "cr", "data": "c.all", "labels": {"0": "bad", "1": "bad"}}, "'bad' have the same tokens"),
        ({"template": "cr", "data": "c.all", "labels": {"0": "bad"}}, "'1' occurs in the data but not in the task"),
        ({"template": "cr", "data": "c.all", "prompt": "{{ txt }}:"}, "'txt' is undefined; columns: text, label"),
        ({"template": "cr", "data": "c.all", "labels": {"0": "bad", "1": " "}}, "no text is given for the label '1'"),
        ({"template": "cr", "data": "c.all", "prompt": "{{ range(10**9)|list }}"}, "the prompt cannot be filled in"),
        ({"template": "cr", "data": "c.all", "target": "1 // 0"}, "target cannot be found"),
        ({"template": "cr", "data": "c.all", "prompt": "{{ text"}, "prompt is not a Jinja template"),
        ({"template": "cr", "data": "c.all", "target": "labels"}, "target is missing (columns: text, label)"),
        ({"template": "cr", "data": "one.all", "labels": {}}, "all rows have the label '0'; a task needs at least two"),
        ({"template": "stsa-binary", "data": "one.all"}, "all rows have the label 'negative'"),  # two classes, not five
        ({"template": "cr", "data": "c.all", "shots": 2}, "shots (2) needs more rows than the 2"),
        ({"template": "cr", "data": "c.all", "shots": -1}, "shots must be at least 0"),
        ({"template": "cr", "data": "c.all", "metric": "f1"}, "metric f1 does not fit the kind classification"),
        ({"template": "cr", "data": "c.all", "delimiter": "", "prompt": "the c", "labels": {"0": "at", "1": "ow"}},
         "is tokenized together with the end of the prompt"),
        ({"template": "hellaswag", "data": "h.jsonl"}, "target must be a number from 0 to 1, got 5"),
    ],
)  # fmt: skip
def test_bad_tasks_are_named(tree, said, tmp_path, tokenizer):
    data(tmp_path, "c.all", "0 bad\n1 fine\n")
    data(tmp_path, "one.all", "0 bad\n0 fine\n")
    data(tmp_path, "h.jsonl", [{"ctx": "a", "endings": ["x", "y"], "label": 5}])
    with pytest.raises(InputError) as caught:
        load_task(written(tmp_path, tree), tokenizer)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_a_null_is_an_empty_text_in_a_prompt(kind, tmp_path, tokenizer, caplog):
    rows = [
        {"text": text, "said": ["a", None], "label": number % 2} for number, text in enumerate(["cat", None, "dog"])
    ]
    if kind == ".jsonl":
        data(tmp_path, "rows.jsonl", rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    tree = {"kind": "classification", "data": f"rows{kind}", "prompt": "{{ said | join(',') ~ text }}:"}
    with caplog.at_level(logging.WARNING):
        task = load_task(written(tmp_path, tree), tokenizer)
        assert [tokenizer.decode(s.prompt) for s in task.samples] == ["a,cat:", "a,:", "a,dog:"]
        assert not caplog.messages
        load_task(written(tmp_path, {**tree, "prompt": "{{ text }}:"}), tokenizer)
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "the text is empty (1 such rows); it is kept"
    ]


@pytest.mark.parametrize("blank", [None, "", " "])
def test_what_is_asked_for_may_not_be_empty(blank, tmp_path, tokenizer):
    rows = [
        {"q": "cat?", "x": "yes", "list": ["mat", "log"], "n": 0},
        {"q": "dog?", "x": blank, "list": ["mat", blank]},
    ]
    data(tmp_path, "rows.jsonl", [{**row, "n": 0} for row in rows])
    base = {"data": "rows.jsonl", "prompt": "{{ q }}"}
    for tree, words in (
        ({"kind": "classification", "target": "x"}, "there is no label"),
        ({"kind": "choice", "choices": "list", "target": "n"}, "choice 1 is empty"),
        ({"kind": "answer", "target": "x"}, "there is no right answer"),
        ({"kind": "answer", "target": "list"}, "one of the right answers is empty"),
    ):
        with pytest.raises(InputError, match=f"line 2: {words}"):
            load_task(written(tmp_path, {**base, **tree}), tokenizer)
    tree = {**base, "kind": "answer", "target": "list | map('trim') | select | list"}
    assert [s.answers for s in load_task(written(tmp_path, tree), tokenizer).samples] == [("mat", "log"), ("mat",)]


def test_a_prompt_longer_than_the_model_is_refused(tmp_path, tokenizer):
    path = written(tmp_path, {"template": "cr", "data": data(tmp_path, "c.all", "0 fine\n1 " + "word " * 50 + "\n")})
    with pytest.raises(InputError, match=r"line 2: the prompt has \d+ tokens .* the model reads 60 at most"):
        load_task(path, tokenizer, longest=60)


def test_a_column_may_have_any_name(tmp_path, tokenizer):
    rows = [{"self": 1, "args": "fine", "label": label} for label in ("a", "b", "a")]
    tree = {"kind": "classification", "data": data(tmp_path, "d.jsonl", rows), "prompt": "{{ args }}:"}
    task = load_task(written(tmp_path, {**tree, "keep": "label != 'c'"}), tokenizer)
    assert [sample.target for sample in sorted(task.samples, key=lambda sample: sample.row)] == [0, 1, 0]


def test_templates_cannot_reach_python(tmp_path, tokenizer):
    tree = {"template": "cr", "data": data(tmp_path, "c.all", "0 a\n1 b\n"), "prompt": "{{ text.__class__.__mro__ }}:"}
    with pytest.raises(InputError, match="prompt cannot be filled in"):
        load_task(written(tmp_path, tree), tokenizer)


@pytest.mark.usefixtures("asks_nothing")
def test_known_systems_get_their_scores(tmp_path, tokenizer):
    rows = "".join(f"{0 if i % 4 else 1} word{i}\n" for i in range(20))
    path = written(tmp_path, {"template": "cr", "data": data(tmp_path, "c.all", rows)})
    task = load_task(path, tokenizer)
    right = {s.prompt: s.options[s.target] for s in task.samples}
    wrong = {s.prompt: s.options[1 - s.target] for s in task.samples}
    negative = task.samples[0].options[0]
    size = len(tokenizer)
    assert score_of(task, right.get, size) == 1.0
    assert score_of(task, wrong.get, size) == 0.0
    assert score_of(task, lambda prompt: negative, size) == 0.75 == task.chance  # constant: the commonest label
    assert score_of(task, lambda prompt: (), size) == 0.75  # writes nothing: all options alike, the first one is taken


@pytest.mark.usefixtures("asks_nothing")
def test_open_answers_of_known_systems(tmp_path, tokenizer):
    asked = {"context": "Lines hold.", "title": "T"}
    passage = [{**asked, "question": f"Which {i}?", "answers": {"text": [f"cat {i}"]}} for i in range(5)]
    base = {"template": "squad", "data": data(tmp_path, "s.jsonl", passage)}
    size = len(tokenizer)
    for metric in ("f1", "exact_match"):
        task = load_task(written(tmp_path, {**base, "metric": metric}), tokenizer)
        answers = {s.prompt: tokenizer(" " + s.answers[0])["input_ids"] for s in task.samples}
        assert score_of(task, answers.get, size) == 1.0
        assert score_of(task, lambda prompt: [], size) == 0.0
        ended = {p: [*a, *tokenizer("\nand more")["input_ids"]] for p, a in answers.items()}
        assert score_of(task, ended.get, size) == 1.0  # the answer ends with the line
        listed = tokenizer(" cat 0 cat 1 cat 2 cat 3 cat 4")["input_ids"]  # lists everything
        expected = 0.0 if metric == "exact_match" else 2 * 2 / (10 + 2)
        assert score_of(task, lambda prompt, listed=listed: listed, size) == pytest.approx(expected)


def test_chance_of_open_answers_is_the_best_constant_one(tmp_path, tokenizer):
    rows = [{"q": f"is it {i}", "a": ["yes", "it is"] if i % 4 else ["no"]} for i in range(8)]
    path = data(tmp_path, "q.jsonl", "\n".join(map(json.dumps, rows)))
    base = {"kind": "answer", "data": path, "prompt": "{{ q }}:", "target": "a"}
    assert load_task(written(tmp_path, base), tokenizer).chance == 6 / 8
    found = load_task(written(tmp_path, {**base, "metric": "f1"}), tokenizer)
    assert found.chance == 6 / 8


def test_chance_of_choices_knows_their_lengths(tmp_path, tokenizer):
    """Always the longest choice is right in three of four rows, whose place tells nothing."""
    rows = []
    for i in range(8):
        choices = ["cat", "dog", "sun"]
        place = i % 3 if i < 6 else 0
        choices[place] = "a much longer word" if i < 6 else choices[place]
        choices[(place + 1) % 3] = choices[(place + 1) % 3] if i < 6 else "another quite long word"
        rows.append({"q": f"which {i}", "choices": choices, "label": place})
    path = data(tmp_path, "q.jsonl", "\n".join(map(json.dumps, rows)))
    task = load_task(written(tmp_path, {"kind": "choice", "data": path, "prompt": "{{ q }}:"}), tokenizer)
    assert task.chance == 6 / 8


def test_a_prompt_that_lists_its_choices_says_where(tmp_path, tokenizer):
    rows = [{"q": f"which {i}", "choices": ["cat", "dog 1", "sun"], "label": i % 3} for i in range(3)]
    path = data(tmp_path, "q.jsonl", "\n".join(map(json.dumps, rows)))
    base = {"kind": "choice", "data": path, "shots": 1, "demonstrations": path}
    task = load_task(written(tmp_path, {**base, "prompt": "{{ q }}: {{ choices | join(' or ') }}?"}), tokenizer)
    for sample in task.samples:
        start, stop = {name: (start, stop) for name, start, stop in sample.spans}["choices"]
        assert tokenizer.decode(sample.prompt[start:stop]).strip() == "cat or dog 1 or sun"
        assert sample.spans[1][1] <= start  # those of the question, not of the example
    task = load_task(written(tmp_path, {**base, "prompt": "{{ q }}:"}), tokenizer)
    assert {name for name, _, _ in task.samples[0].spans} == {"demonstrations", "question"}


@pytest.mark.parametrize("ends", ["", f" {END}"])
def test_parts_of_a_prompt_begin_after_its_first_special_token(tmp_path, tokenizer, ends):
    """So a row has the same question, and is the same sample, whatever precedes it, and no prompt ends before it."""
    first = copy.deepcopy(tokenizer)
    first.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{END} $A{ends}", special_tokens=[(END, tokenizer.bos_token_id)]
    )
    rows = "".join(f"{i % 2} the dog {i}\n" for i in range(9))
    path = written(tmp_path, {"template": "cr", "data": data(tmp_path, "c.all", rows)})
    found = [{s.row: s for s in load_task(path, first, shots=shots).samples} for shots in (0, 2)]
    assert len(found[1]) == 7
    for row, after in found[1].items():
        before = found[0][row]
        assert after.prompt[0] == before.prompt[0] == tokenizer.bos_token_id
        assert first.decode(after.prompt).endswith("Sentiment:")
        parts = [
            {name: first.decode(sample.prompt[start:stop]) for name, start, stop in sample.spans}
            for sample in (before, after)
        ]
        assert parts[0]["question"] == parts[1]["question"] == first.decode(before.prompt[1:])
        assert (parts[0]["demonstrations"], parts[1]["demonstrations"][:6]) == ("", "Review")
        assert hash_of_sample(before) == hash_of_sample(after)


LIST = "{{ q }}\n{% for choice in choices %}{{ loop.index }}. {{ choice }}\n{% endfor %}Answer:"


@pytest.mark.parametrize(
    ("question", "choices", "prompt", "listed"),
    [
        ("Which is heavier, gold or iron?", ["iron", "gold"], LIST, "iron\n2. gold"),
        ("Which is heavier, iron or gold?", ["iron", "gold"], LIST, "iron\n2. gold"),
        ("Which is heavier, iron or gold?", ["iron", "gold"], "{{ q }}:", None),
        ("Which is heavier, iron or gold?", ["iron", "gold"], "{{ choices | reverse | join(', ') }}: {{ q }}", None),
        ("Which is heavier?", ["iron", "gold"], "{{ choices | reverse | join(', ') }}: {{ q }}", None),
        ("Which is heavier, gold?", ["gold", "iron"], "{{ choices | reverse | join(', ') }}: {{ q }}", None),
        ("Which one?", ["a", "cat"], "{{ q }} {{ choices | join(' and ') }}:", "a and cat"),
        ("What is 3 + 10?", ["3", "13"], "{{ q }} {{ choices | join(' or ') }}?", "3 or 13"),
        ("What is 3 + 10?", [3, 13], "{{ q }} {{ choices | join(' or ') }}?", "3 or 13"),
        ("The first?", ["dog", "dog 1"], "{{ q }} {{ choices | join(' or ') }}?", "dog or dog 1"),
    ],
)
def test_choices_that_a_question_names_are_no_list(question, choices, prompt, listed, tmp_path, tokenizer):
    rows = [{"q": question, "choices": choices, "label": i} for i in (0, 1)]
    asked, shown = (data(tmp_path, f"{name}.jsonl", rows) for name in ("asked", "shown"))
    base = {"kind": "choice", "data": asked, "shots": 1, "demonstrations": shown, "prompt": prompt, "ask_shown": True}
    for sample in load_task(written(tmp_path, base), tokenizer).samples:
        parts = {name: tokenizer.decode(sample.prompt[start:stop]).strip() for name, start, stop in sample.spans}
        assert parts.get("choices") == listed


def test_words_are_compared_as_in_squad():
    assert exact_match("The  Cat!", ["a cat"]) == 1.0
    assert exact_match("The cat sat", ["cat", "cat sat"]) == 1.0
    assert exact_match("", ["cat"]) == 0.0
    assert f1("the black cat", ["cat", "dog"]) == pytest.approx(2 / 3)
    assert f1("cat cat", ["cat"]) == pytest.approx(2 / 3)
    assert f1("dog", ["cat"]) == 0.0
    assert exact_match("", ["the", "?"]) == f1("", ["the", "?"]) == 0.0  # nothing is no answer
    assert exact_match("The", ["the"]) == f1("A", ["a"]) == 1.0  # of articles alone nothing is left out
    assert f1("the", ["a"]) == 0.0


def test_smooth_scores(tmp_path, tokenizer, tiny_model):
    path = written(tmp_path, {"template": "cr", "data": data(tmp_path, "c.all", "0 fine\n1 bad\n0 a word\n")})
    task = load_task(path, tokenizer)
    model = tiny_model("softmax", vocab_size=len(tokenizer))
    logs = log_probabilities(model, task.samples)
    assert logs.requires_grad
    for sample, value in zip(task.samples, logs, strict=True):
        each = torch.stack([alone(model, list(sample.prompt), list(option)) for option in sample.options])
        assert value.item() == pytest.approx(each.log_softmax(0)[sample.target].item(), abs=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(probabilities(model, task.samples), logs.detach().exp())


def test_logits_that_are_not_finite_are_seen(tmp_path, tokenizer, tiny_model):
    path = written(tmp_path, {"template": "cr", "data": data(tmp_path, "c.all", "0 fine\n1 bad\n")})
    model = tiny_model("softmax", vocab_size=len(tokenizer))
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    assert score_samples(model, load_task(path, tokenizer).samples).isnan().all()
    rows = [{"context": "c", "question": "q", "title": "T", "answers": {"text": ["a"]}}]
    path = written(tmp_path, {"template": "squad", "data": data(tmp_path, "s.jsonl", rows)})
    with pytest.raises(ValueError, match="prompt 0"):
        score_samples(model, load_task(path, tokenizer).samples)


def test_prompts_without_content_are_the_rows_prompt_about_other_texts(tmp_path, tokenizer):
    data(tmp_path, "c.all", "0 the mat\n1 the cat sang\n0 a log\n")
    task = load_task(written(tmp_path, {"template": "cr", "data": "c.all", "shots": 1}), tokenizer)
    assert task.labels == ("negative", "positive")
    shown = tokenizer.decode(task.samples[0].prompt).rpartition("Review:")[0]
    texts = [tokenizer.decode(sample.prompt) for sample in task.content_free]
    assert texts == [f"{shown}Review: {text}\nSentiment:" for text in ("N/A", "[MASK]", "")]
    assert {sample.options for sample in task.content_free} == {task.samples[0].options}
    data(tmp_path, "q.jsonl", [{"text": "is it", "choices": ["a", "b"], "label": 0}])
    path = written(tmp_path, {"kind": "choice", "data": "q.jsonl", "prompt": "{{ text }}:"})
    assert load_task(path, tokenizer).content_free == load_task(path, tokenizer).labels == ()
    bare = {"kind": "classification", "data": "c.all", "prompt": "{{ text }}", "labels": {"0": "sad", "1": "glad"}}
    assert len(load_task(written(tmp_path, bare), tokenizer).content_free) == 2  # nothing can follow an empty prompt
