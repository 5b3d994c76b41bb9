"""Nothing is measured twice: a finished measurement is returned without its model, other work is refused by name."""

from dataclasses import replace

import pytest
from filelock import FileLock

from antiphase.base.errors import InputError
from antiphase.base.folders.journal import JOURNAL
from antiphase.base.folders.ownership import LOCK
from antiphase.base.records import Record
from antiphase.lab.catalog import measurements
from antiphase.lab.measures import running
from antiphase.lab.measures.many_shot import measure as many_shot
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run

MEASUREMENTS = ("perplexity", "long-context", "outliers", "quantization", "cancellation")


@pytest.fixture
def ask(tmp_path, tiny_model, text_tokenizer, generated_text):
    """Of a tiny model that lies beside its text."""
    tiny_model("differential", num_hidden_layers=1, vocab_size=len(text_tokenizer), max_position_embeddings=200)\
        .save_pretrained(tmp_path / "model")  # fmt: skip
    text_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "book.txt").write_text(generated_text, encoding="utf-8")
    own = {"quantization": {"needles": 2, "queries": 1, "bits": [4]}, "cancellation": {"needles": 2, "queries": 1}}

    def asked(measurement="perplexity"):
        return settings_of(
            measurement, name=str(tmp_path / "model"), paths=[str(tmp_path / "book.txt")], length=180, samples=2,
            device="cpu", **own.get(measurement, {}),
        )  # fmt: skip

    return asked


@pytest.fixture
def unloaded(monkeypatch):
    """From the call on, no model can be loaded."""

    def refuse(*arguments, **words):
        raise AssertionError("a model is loaded")

    def begin():
        monkeypatch.setattr(running, "load_model", refuse)

    return begin


def flip(path):
    """Change the last byte of a file, or change it back."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_column_that_is_missing_is_to_be_named_with_the_measurements_flag(tmp_path, ask):
    (tmp_path / "rows.csv").write_text("title,body\na,b\n")
    with pytest.raises(InputError, match=r"columns: title, body\); name the one .* with --text-field NAME"):
        evaluate(replace(ask(), paths=[str(tmp_path / "rows.csv")]), tmp_path / "out")


@pytest.mark.parametrize("measurement", MEASUREMENTS)
def test_a_finished_measurement_is_returned_without_its_model(tmp_path, ask, unloaded, measurement):
    ask = ask(measurement)
    record = evaluate(ask, tmp_path / "out", resume=True)  # into a new folder as well
    before = (tmp_path / "out" / "record.json").read_bytes()
    unloaded()
    again = evaluate(replace(ask, device="auto"), tmp_path / "out", resume=True)
    assert again == Record.load(tmp_path / "out")
    assert (again.values, again.seconds) == (record.values, record.seconds)
    assert (tmp_path / "out" / "record.json").read_bytes() == before
    with pytest.raises(InputError, match=r"output .*out exists and is not empty; add resume to continue"):
        evaluate(ask, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("measurement", MEASUREMENTS)
@pytest.mark.parametrize("torn", [False, True])
def test_an_unfinished_measurement_begins_afresh(tmp_path, ask, monkeypatch, measurement, torn):
    ask = ask(measurement)
    whole = evaluate(ask, tmp_path / "whole")

    def stopped(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measurements("antiphase.lab.measures")[measurement].measure, "measure", stopped)
        with pytest.raises(KeyboardInterrupt):
            evaluate(ask, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} - {LOCK} == {JOURNAL}
    if torn:
        journal = tmp_path / "out" / JOURNAL
        journal.write_bytes(journal.read_bytes()[:-9])
    else:
        with pytest.raises(InputError, match=r"contains work with other settings or inputs .--samples."):
            evaluate(replace(ask, samples=3), tmp_path / "out", resume=True)
    with pytest.raises(InputError, match="is not empty; add resume"):
        evaluate(ask, tmp_path / "out")
    record = evaluate(ask, tmp_path / "out", resume=True)
    assert (record.values, record.config, record.seeds) == (whole.values, whole.config, whole.seeds)


def test_other_work_is_refused_by_the_name_of_what_differs(tmp_path, ask, unloaded):
    ask = ask("quantization")
    record = evaluate(ask, tmp_path / "out")
    (tmp_path / "other.txt").write_bytes((tmp_path / "book.txt").read_bytes())
    unloaded()
    for changed, words in (
        ({"samples": 3}, "--samples"),
        ({"length": 100}, "--length"),
        ({"seed": 1}, "--seed"),
        ({"bits": [8]}, "--bits"),
        ({"needles": 3}, "--needles"),
        ({"text_field": "text"}, "--text-field, what --data names"),
        ({"paths": [str(tmp_path / "other.txt")]}, "--data, what --data names"),
    ):
        with pytest.raises(InputError, match=rf"other settings or inputs \({words}\); choose another folder"):
            evaluate(replace(ask, **changed), tmp_path / "out", resume=True)
    for name, words in (
        ("model/model.safetensors", "the files of MODEL"),
        ("model/config.json", "the files of MODEL"),
        ("model/tokenizer.json", "the files of MODEL"),
        ("book.txt", "what --data names"),
    ):
        flip(tmp_path / name)
        with pytest.raises(InputError, match=rf"other settings or inputs \({words}\); choose another folder"):
            evaluate(ask, tmp_path / "out", resume=True)
        flip(tmp_path / name)
    (tmp_path / "model" / "notes.md").write_text("nothing that a result depends on")
    assert evaluate(ask, tmp_path / "out", resume=True).values == record.values
    with pytest.raises(InputError, match=r"model .*gone: there is no such folder, and no such model could be read"):
        evaluate(replace(ask, name=str(tmp_path / "gone")), tmp_path / "out", resume=True)


def test_another_measurement_is_refused(tmp_path, ask):
    evaluate(ask("perplexity"), tmp_path / "out")
    with pytest.raises(InputError, match=r"other settings or inputs \(the measurement\); choose another folder"):
        evaluate(ask("outliers"), tmp_path / "out", resume=True)


def test_a_folder_with_something_else_is_left_alone(tmp_path, ask):
    ask = ask("perplexity")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "record.json").write_text("mine")
    with pytest.raises(InputError, match="mine exists and is not empty; choose another folder"):
        evaluate(ask, tmp_path / "mine", resume=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["record.json"]
    evaluate(ask, tmp_path / "out")
    with FileLock(tmp_path / "out" / LOCK), pytest.raises(InputError, match="out is in use by another process"):
        evaluate(ask, tmp_path / "out", resume=True)


@pytest.mark.slow
def test_the_text_of_a_models_own_run_is_part_of_the_work(tmp_path, tiny_preset, ask, unloaded):
    changes = ["data.sequence_length=180", "data.needles=2", "data.queries=1", "training.steps=1"]
    train_run(load_preset(str(tiny_preset), changes, data=ask().paths).run, tmp_path / "run", resume=False)
    ask = settings_of("perplexity", name=str(tmp_path / "run"), samples=2, device="cpu")
    evaluate(ask, tmp_path / "out")
    unloaded()
    evaluate(ask, tmp_path / "out", resume=True)
    flip(tmp_path / "book.txt")
    with pytest.raises(InputError, match=r"other settings or inputs \(the text that MODEL was trained on\)"):
        evaluate(ask, tmp_path / "out", resume=True)


# ---------------------------------------------------------------------------------- many-shot, which the command holds


@pytest.fixture
def shots(ask, antiphase, tmp_path):
    (tmp_path / "rows.all").write_text("".join(f"{i % 2} word {i}\n" for i in range(20)))
    (tmp_path / "task.yaml").write_text("template: cr\ndata: rows.all\n")

    usual = "evaluate many-shot model --task task.yaml --samples 2 --shots 1,2 --orders 2 --output out"
    return lambda *words: antiphase(usual, *words)[::2]


@pytest.mark.slow
def test_many_shot_is_returned_without_its_model_and_refused_by_name(tmp_path, shots, unloaded):
    code, said = shots()
    assert code == 0, said
    before = (tmp_path / "out" / "record.json").read_bytes()
    assert {path.name for path in (tmp_path / "out").iterdir()} - {LOCK} == {JOURNAL, "record.json", "report.html"}
    unloaded()
    assert shots("--resume")[0] == 0
    assert (tmp_path / "out" / "record.json").read_bytes() == before
    assert "exists and is not empty; add --resume" in shots()[1]
    for words, differs in (("--samples 3", "--samples"), ("--shots 1", "--shots"), ("--seed 4", "--seed")):
        assert f"({differs}); choose another folder" in shots("--resume", words)[1]
    flip(tmp_path / "model" / "model.safetensors")
    assert "(the files of MODEL); choose another folder" in shots("--resume")[1]
    flip(tmp_path / "model" / "model.safetensors")
    for name in ("rows.all", "task.yaml"):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(kept + (b"1 word\n" if name == "rows.all" else b"shots: 1\n"))
        assert "(what --task names); choose another folder" in shots("--resume")[1]
        (tmp_path / name).write_bytes(kept)
    assert (tmp_path / "out" / "record.json").read_bytes() == before


def test_many_shot_begins_afresh_where_it_was_stopped(tmp_path, shots, monkeypatch):
    measure = many_shot.many_shot

    def stopped(*arguments, **words):
        raise KeyboardInterrupt

    monkeypatch.setattr(many_shot, "many_shot", stopped)
    assert shots()[0] == 130
    assert not (tmp_path / "out" / "record.json").exists()
    monkeypatch.setattr(many_shot, "many_shot", measure)
    assert shots("--resume")[0] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} - {LOCK} == {JOURNAL, "record.json", "report.html"}


def test_many_shot_that_is_refused_leaves_nothing(tmp_path, shots):
    code, said = shots("--samples 21")
    assert (code, "--samples 21" in said or "too few rows" in said) == (2, True)
    assert not (tmp_path / "out").exists()
