"""Classify and predict from the command line on tiny made files: records, models that load, resumption, refusals."""

import json
import random
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.base.typed import build
from antiphase.lab.lineage.classifiers import CLASSIFIERS, chosen_classifiers
from antiphase.lab.lineage.commands.classify import ClassifierRun, ClassifySettings
from antiphase.lab.lineage.commands.classify import measure as study
from antiphase.lab.pages.html import write_report
from antiphase.lab.statistics.blocks import Blocks
from antiphase.lab.statistics.intervals import wilson_interval
from support.models import save
from support.records import values, write_sealed

GOOD, BAD, OTHER = ["fine", "glad", "warm"], ["grim", "sour", "cold"], ["the", "a", "day", "film", "very", "it", "is"]
SMALL = "--set epochs=2"
CNN = f"{SMALL} --set embedding_size=8 --set num_filters=4"


def rows(count, seed=0):
    draw = random.Random(seed)
    for number in range(count):
        words = [draw.choice(GOOD if number % 2 else BAD), *draw.choices(OTHER, k=draw.randint(1, 5))]
        yield ("pos" if number % 2 else "neg"), " ".join(draw.sample(words, len(words)))


@pytest.fixture(autouse=True)
def _files(tmp_path):
    for name, count in (("train.txt", 61), ("test.txt", 20)):
        (tmp_path / name).write_text("".join(f"{label} {text}\n" for label, text in rows(count, seed=count)))


def every_key(tree):
    if isinstance(tree, dict):
        yield from tree
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []:
        yield from every_key(item)


def test_labels_of_both_files_are_cut_at_the_colon_or_none(tmp_path, monkeypatch):
    """As all of ``--train`` have a fine part or not, whatever ``--test`` has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.txt").write_text("A:x a\nA b\nB c\n")
    (tmp_path / "fine.txt").write_text("A:x d\nB:y e\n")

    def labels(train, test):
        parts = study._read(ClassifySettings(train=[train], test=[test]), say=lambda message: None)
        return [[example.label for example in part] for part in parts[:2]]

    assert labels("fine.txt", "fine.txt") == [["A", "B"], ["A", "B"]]
    with pytest.raises(InputError, match="B:y"):
        labels("whole.txt", "fine.txt")
    (tmp_path / "fine.txt").write_text("A:x d\n")
    assert labels("whole.txt", "fine.txt") == [["A:x", "A", "B"], ["A:x"]]


def test_an_official_split_and_what_is_written(antiphase, tmp_path):
    code, out, err = antiphase(f"classify --train train.txt --test test.txt --seeds 0,1 {CNN} --output r")
    assert code == 0, err
    tree = json.loads((tmp_path / "r" / "record.json").read_text())
    runs = tree["values"]["runs"]
    assert list(every_key(tree)).count("test_accuracy") == len(runs) == 2
    for one in runs:
        assert 0 <= one["test_accuracy"] <= 1
        assert one["samples"] == 20 == sum(map(sum, one["confusion"]))
        assert one["correct"] == one["confusion"][0][0] + one["confusion"][1][1] == 20 * one["test_accuracy"]
        assert one["training_samples"] + one["development"]["samples"] == 61
        assert one["development"]["samples"] in (6, 7)
    (model,) = tree["values"]["models"]
    assert model["accuracy"] == pytest.approx(sum(one["test_accuracy"] for one in runs) / 2)
    assert model["interval"] == list(wilson_interval(round(20 * model["accuracy"]), 20))
    assert "Test accuracy" in out
    page = (tmp_path / "r" / "report.html").read_text()
    assert "Runs of classifiers" in page
    assert "Confusion of cnn" in page


def test_the_best_model_lies_on_top_and_every_model_loads(antiphase, tmp_path):
    assert antiphase(f"classify --train train.txt --model cnn,lstm --seeds 0 {SMALL} --output r")[0] == 0
    best = values(tmp_path / "r")["best"]
    ids = torch.tensor([[2, 3, 4]])
    logits = {}
    for folder in ("r", "r/cnn-seed0", "r/lstm-seed0"):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / folder).eval()
        assert AutoTokenizer.from_pretrained(tmp_path / folder)("zzz")["input_ids"] == [1]
        assert model.config.id2label == {0: "neg", 1: "pos"}
        logits[folder] = model(input_ids=ids).logits
    assert torch.equal(logits["r"], logits[f"r/{best}"])


def test_predict_agrees_with_the_record(antiphase, tmp_path):
    """What predict says of the test file is right as often as the record says."""
    assert antiphase(f"classify --train train.txt --test test.txt --model bilstm {SMALL} --output r")[0] == 0
    right = [line.split(" ", 1) for line in (tmp_path / "test.txt").read_text().split("\n") if line]
    (tmp_path / "new.txt").write_text("".join(f"{text}\r\n" for _, text in right))
    code, out, _ = antiphase("predict r --json --file new.txt --output p")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in found] == [text for _, text in right]
    hits = sum(row["label"] == label for row, (label, _) in zip(found, right, strict=True))
    (run,) = values(tmp_path / "r")["runs"]
    assert hits == run["correct"]
    assert run["shown"] == [
        {"text": row["text"], "right": label, "output": row["label"]}
        for row, (label, _) in zip(found[:10], right, strict=False)
    ]
    assert f"The first {len(run['shown'])} held out, seed 0." in (tmp_path / "r" / "report.html").read_text()
    for row in found:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-6)
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
    assert values(tmp_path / "p")["rows"] == found
    code, out, _ = antiphase("predict r --text", ["a Glad xylophone of xylophone"])
    assert "Unknown to the model in 'a Glad xylophone of xylophone'" in " ".join(out.split())
    assert " ".join(out.split()).count("xylophone") == 5  # in the table, the sentence, and once by itself
    code, out, _ = antiphase("predict r --text", ["[bold]a glad day[/]"])
    assert code == 0
    assert "[bold]a glad day[/]" in out
    assert antiphase("predict r --text", [""])[0] == 0


def classifier_run(model, seed, right):
    """A run that tests twenty rows, ten of each label."""
    wrong = 20 - right
    score = {"samples": 20, "correct": right, "accuracy": right / 20, "macro_f1": None}
    return build(ClassifierRun, {
        "model": model, "seed": seed, "fold": None, "test_accuracy": right / 20, "macro_f1": None, "samples": 20,
        "correct": right, "confusion": [[10, 0], [wrong, 10 - wrong]], "unseen": score, "training_samples": 80,
        "development": {"samples": 5, "accuracy": 0.5, "loss": 1.0}, "best_epoch": 1, "epochs": 1, "curve": [],
        "parameters": 9, "vocabulary": 9, "words_with_vectors": None, "seconds": 1.0, "folder": "f",
    })  # fmt: skip


def test_seeds_that_hold_out_their_own_rows_test_more_and_models_are_compared_in_blocks():
    """Of 100 rows, each of three seeds tests another twenty."""
    right = {"cnn": [16, 17, 15], "rnn": [10, 12, 11], "lstm": [9, 12, 9]}
    runs = [classifier_run(name, seed, count) for name, own in right.items() for seed, count in enumerate(own)]
    cnn, rnn, _ = study.summaries(runs, drawn_from=100)
    assert cnn.interval == list(wilson_interval(48, 60))
    assert study.summaries(runs, drawn_from=50)[0].interval == list(wilson_interval(40, 50))
    assert study.summaries(runs)[0].interval == list(wilson_interval(16, 20))
    blocks = Blocks.of({name: [count / 20 for count in own] for name, own in right.items()})
    assert (cnn.difference, cnn.difference_interval) == (None, None)
    assert rnn.difference_interval == pytest.approx(blocks.difference("rnn", "cnn").interval())


def test_folds_test_every_row_once(antiphase, tmp_path):
    assert antiphase(f"classify --train train.txt --model rnn --folds 3 {SMALL} --output r")[0] == 0
    found = values(tmp_path / "r")
    assert [one["fold"] for one in found["runs"]] == [0, 1, 2]
    assert sum(one["samples"] for one in found["runs"]) == 61
    pooled = sum(one["correct"] for one in found["runs"]) / 61
    (model,) = found["models"]
    assert model["accuracy"] == pytest.approx(pooled)
    assert model["interval"][0] <= pooled <= model["interval"][1]
    assert model["interval"] == list(wilson_interval(round(61 * pooled), 61))


def test_models_of_a_seed_share_its_split_and_another_seed_has_another(antiphase, tmp_path, monkeypatch):
    seen = {}
    judged = study.ClassifyRuns.judged

    def spy(self, predicted, targets, parts):
        seen.setdefault(parts.seed, set()).add(tuple(e.place for e in parts.test))
        return judged(self, predicted, targets, parts)

    monkeypatch.setattr(study.ClassifyRuns, "judged", spy)
    assert antiphase(f"classify --train train.txt --model rnn,lstm --seeds 3,4 {SMALL} --output r")[0] == 0
    assert [len(splits) for splits in seen.values()] == [1, 1]
    assert seen[3] != seen[4]
    rnn, lstm = values(tmp_path / "r")["models"]
    assert rnn["difference"] is None
    by_seed = {(one["model"], one["seed"]): one["test_accuracy"] for one in values(tmp_path / "r")["runs"]}
    mean = sum(by_seed["lstm", seed] - by_seed["rnn", seed] for seed in (3, 4)) / 2
    assert lstm["difference"] == pytest.approx(mean)


def test_test_rows_that_stand_in_training_are_counted_and_left_out(antiphase, tmp_path):
    known = (tmp_path / "train.txt").read_text().split("\n")[:5]
    with open(tmp_path / "test.txt", "a") as file:
        file.write("".join(f"{line.upper().replace('POS', 'pos').replace('NEG', 'neg')}\n" for line in known))
        file.write("pos an unheard-of text\n")
    assert antiphase(f"classify --train train.txt --test test.txt {CNN} --output r")[0] == 0
    found = values(tmp_path / "r")
    assert found["runs"][0]["samples"] == 26
    trained = {line.split(" ", 1)[1] for line in (tmp_path / "train.txt").read_text().split("\n") if line}
    tested = [line.split(" ", 1)[1].lower() for line in (tmp_path / "test.txt").read_text().split("\n") if line]
    repeated = sum(text in trained for text in tested)
    assert repeated >= 5
    assert found["data"]["test_rows_in_train"] == repeated
    assert found["runs"][0]["unseen"]["samples"] == 26 - repeated


@pytest.mark.slow
def test_a_killed_study_goes_on(stopped_and_gone_on_with, tmp_path):
    words = f"classify --train train.txt --model rnn,lstm --seeds 0,1 {SMALL}"
    stopped_and_gone_on_with(words, study, "train_classifier", after=3, kept="rnn-seed0/model.safetensors")


@pytest.mark.slow
def test_a_finished_run_with_another_model_is_not_continued(antiphase, tmp_path):
    command = f"classify --train train.txt --test test.txt --seeds 0 {CNN} --output r"
    assert antiphase(command)[0] == 0
    assert antiphase(f"{command} --resume")[0] == 0
    (model,) = (tmp_path / "r").glob("*-seed0/model.safetensors")
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(bytes(content))
    code, _, err = antiphase(f"{command} --resume")
    assert code == 2
    assert f"{model.parent.relative_to(tmp_path)} holds another model than its run wrote" in err


@pytest.mark.slow
def test_a_run_of_another_study_is_not_taken_over(antiphase, refused, tmp_path):
    """With equal folders' names, and whole with its own model."""
    words = f"classify --train train.txt --model cnn {CNN}"
    assert antiphase(f"{words} --seeds 0,1 --output r")[0] == 0
    whole = {path: path.read_bytes() for path in (tmp_path / "r" / "cnn-seed0").iterdir()}
    for change, named in (("--set cnn.dropout=0.1", "settings"), ("--folds 3", None)):
        assert antiphase(f"{words} --seeds 0 {change} --output other")[0] == 0
        other = tmp_path / "other" / ("cnn-seed0" if named else "cnn-seed0-fold0")
        for path in whole:
            path.write_bytes((other / path.name).read_bytes())
        why = rf"cnn-seed0 holds a run with other settings or texts than its study's \({named or 'folds'}"
        refused(why, f"{words} --seeds 0,1 --output r --resume")
        shutil.rmtree(tmp_path / "other")
    (tmp_path / "train.txt").rename(tmp_path / "kept")
    (tmp_path / "train.txt").write_text((tmp_path / "kept").read_text() + "pos more\n")
    assert antiphase(f"{words} --seeds 0 --output other")[0] == 0
    (tmp_path / "kept").replace(tmp_path / "train.txt")
    for path in whole:
        path.write_bytes((tmp_path / "other" / "cnn-seed0" / path.name).read_bytes())
    refused(r"than its study's \(content\)", f"{words} --seeds 0,1 --output r --resume")
    for path, content in whole.items():
        path.write_bytes(content)
    record = tmp_path / "r" / "cnn-seed0" / "record.json"
    record.write_bytes((tmp_path / "r" / "cnn-seed1" / "record.json").read_bytes())
    refused("record of other work than model.sha256", f"{words} --seeds 0,1 --output r --resume")
    tree = json.loads(whole[record])
    del tree["config"]["content"]
    write_sealed(record, tree)
    refused(r"than its study's \(content\)", f"{words} --seeds 0,1 --output r --resume")


def test_nothing_is_overwritten_and_no_other_work_resumed(antiphase, refused, tmp_path):
    words = f"classify --train train.txt {CNN}"
    assert antiphase(f"{words} --output r")[0] == 0
    refused(r"other settings \(seeds\)", f"{words} --seeds 1 --output r --resume")
    with open(tmp_path / "train.txt", "a") as file:
        file.write("pos more\n")
    refused("have changed since", f"{words} --output r --resume")
    refused("not empty", "predict r --text a --output r")


def test_rows_that_moved_and_other_vectors_are_other_inputs(antiphase, refused, tmp_path):
    (tmp_path / "v.txt").write_text("".join(f"{word} 1 2 3 4\n" for word in GOOD))
    sizes = "--set embedding_size=4 --set epochs=1 --set num_filters=2"
    words = f"classify --train train.txt --test test.txt --word-vectors v.txt {sizes} --output r"
    assert antiphase(words)[0] == 0
    (tmp_path / "v.txt").write_text("".join(f"{word} 1 2 3 5\n" for word in GOOD))
    refused("word vectors have changed since", f"{words} --resume")
    (tmp_path / "v.txt").write_text("".join(f"{word} 1 2 3 4\n" for word in GOOD))
    train, test = ((tmp_path / name).read_text().splitlines(keepends=True) for name in ("train.txt", "test.txt"))
    (tmp_path / "train.txt").write_text("".join(train[:-1]))
    (tmp_path / "test.txt").write_text("".join([train[-1], *test]))
    refused("have changed since", f"{words} --resume")


@pytest.mark.slow
def test_one_row_to_test_with_several_seeds_gives_a_record_that_can_be_read(antiphase, tmp_path):
    (tmp_path / "ten.txt").write_text("".join(f"{label} {text}\n" for label, text in rows(10)))
    assert antiphase(f"classify --train ten.txt --seeds 0,1 {CNN} --output r")[0] == 0
    assert antiphase("report r --output page.html")[0] == 0


def test_a_model_that_does_not_choose_one_label_is_refused(antiphase, refused, tmp_path):
    assert antiphase(f"classify --train train.txt {CNN} --output r")[0] == 0
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    (tmp_path / "r" / "config.json").write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    (tmp_path / "r" / "model.sha256").unlink()
    refused("does not choose one label of several", "predict r --text a")


def test_a_text_longer_than_the_positions_is_refused_by_its_line_before_any_training(refused, antiphase, tmp_path):
    with open(tmp_path / "train.txt", "a") as file:
        file.write("pos " + "the " * 20 + "\n")
    words = "classify --train train.txt --model cnn,transformer --set transformer.max_position_embeddings=10 --output r"
    refused(r"train\.txt, line 62: the text has 20 tokens, more than the 10 positions .*=20", words)
    sizes = "--set transformer.hidden_size=8 --set epochs=1 --set transformer.max_position_embeddings=20"
    assert antiphase(f"classify --train train.txt --model transformer {sizes} --output r")[0] == 0
    (tmp_path / "new.txt").write_text("a\n" + "the " * 21 + "\n")
    refused(r"new\.txt, line 2: the text has 21 tokens, more than the 20 positions", "predict r --file new.txt")


def test_predict_refuses_a_model_without_a_trained_classifier(refused, tmp_path, antiphase, tiny_model, text_tokenizer):
    save(tiny_model(), text_tokenizer, tmp_path / "lm")
    refused("no trained classifier", "predict lm --text a")


def test_word_vectors_are_used(antiphase, tmp_path):
    lines = [f"{word} {' '.join(str(5 * (word in GOOD)) for _ in range(4))}" for word in (*GOOD, *BAD)]
    (tmp_path / "v.txt").write_text("\n".join(lines) + "\n")
    words = "classify --train train.txt --word-vectors v.txt --set embedding_size=4 --set epochs=1 --output r"
    assert antiphase(words)[0] == 0
    assert values(tmp_path / "r")["runs"][0]["words_with_vectors"] == 6
    weight = AutoModelForSequenceClassification.from_pretrained(tmp_path / "r").get_input_embeddings().weight
    known = AutoTokenizer.from_pretrained(tmp_path / "r").get_vocab()
    assert weight[known["glad"]].mean() > 4.5


@pytest.mark.slow
def test_every_model_by_name_learns_from_every_kind_of_pieces(antiphase, tmp_path):
    """A differential encoder has exactly what the softmax one has, but for λ and the heads' norms."""
    names = ",".join(CLASSIFIERS)
    assert (
        antiphase(
            f"classify --train train.txt --model {names} --set epochs=1 --tokenizer unigram --vocabulary 40 --output r"
        )[0]
        == 0
    )
    found = {row["model"]: row["parameters"] for row in values(tmp_path / "r")["models"]}
    assert list(found) == list(CLASSIFIERS)
    sizes = CLASSIFIERS["differential"].sizes
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    own = sizes["num_hidden_layers"] * (4 * width + 2 * width)
    assert found["differential"] - found["transformer"] == own
    write_report([Record.load(tmp_path / "r")], tmp_path / "again.html")


def test_settings_reach_one_model_or_all():
    found = chosen_classifiers(["cnn", "lstm"], ["dropout=0.25", "lstm.learning_rate=3e-3", "cnn.filter_widths=[2, 3]"])
    assert [found[name].sizes["dropout"] for name in found] == [0.25, 0.25]
    assert found["lstm"].training.learning_rate == 3e-3
    assert found["cnn"].training.learning_rate == CLASSIFIERS["cnn"].training.learning_rate
    assert found["cnn"].sizes["filter_widths"] == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_model_solves_an_easy_task(antiphase, tmp_path, name):
    (tmp_path / "train.txt").write_text("".join(f"{label} {text}\n" for label, text in rows(400)))
    assert antiphase(f"classify --train train.txt --test test.txt --model {name} --output r")[0] == 0
    assert values(tmp_path / "r")["runs"][0]["test_accuracy"] >= 0.95
