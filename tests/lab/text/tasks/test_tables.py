"""A table of texts and labels is a task: its columns are found, or the refusal names them."""

import re

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.measures.inputs import task_content
from antiphase.lab.text.tasks.tasks import load_labelled_task, load_task
from support.tasks import data


@pytest.mark.parametrize(("name", "content", "wanted"), [
    ("t.csv", "review,stars\n\"broke, sadly\",bad\nfine,good\nfine too,good\n", ("broke, sadly", [" bad", " good"])),
    ("t.jsonl", [{"id": 1, "label": "b", "text": "x"}, {"id": 2, "label": "a", "text": "y"}], ("x", [" a", " b"])),
])  # fmt: skip
def test_a_table_is_a_task(tmp_path, text_tokenizer, name, content, wanted):
    task = load_task(str(tmp_path / data(tmp_path, name, content)), text_tokenizer, samples=1, seed=0)
    words, options = wanted
    (sample,) = [one for one in load_task(str(tmp_path / name), text_tokenizer, samples=9, seed=0).samples
                 if words in text_tokenizer.decode(one.prompt)]  # fmt: skip
    assert text_tokenizer.decode(sample.prompt).endswith(f"{words}\nLabel:")
    assert [text_tokenizer.decode(one) for one in sample.options] == options
    assert task.name == "t"


@pytest.mark.parametrize(("content", "words"), [
    ("a,b,c\n1,2,3\n", "which column holds the text cannot be determined (columns: a, b, c); the first line must "
     "name the columns; give the right one with --text-field"),
    ("my text,label\nx,y\n", "the column 'my text' has no name that a template takes"),
])  # fmt: skip
def test_a_table_whose_columns_are_unclear_is_refused(tmp_path, text_tokenizer, content, words):
    with pytest.raises(InputError, match=re.escape(words)):
        load_task(str(tmp_path / data(tmp_path, "t.csv", content)), text_tokenizer, samples=1, seed=0)


def test_columns_of_a_table_are_chosen(tmp_path, text_tokenizer):
    path = str(tmp_path / data(tmp_path, "t.csv", "text,label,words,mood\nx,1,hay,sad\ny,2,straw,glad\n"))
    task = load_task(path, text_tokenizer, columns=("words", "mood"))
    assert [text_tokenizer.decode(one.prompt).split()[-2] for one in task.samples] == ["hay", "straw"]
    assert task_content([path], ("words", "mood")) != task_content([path])
    rows = load_labelled_task(path, text_tokenizer, columns=(None, "mood"))
    assert set(rows.labels) == {"sad", "glad"}
    (tmp_path / "t.yaml").write_text("template: cr\ndata: t.csv\n")
    for own, columns, words in [
        (path, ("wrds", None), "--text-field wrds: there is no such column; did you mean 'words'?"),
        (str(tmp_path / "t.yaml"), (None, "mood"), "--text-field and --label-field are for tables"),
    ]:
        with pytest.raises(InputError, match=re.escape(words)):
            load_task(own, text_tokenizer, columns=columns)
