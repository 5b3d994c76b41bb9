"""Tasks that need only text: the right answer is in it, known systems get their score, and too little is refused."""

import copy

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.calibrate.measuring import hash_of_sample
from antiphase.lab.text.retrieval import needle_page
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import END, PAGE_OPENING, train_tokenizer
from support.tasks import data, score_of, written


@pytest.mark.slow
@pytest.mark.usefixtures("asks_nothing")
def test_needles(tmp_path, tokenizer, tiny_model):
    text = " ".join(f"the cat sat on mat {i} ." for i in range(400))
    path = written(tmp_path, {"template": "needles", "data": data(tmp_path, "book.txt", text), "length": 300})
    task = load_task(path, tokenizer, samples=6, longest=300)
    assert (len(task.samples), task.chance) == (6, 0.25)
    for sample in task.samples:
        said = tokenizer.decode(sample.prompt)
        city = said.rsplit("City number: ", 1)[1]
        assert f"City number: {city}{tokenizer.decode(sample.options[0])}." in said
    right = {s.prompt: s.options[0] for s in task.samples}
    assert score_of(task, right.get, len(tokenizer)) == 1.0
    assert score_of(task, lambda prompt: right[prompt][:-1], len(tokenizer)) == 0.0
    with pytest.raises(InputError, match="length \\(300\\) is more than the 200"):
        load_task(path, tokenizer, longest=200)
    run = load_preset("demo", ["data.one_token_numbers=true"], data=[str(tmp_path / "book.txt")]).run
    asked = load_task(path, train_tokenizer([text, *[needle_page()] * 6], 1500, digits=2), samples=6, run=run)
    assert {len(sample.options[0]) for sample in asked.samples} == {1}


@pytest.mark.slow
@pytest.mark.usefixtures("asks_nothing")
def test_continuations(tmp_path, tokenizer):
    text = " ".join(f"the cat sat on mat {i} and ran to log {i * 7 % 50} ." for i in range(400))
    tree = {"template": "continuation", "data": data(tmp_path, "book.txt", text), "length": 40, "continuation": 9}
    task = load_task(written(tmp_path, tree), tokenizer, samples=60)
    whole = tokenizer(text + "\n")["input_ids"]
    assert task.chance == 0.25
    for sample in task.samples:
        asked = list(sample.prompt) + list(sample.options[sample.target])
        places = [i for i in range(len(whole)) if whole[i : i + 49] == asked]
        assert sample.row * 49 in places
        assert len(set(sample.options)) == 4
        assert {len(option) for option in sample.options} == {9}
    targets = torch.bincount(torch.tensor([sample.target for sample in task.samples]), minlength=4)
    assert targets.min() >= 5  # the right one stands anywhere
    assert task.samples == load_task(written(tmp_path, tree), tokenizer, samples=60).samples
    assert score_of(task, {s.prompt: s.options[s.target] for s in task.samples}.get, len(tokenizer)) == 1.0
    again = load_task(written(tmp_path, tree), tokenizer, samples=60, seed=1)  # with other wrong choices
    rows = {sample.row: hash_of_sample(sample) for sample in task.samples}
    same = [(hash_of_sample(sample), rows[sample.row]) for sample in again.samples if sample.row in rows]
    assert len(same) >= 10
    assert all(one == other for one, other in same)
    rows = data(tmp_path, "book.jsonl", [{"title": "a", "body": text}])
    with pytest.raises(InputError, match=r"columns: title, body\); call the one that holds the text 'text'"):
        load_task(written(tmp_path, {**tree, "data": rows}), tokenizer)
    with pytest.raises(InputError, match=r"the text has .* tokens, .* passages of 49, for 5000 samples"):
        load_task(written(tmp_path, tree), tokenizer, samples=5000)
    with pytest.raises(InputError, match="are more than the 48 the model reads"):
        load_task(written(tmp_path, tree), tokenizer, longest=48)


def test_a_continued_text_begins_as_the_tokenizer_opens_one(tmp_path, tokenizer):
    other = copy.deepcopy(tokenizer)
    del other.init_kwargs[PAGE_OPENING]
    other.backend_tokenizer.post_processor = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    text = " ".join(f"the cat sat on mat {i} and ran to log {i * 7 % 50} ." for i in range(100))
    tree = {"template": "continuation", "data": data(tmp_path, "book.txt", text), "length": 40, "continuation": 9}
    ours, theirs = (load_task(written(tmp_path, tree), one, samples=9, longest=50) for one in (tokenizer, other))
    assert [sample.prompt for sample in theirs.samples] == [(0, *sample.prompt) for sample in ours.samples]
    load_task(written(tmp_path, tree), tokenizer, samples=9, longest=49)
    with pytest.raises(InputError, match="are more than the 49 the model reads"):
        load_task(written(tmp_path, tree), other, samples=9, longest=49)
