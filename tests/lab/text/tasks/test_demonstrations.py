"""Examples are rows that are not asked: of another split, of another file, or the others of the same data."""

import json

import pytest
import yaml

from antiphase.base.errors import InputError
from antiphase.lab.text.tasks.tasks import load_labelled_task, load_task
from antiphase.lab.text.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["Request: test train val 0 1 2 3 Intent: a b"] * 9, 300)


def written(tmp_path, **tree):
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({"template": "clinc-150", **tree}))
    return str(path)


def parts(tmp_path, tokenizer, content, **more):
    """The texts asked, and those shown before each of them, of CLINC-150's template."""
    (tmp_path / "c.json").write_text(json.dumps(content))
    task = load_task(written(tmp_path, data="c.json", shots=2, **more), tokenizer)
    prompts = [tokenizer.decode(sample.prompt).split("Request: ")[1:] for sample in task.samples]
    asked, shown = zip(*((own, tuple(of_shown)) for *of_shown, own in prompts), strict=True)
    return {text.split("\n")[0] for text in asked}, {text.split("\n")[0] for texts in shown for text in texts}


def test_examples_come_from_the_split_that_the_task_names(tmp_path, tokenizer):
    """CLINC-150's template shows rows of ``train``, and asks all of ``test``. Data without splits is never both."""
    splits = {
        name: [[f"{name} {index}", label] for index, label in enumerate(["a", "b", "a", "b"])]
        for name in ("test", "train", "val")
    }
    texts = {name: {text for text, _ in rows} for name, rows in splits.items()}
    asked, shown = parts(tmp_path, tokenizer, splits)
    assert asked == texts["test"]
    assert len(shown) == 2
    assert shown < texts["train"]
    asked, shown = parts(tmp_path, tokenizer, splits, demonstrations="c.json", demonstrations_split="val")
    assert (asked, shown < texts["val"]) == (texts["test"], True)
    for content, more in ((splits, {"demonstrations_split": "test"}), (splits["test"], {"keep": "'3' not in text"})):
        asked, shown = parts(tmp_path, tokenizer, content, **more)
        assert len(shown) == 2
        assert asked | shown == {text for text in texts["test"] if not more.get("keep") or "3" not in text}
        assert not asked & shown


@pytest.mark.parametrize("more", [{}, {"demonstrations": "c.all"}])
def test_copies_of_the_examples_are_not_asked(tmp_path, tokenizer, more):
    """A model that copies would be right there; rows are the same ones, too, if both keys name one file."""
    (tmp_path / "c.all").write_text("".join(f"{i % 2} word{i % 5}\n" for i in range(20)))
    task = load_labelled_task(written(tmp_path, template="cr", data="c.all", **more), tokenizer)
    shown = task.examples(3)
    asked = [task.rows[number] for number in task.asked(None, shown)]
    assert asked
    assert not {row.place for row in shown} & {row.place for row in asked}
    assert not {str(row.values) for row in shown} & {str(row.values) for row in asked}


def test_copies_of_examples_from_another_file_are_not_asked_unless_the_task_says_so(tmp_path, tokenizer):
    (tmp_path / "c.all").write_text("".join(f"{i % 2} word{i}\n" for i in range(20)))
    (tmp_path / "shown.all").write_text("".join(f"{i % 2} word{i}\n" for i in range(0, 40, 2)))
    files = {"data": "c.all", "demonstrations": "shown.all"}
    for more, copies in (({}, 0), ({"ask_shown": True}, 10)):
        task = load_labelled_task(written(tmp_path, template="cr", **files, **more), tokenizer)
        shown = task.examples(20)
        asked = [task.rows[number] for number in task.asked(None, shown)]
        assert len({row.values["text"] for row in shown} & {row.values["text"] for row in asked}) == copies
        assert len(asked) == 10 + copies


def test_no_row_that_is_left_to_ask_is_one_sentence(tmp_path, tokenizer):
    (tmp_path / "c.all").write_text("0 same\n1 same\n0 same\n")
    with pytest.raises(InputError, match=r"no row is left to ask beside the examples; lower shots \(1\)"):
        load_task(written(tmp_path, template="cr", data="c.all", shots=1), tokenizer)


@pytest.mark.slow
def test_clinc_shows_its_train_split(shared, tmp_path, tokenizer):
    path = shared / "data" / "icl" / "clinc150.json"
    task = load_labelled_task(written(tmp_path, data=str(path)), tokenizer)
    assert (len(task.pool), len(task.rows), len(task.labels)) == (15000, 4500, 150)
    assert all(", train, entry" in row.place for row in task.examples(100))


@pytest.mark.slow  # every task is tried in a process of its own
def test_rows_that_are_not_kept_are_neither_asked_nor_shown(tmp_path, tokenizer):
    (tmp_path / "s5").write_text("2 so so\n4 wow\n1 no\n0 never\n3 yes\n2 well\n")
    tree = {"template": "stsa-binary", "data": "s5"}
    samples = load_task(written(tmp_path, **tree), tokenizer).samples
    assert [sample.target for sample in samples] == [1, 0, 0, 1]
    for seed in range(4):
        task = load_task(written(tmp_path, **tree, shots=3), tokenizer, seed=seed)
        shown = tokenizer.decode(task.samples[0].prompt)
        assert shown.count("Review:") == 4
        assert "so so" not in shown
        assert "well" not in shown
    few = load_task(written(tmp_path, **tree, keep="text|length < 5 or false"), tokenizer).samples
    assert [sample.target for sample in few] == [1, 0, 1]  # wow, no, yes: what the template leaves out stays out
    with pytest.raises(InputError, match="keep: no row is left by"):
        load_task(written(tmp_path, **tree, keep="label == '7'"), tokenizer)
    with pytest.raises(InputError, match="keep is not a Jinja expression"):
        load_task(written(tmp_path, **tree, keep="label =="), tokenizer)
