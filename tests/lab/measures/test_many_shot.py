"""Many-shot learning: systems whose score is known get it; examples, orders and rows are the same for all models."""

import json
import random
import re
from collections import Counter

import numpy
import pytest
import torch
import yaml

from antiphase.base.errors import InputError, worded
from antiphase.base.records import Record, finite
from antiphase.lab.measures.many_shot import measure as module
from antiphase.lab.measures.many_shot.measure import flips_against_chance, many_shot, pair_flips
from antiphase.lab.pages.summary import main_tables
from antiphase.lab.text.labelled import Row
from antiphase.lab.text.tasks.tasks import load_labelled_task
from antiphase.lab.text.tokenization import train_tokenizer

WORDS = ["cat", "dog", "hen", "fox", "cow", "pig"]
LABELS = ["red", "blue", "green"]
ROWS = [[f"{a} {b}", LABELS[min(2, (i + j) % 4)]] for i, a in enumerate(WORDS) for j, b in enumerate(WORDS)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join([*WORDS, *LABELS, "Text Colour : "])] * 9, 300)


@pytest.fixture
def task(tmp_path, tokenizer):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    tree = {"kind": "classification", "data": "rows.json", "prompt": "Text: {{ text }}\nColour:", "name": "colours"}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(tree))

    def load(longest=None, seed=0):
        return load_labelled_task(str(tmp_path / "task.yaml"), tokenizer, longest=longest, seed=seed)

    return load


@pytest.fixture
def run(task, monkeypatch, tokenizer):
    """The result of a system that says ``answer(prompt text, labels)``; and the prompts that it was asked."""

    def call(answer, longest=None, **options):
        seen = []

        def choose(model, prompts, given):
            texts = [tokenizer.decode(prompt) for prompt in prompts]
            seen.append(texts)
            labels = [[tokenizer.decode(option).strip() for option in listed] for listed in given]
            return [names.index(answer(text, names)) for text, names in zip(texts, labels, strict=True)]

        monkeypatch.setattr(module, "choose_options", choose)
        settings = {"shots": [1, 2, 4], "samples": 20, "orders": 3, "seed": 0, **options}
        return many_shot(None, task(longest), **settings).tasks["colours"], seen

    return call


TRUTH = dict(map(tuple, ROWS))


def perfect(text, labels):
    return TRUTH[text.rsplit("Text: ", 1)[1].split("\n")[0]]


def constant(text, labels):
    return "red"


def last_shown(text, labels):
    """Names the label of the example before the question."""
    return text.split("\n\n")[-2].rsplit("Colour: ", 1)[1]


def test_known_systems(run):
    found, _ = run(perfect)
    assert [row.accuracy for row in found.rows] == [1.0, 1.0, 1.0]
    assert list(found.orders) == ["random", "alternating"]
    for row in found.orders.values():
        assert (row.mean_accuracy, row.margin, row.flip_share) == (1.0, 0.0, 0.0)

    found, _ = run(constant)
    rates = {row.accuracy for row in found.rows}
    assert len(rates) == 1
    assert rates.pop() <= found.majority_rate
    assert all((row.margin, row.flip_share) == (0.0, 0.0) for row in found.orders.values())
    assert [row.answers_given for row in found.rows] == [1, 1, 1]

    found, _ = run(last_shown, shots=[6], orders=6)  # all that it does depends on the order
    assert found.orders["random"].flip_share == 1.0
    assert found.orders["random"].margin > 0


def test_guessing_copying_and_constant_systems_get_what_they_must(run):
    """Nothing else can be written than a label: no empty output, and no list of all of them."""
    draws = random.Random(5)
    constants = {label: run(lambda text, labels, said=label: said, shots=[6])[0] for label in LABELS}
    shares = {label: found.rows[0].accuracy for label, found in constants.items()}
    assert sum(shares.values()) == pytest.approx(1.0)
    majority = constants["red"].majority_rate
    assert majority == max(shares.values())  # the best that naming one label reaches
    found, _ = run(lambda text, labels: draws.choice(labels), shots=[2], samples=30, orders=20)
    assert found.guess_rate == 1 / 3
    assert found.orders["random"].mean_accuracy == pytest.approx(1 / 3, abs=0.06)
    found, _ = run(last_shown, shots=[6], orders=6)
    for row in found.orders.values():
        assert set(row.accuracies) <= set(shares.values())  # of whichever label came last
        assert row.margin == max(row.accuracies) - min(row.accuracies)
    assert found.orders["random"].margin > 0


def test_examples_and_orders(run):
    found, seen = run(constant, shots=[1, 2, 4])
    one, two, four, *orders = seen

    def shown(text):
        return text.split("\n\n")[:-1]

    asked = [text.split("\n\n")[-1] for text in one]
    for prompts in seen:
        assert [text.split("\n\n")[-1] for text in prompts] == asked  # the same rows everywhere
        assert len({tuple(shown(text)) for text in prompts}) == 1  # and the same examples for all of them
        assert not {part.rsplit("\nColour:", 1)[0] for part in shown(prompts[0])} & {
            part.rsplit("\nColour:", 1)[0] for part in asked
        }
    assert shown(four[0])[:2] == shown(two[0])
    assert shown(two[0])[:1] == shown(one[0])
    for prompts in orders:
        assert Counter(shown(prompts[0])) == Counter(shown(four[0]))
    assert len({tuple(shown(prompts[0])) for prompts in orders[:3]}) > 1
    again, _ = run(constant, shots=[1, 2, 4])
    assert again == found


def test_the_share_of_labels_shown_is_counted(task, tmp_path, tokenizer, monkeypatch):
    """Of eight rows asked, one is red, two blue and five green; the examples begin with red, red, blue, green."""
    monkeypatch.setattr(module, "choose_options", lambda model, prompts, given: [0] * len(prompts))
    planted = task()
    labels = ["red", *2 * ["blue"], *5 * ["green"]]
    planted.rows = [Row("asked", {"text": "cat hen", "label": label}) for label in labels]
    shown = [Row("shown", {"text": "dog dog", "label": label}) for label in ("red", "red", "blue", "green")]
    monkeypatch.setattr(planted, "examples", lambda count: shown[:count])
    planted.has_own_examples = True
    found = many_shot(None, planted, shots=[0, 1, 2, 3, 4], samples=8, orders=2, seed=0)
    rows = found.tasks["colours"].rows
    assert [row.label_shown for row in rows] == [0, 1 / 8, 1 / 8, 3 / 8, 1]
    (table, *_) = main_tables(Record(kind="evaluate-many-shot", values=finite(found)))
    place = [column.name for column in table.columns].index("Label shown")
    assert [row[place] for row in table.rows] == [row.label_shown for row in rows]


def alternated(task, counts):
    """The labels of an alternating order of so many rows of each class."""
    shown = [row for label, count in counts.items() for row in rows_of(task(), label)[:count]]
    return [task().label(row) for row in module._alternating(task(), shown, 0, 0)]


def rows_of(task, label):
    return [row for row in task.rows if task.label(row) == label]


def test_equal_classes_alternate(task):
    labels = alternated(task, dict.fromkeys(LABELS, 5))
    assert len(labels) == 15
    for turn in range(5):
        assert labels[3 * turn : 3 * turn + 3] == labels[:3]
    assert set(labels[:3]) == set(LABELS)


@pytest.mark.slow  # asks for many prompts
@pytest.mark.parametrize("counts", [{"red": 2, "blue": 9, "green": 9}, {"red": 9, "blue": 1, "green": 3}])
def test_unequal_classes_are_spread_evenly(counts, task):
    labels = alternated(task, counts)
    assert Counter(labels) == counts
    for end in range(len(labels) + 1):
        for label, count in counts.items():
            assert abs(labels[:end].count(label) - end * count / len(labels)) < 1.5


def test_alternating_orders_are_asked(run):
    _, seen = run(constant, shots=[9], orders=2)
    for prompts in seen[-2:]:
        labels = [part.rsplit("Colour: ", 1)[1] for part in prompts[0].split("\n\n")[:-1]]
        halves = Counter(labels[: len(labels) // 2]), Counter(labels[len(labels) // 2 :])
        assert all(abs(halves[0][label] - halves[1][label]) <= 2 for label in labels)


def test_texts_that_do_not_fit_are_left_out_and_counted(run):
    found, _ = run(perfect, longest=60)
    assert found.left_out
    assert [row.shots for row in found.rows] + found.left_out == [1, 2, 4]
    with pytest.raises(InputError, match="the model reads 10 at most"):
        run(perfect, longest=10)


def test_an_example_that_cannot_be_shown_is_refused_and_not_left_out(task, monkeypatch):
    monkeypatch.setattr(module, "choose_options", lambda model, prompts, given: [0] * len(prompts))
    broken = task()
    last = broken.examples(4)[3]
    del last.values["text"]
    whole = many_shot(None, broken, shots=[1, 2], samples=20, orders=0, seed=0)
    assert whole.tasks["colours"].left_out == []
    with pytest.raises(InputError, match=rf"{re.escape(worded(last.place))}: the prompt cannot be filled in .*'text'"):
        many_shot(None, broken, shots=[1, 2, 4], samples=20, orders=0, seed=0)


def test_too_few_rows(run):
    with pytest.raises(InputError, match=r"--samples 40 is more than the 32 rows"):
        run(perfect, samples=40)
    with pytest.raises(InputError, match=r"shots \(36\) needs more rows"):
        run(perfect, shots=[36])


def test_a_model(task, tiny_model, tokenizer):
    model = tiny_model("softmax", vocab_size=len(tokenizer), max_position_embeddings=400)
    found = many_shot(model, task(400), shots=[0, 2], samples=12, orders=2, seed=0)
    rows = found.tasks["colours"].rows
    assert [row.shots for row in rows] == [0, 2]
    assert all(0 <= row.accuracy <= 1 for row in rows)
    assert "colours" in found._repr_html_()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="sample 0"):
        many_shot(model, task(400), shots=[1], samples=3, orders=0, seed=0)


# ------------------------------------------------------------------------------------------ flips between orders


def test_answers_drawn_at_random_flip_as_often_as_expected_and_the_same_answers_never():
    generator = numpy.random.default_rng(0)
    targets = [1] * 2000
    for accuracy in (0.3, 0.5, 0.9):
        drawn = (generator.random((8, 2000)) < accuracy).astype(int)
        share = flips_against_chance(pair_flips(drawn.tolist(), targets), float(drawn.mean()))
        assert share == pytest.approx(1, abs=0.05)
        same = drawn[:1].repeat(8, 0)
        assert flips_against_chance(pair_flips(same.tolist(), targets), float(same.mean())) == 0
    assert flips_against_chance(0.0, 1.0) is None
    assert flips_against_chance(0.0, 0.0) is None


def test_flips_are_counted_over_pairs_of_orders():
    """Three orders, two rows: the first is right in one of three orders, so in two of three pairs one is right."""
    assert pair_flips([[1, 1], [0, 1], [2, 1]], [1, 1]) == pytest.approx((2 / 3 + 0) / 2)
    assert pair_flips([[2, 1], [0, 1]], [1, 1]) == 0  # wrong in two ways is wrong alike
