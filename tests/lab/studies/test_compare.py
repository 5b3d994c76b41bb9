"""A whole comparison through the command line: its record, its page, and stops of every kind."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.base.folders.ownership import is_in_use
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.text.prepare import prepare
from support.records import without_times

pytestmark = pytest.mark.slow

NAMES = [f"{arm}-seed{seed}" for seed in (0, 1) for arm in ("softmax", "differential")]
SIZES = ("training.steps=200", "training.evaluate_every=100", "training.checkpoint_every=9")


def command(preset, output, *words):
    start = [sys.executable, "-m", "antiphase", "compare", "--preset", str(preset), "--output", str(output)]
    return [*start, *(word for size in SIZES for word in ("--set", size)), *words]


def execute(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=500)
    return done.returncode, done.stdout, done.stderr


def weights(folder):
    return {path.parent.name: path.read_bytes() for path in Path(folder).glob("*/model.safetensors")}


@pytest.fixture(scope="module")
def preset(tmp_path_factory, tiny_preset_text):
    path = tmp_path_factory.mktemp("preset") / "tiny.yaml"
    path.write_text(tiny_preset_text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def study(preset, tmp_path_factory):
    """A finished comparison of two seeds."""
    folder = tmp_path_factory.mktemp("study") / "whole"
    code, out, err = execute(preset, folder)
    assert code == 0, err
    assert "record.json" in out
    return folder


def test_record_holds_both_arms_trained_and_untrained(study):
    record = Record.load(study)
    values = record.values
    assert (record.kind, record.seeds) == ("compare", [0, 1])
    assert values["arms"] == ["softmax", "differential"]
    assert values["baseline"] == "softmax"
    assert [(run["arm"], run["seed"]) for run in values["runs"]] == [
        (arm, seed) for seed in (0, 1) for arm in values["arms"]
    ]
    assert values["guess_rate"] == pytest.approx(1 / 3)
    shared = {arm: found["total"] - found["attention_only"] for arm, found in values["parameters"].items()}
    assert shared["softmax"] == shared["differential"]
    kinds = {(cell["arm"], cell["seed"], cell["trained"], cell["depth"]) for cell in values["needles"]["cells"]}
    assert len(kinds) == len(values["needles"]["cells"]) == 2 * 2 * 2 * 3  # two depths and anywhere
    assert {(row["arm"], row["trained"]) for row in values["allocation"]} == {
        (arm, trained) for arm in values["arms"] for trained in (True, False)
    }
    for row in values["allocation"]:
        assert ("knockout" in row) == (row["map"] in ("softmax", "difference"))
    assert len(values["perplexity"]) == 8
    losses = {(row["arm"], row["seed"], row["trained"]): row["loss"] for row in values["perplexity"]}
    for run in values["runs"]:
        of_run = [losses[run["arm"], run["seed"], trained] for trained in (False, True)]
        assert of_run == pytest.approx([run["curve"][0]["loss"], run["final"]["loss"]], rel=1e-4)
        assert of_run[0] > of_run[1]
    assert record.config["claim"]["contrast"] in values["verdict"]
    assert "n = 2 seeds" in values["verdict"]
    assert values["comparison"][0]["metric"] == "first-query accuracy"
    for arm, heads in (("softmax", 4), ("differential", 2)):
        found = record.arrays[values["attention_map"]["arrays"][arm]]
        rows = values["attention_map"]["rows"]
        assert found.shape == (2, heads, len(rows), len(values["attention_map"]["tokens"]))


def test_answers_of_the_models_are_shown(study, preset):
    data = prepare(load_preset(str(preset)).run.data, study / "tokens")
    batch = data.task().sample(3, keyed_generator("samples"))
    found = Record.load(study).values["samples"]
    ids, positions = batch.input_ids, batch.answer_positions[:, 0]
    for arm in ("softmax", "differential"):
        model = AutoModelForCausalLM.from_pretrained(study / f"{arm}-seed0").eval()
        chosen = model(input_ids=ids).logits.argmax(-1)
        for row, (sample, places) in enumerate(zip(found, positions, strict=True)):
            places = places[places >= 0]
            end = int(places[0])
            assert sample["answers"][arm] == data.tokenizer.decode(chosen[row, places - 1])
            assert sample["right"] == data.tokenizer.decode(ids[row, places])
            assert sample["question"] == data.tokenizer.decode(ids[row, end - 8 : end])
    assert "… the end of the text" in (study / "report.html").read_text(encoding="utf-8")


def test_every_model_loads_with_its_tokenizer(study):
    assert sorted(weights(study)) == sorted(NAMES)
    for name in NAMES:
        model = AutoModelForCausalLM.from_pretrained(study / name)
        assert model.config.attention_type == name.partition("-")[0]
        assert len(AutoTokenizer.from_pretrained(study / name)) == model.config.vocab_size


def test_page_is_whole_and_needs_nothing_else(study):
    page = (study / "report.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert "softmax against differential" in page
    assert 'src="http' not in page


def test_second_start_needs_resume_and_resume_changes_nothing(study, preset):
    before, values = weights(study), without_times(Record.load(study).values)
    code, _, err = execute(preset, study)
    assert code == 2
    assert f"--output {study} already contains a study; add --resume to continue it, or choose another" in err
    code, _, err = execute(preset, study, "--resume", "--seeds", "0,1,2")
    assert code == 2
    assert f"--output {study} holds a study with other settings (compare.seeds); choose another folder" in err
    assert weights(study) == before
    code, _, err = execute(preset, study, "--resume")
    assert code == 0, err
    assert weights(study) == before
    assert without_times(Record.load(study).values) == values


def at_work(folder):
    """Whether both runs that start first have got somewhere."""
    logs = [folder / name / "metrics.jsonl" for name in NAMES[:2]]
    return all(path.is_file() and path.read_text().count("\n") >= 20 for path in logs)


@pytest.mark.parametrize("stop", ["terminate", "kill"])
def test_stopped_study_goes_on_to_the_same_models_and_numbers(study, preset, tmp_path, stop):
    folder = tmp_path / "parts"
    with subprocess.Popen(
        command(preset, folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        end = time.monotonic() + 200
        while not at_work(folder):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        if stop == "terminate":
            process.terminate()
            _, err = process.communicate(timeout=60)
            assert process.returncode == 130
            assert err.rstrip().endswith("add --resume to the same command to continue")
            assert not any(is_in_use(folder / name) for name in NAMES)
        else:
            process.kill()
            process.stderr.close()
            process.wait(60)
            assert any(is_in_use(folder / name) for name in NAMES)  # its runs go on, orphaned
    assert not (folder / "record.json").exists()
    assert json.loads((folder / NAMES[0] / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1
    code, _, err = execute(preset, folder, "--resume")
    assert code == 0, err
    assert weights(folder) == weights(study)
    assert without_times(Record.load(folder).values) == without_times(Record.load(study).values)
    for name in NAMES:
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 201))


def test_demo_on_a_text_of_ones_own(tmp_path):
    draw = random.Random(0)
    words = ["harbour", "boat", "gull", "wall", "water", "storm", "noon", "market", "voice", "bread", "morning"]
    text = " ".join(f"The {' '.join(draw.choices(words, k=7))}." for _ in range(2500))
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    small = {
        "training.steps": 3, "training.decay_steps": 3, "training.batch_size": 4, "training.evaluate_every": 3,
        "evaluation.samples": 4, "evaluation.curve_samples": 4, "evaluation.validation_sequences": 4,
        "model.hidden_size": 16, "model.num_attention_heads": 4, "model.intermediate_size": 16,
        "data.vocabulary_size": 400, "data.sequence_length": 200,
    }  # fmt: skip
    words = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    folder = tmp_path / "out"
    data = ["--data", str(tmp_path / "book.txt"), "--seeds", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "antiphase", "compare", "--preset", "demo", "--output", str(folder), *data, *words],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = Record.load(folder).values
    assert values["source"] == "text"
    assert "verdict" in values
    tokenizer = AutoTokenizer.from_pretrained(folder / "differential-seed0")
    assert tokenizer.decode(tokenizer("The market.").input_ids) == "The market."
    assert (folder / "report.html").is_file()


def test_tune_chooses_a_rate_for_each_arm(preset, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "antiphase", "tune", "--preset", str(preset), "--output", str(tmp_path / "out"),
         "--learning-rates", "1e-9,1e-2", "--seeds", "0", "--set", "training.steps=60"],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = Record.load(tmp_path / "out").values
    assert values["chosen"].keys() == {"softmax", "differential"}
    assert len(values["runs"]) == 4
    losses = {(run["arm"], run["learning_rate"]): run["loss"] for run in values["runs"]}
    for arm, rate in values["chosen"].items():
        assert losses[arm, 1e-2] < losses[arm, 1e-9]
        assert rate == 1e-2
