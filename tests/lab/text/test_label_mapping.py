"""Labels in context: what a sequence says of itself, and that asking is written as training was."""

import re

import numpy
import pytest
import torch
import yaml

from antiphase.base.randomness import keyed_generator
from antiphase.lab.text.label_mapping import LABELS, WORDS, LabelMapping, draw_mapping, example, task_rows
from antiphase.lab.text.packing import PackedTokens
from antiphase.lab.text.retrieval import RetrievalTask, TextLanguage
from antiphase.lab.text.streams import TextStream
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import train_tokenizer

LENGTH = 160


@pytest.fixture(scope="module")
def tokenizer():
    text = [example(word, label) for word in WORDS for label in LABELS]
    return train_tokenizer([*text, "City number: Paris 4821. " * 20], 500)


def lines_of(tokenizer, ids):
    found = re.findall(r"Colour: (\w+) (\w+)\n", tokenizer.decode(ids, skip_special_tokens=True))
    assert len(found) > 8
    return found


def test_a_sequence_has_one_mapping_and_each_has_another(tokenizer):
    ids = LabelMapping(tokenizer, sequence_length=LENGTH).sample(20, keyed_generator("test"))
    assert ids.shape == (20, LENGTH)
    seen = set()
    for row in ids:
        mapping = {}
        for word, label in lines_of(tokenizer, row.tolist()):
            assert mapping.setdefault(word, label) == label
        assert len(mapping) <= 8
        assert len(set(mapping.values())) <= 4
        seen.add(tuple(sorted(mapping.items())))
    assert len(seen) == 20


def test_labels_are_balanced_and_tell_nothing_before_they_are_seen():
    counts = dict.fromkeys(LABELS, 0)
    for trial in range(2000):
        mapping = draw_mapping(keyed_generator("balance", trial), words=8, labels=4)
        assert sorted(list(mapping.values()).count(label) for label in set(mapping.values())) == [2, 2, 2, 2]
        if "apple" in mapping:
            counts[mapping["apple"]] += 1
    shares = torch.tensor(list(counts.values())) / sum(counts.values())
    assert (shares - 1 / 8).abs().max() < 0.06  # no word has a label of its own


def test_asking_is_written_as_training_was(tokenizer, tmp_path):
    rows = task_rows(keyed_generator("rows"), count=40)
    (tmp_path / "rows.txt").write_text("".join(f"{label} {word}\n" for label, word in rows))
    (tmp_path / "task.yaml").write_text(
        yaml.safe_dump({"template": "word-colours", "data": "rows.txt", "shots": 12}), encoding="utf-8"
    )
    sample = load_task(str(tmp_path / "task.yaml"), tokenizer, samples=5).samples[0]
    shown = tokenizer.decode(sample.prompt, skip_special_tokens=True)
    lines = re.findall(r"Colour: (\w+) (\w+)\n", shown)
    assert len(lines) == 12
    asked = shown.removeprefix("".join(example(*line) for line in lines))
    assert re.fullmatch(r"Colour: \w+", asked)
    mapping = LabelMapping(tokenizer, sequence_length=LENGTH)
    trained = [token for line in lines for token in mapping.lines[line]]
    text = list(sample.prompt)
    assert any(text[start : start + len(trained)] == trained for start in range(len(text)))


def test_the_share_of_label_sequences_is_kept(tokenizer):
    filler = numpy.array(tokenizer("a boat. " * 400)["input_ids"], dtype=numpy.uint16)
    task = RetrievalTask(TextLanguage(tokenizer, filler), needles=1, queries=1, sequence_length=LENGTH)
    labels = LabelMapping(tokenizer, sequence_length=LENGTH)

    def batch(step):
        return TextStream(
            PackedTokens(filler, LENGTH), task, batch_size=8, needle_share=0.25, key=(0,), labels=labels,
            label_share=0.5,
        ).batch(step)  # fmt: skip

    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in batch(3).input_ids]
    assert sum("Colour:" in text for text in texts) == 4
    assert sum("City number: " in text for text in texts) == 2
    assert torch.equal(batch(3).input_ids, batch(3).input_ids)
    assert not torch.equal(batch(3).input_ids, batch(4).input_ids)
