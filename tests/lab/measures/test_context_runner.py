"""Needles and allocation from request to record: several models on the same contexts, tables, and refusals."""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from antiphase.base.errors import InputError
from antiphase.base.folders.journal import JOURNAL
from antiphase.base.folders.ownership import LOCK
from antiphase.base.records import Record
from antiphase.lab.measures import context_runner
from antiphase.lab.measures.allocation import Allocation
from antiphase.lab.measures.allocation.measure import allocation_in_text
from antiphase.lab.measures.needles import Needles
from antiphase.lab.measures.needles.measure import needles_in_text
from antiphase.lab.measures.needles.text import Generating
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.pages import figures, summary
from antiphase.lab.pages.presentation import short_names
from antiphase.lab.scoring import likelihood
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.text.retrieval import SPANS
from antiphase.lab.text.tokenization import train_tokenizer
from support.models import save

LENGTH = 260


@pytest.fixture
def make(tmp_path, tiny_model, text_tokenizer):
    """A folder with a tiny model and its tokenizer: of this package, or a Llama."""

    def write(name, kind="differential", *, positions=LENGTH, tokenizer=None):
        tokenizer = tokenizer or text_tokenizer
        if kind == "llama":
            torch.manual_seed(1)
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                    num_attention_heads=2, max_position_embeddings=positions, bos_token_id=tokenizer.bos_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                )
            )  # fmt: skip
        else:
            words = {"vocab_size": len(tokenizer), "max_position_embeddings": positions}
            model = tiny_model(kind, num_hidden_layers=2, **words)
        save(model, tokenizer, tmp_path / name)
        return str(tmp_path / name)

    return write


def request(measurement, names, book, **words):
    usual = {"needles": [3], "lengths": [LENGTH], "depths": [0.0, 1.0], "samples": 4, "paths": [book]}
    return asked(measurement, names, **{**usual, **words})


def asked(measurement, names, **words):
    return settings_of(measurement, name=names[0], against=names[1:], device="cpu", **words)


def test_models_read_the_same_contexts_and_their_differences_are_paired(tmp_path, make, book, monkeypatch):
    """Answers that depend on the context and the model alone show which contexts each model read."""
    read = {}

    def answer(system, contexts):
        read.setdefault(system.name, []).extend(contexts)
        knows = system.model.config.model_type == "llama"
        return [context.answers[0] if knows else context.numbers[0] for context in contexts]

    monkeypatch.setattr(Generating, "__call__", answer)
    names = [make("ours"), make("llama", "llama")]
    record = evaluate(request("needles", names, book), tmp_path / "out")
    assert Record.load(tmp_path / "out").values == record.values
    ours, llama = read.values()
    assert ours == llama
    values = record.values
    assert values["models"] == names
    accuracy = {(row["arm"], row["trained"], row["depth"]): row["accuracy"] for row in values["summary"]}
    assert {key: accuracy[key] for key in accuracy if key[1]} == {
        ("ours", True, 0.0): 1.0, ("ours", True, 1.0): 0.0, ("ours", True, None): accuracy["ours", True, None],
        ("llama", True, 0.0): 1.0, ("llama", True, 1.0): 1.0, ("llama", True, None): 1.0,
    }  # fmt: skip
    assert {key for key in accuracy if not key[1]} == {("ours", False, None), ("llama", False, None)}
    paired = {row["depth"]: row for row in values["paired"]}
    assert (paired[1.0]["better"], paired[1.0]["worse"], paired["fixed"]["difference"]) == (4, 0, 0.5)
    assert [row["right"] for row in values["cells"] if row["arm"] == "ours" and row["depth"] == 0.0] == ["1111"]
    assert {row["arm"]: row["median_spread"] for row in values["trends"]} == {"ours": 1.0, "llama": 0.0}
    assert {row["guess_rate"] for row in values["cells"]} == {1 / 3}


@pytest.mark.slow
def test_tables_and_the_heatmap_show_every_size(tmp_path, make, book):
    names = [make("ours"), make("llama", "llama")]
    words = {"needles": [1, 2], "queries": [1, 2], "lengths": [200, LENGTH]}
    record = evaluate(request("needles", names, book, samples=2, **words), tmp_path / "out")
    sizes = {(row["needles"], row["queries"], row["length"]) for row in record.values["summary"]}
    assert sizes == {(n, r, length) for n, r in ((1, 1), (2, 1), (2, 2)) for length in (200, LENGTH)}
    table, differences, evenness, paper = summary.main_tables(record)
    assert [column.name for column in table.columns][5:] == ["Depth 0", "Depth 1", "Anywhere [95 %]", "Guess"]
    assert len(table.rows) == 2 * 2 * 6  # models, trained and not, sizes
    assert len(differences.rows) == 6 * 2
    assert all("per doubling" in evenness.columns[-1].name and row[-1] is not None for row in evenness.rows)
    assert paper.rows[2] == [4, 2, 0.62, 0.84]
    figure = figures.figures_of(record)["needles"]
    assert [axes.get_title() for axes in figure.axes[:-1]] == ["ours, trained", "llama, trained"]
    assert figure.axes[0].get_yticklabels()[-2].get_text() == "untrained, anywhere"


@pytest.mark.slow
def test_attention_by_depth_of_the_answer_in_any_family(tmp_path, make, book, text_tokenizer, generated_text):
    other = train_tokenizer([generated_text], 330)
    names = [make("ours"), make("llama", "llama", tokenizer=other, positions=400)]
    record = evaluate(request("allocation", names, book, samples=3), tmp_path / "out")
    rows = record.values["rows"]
    assert {row["depth"] for row in rows} == {0.0, 1.0, None}
    assert {(row["arm"], row["map"]) for row in rows} == {
        ("ours", "difference"), ("ours", "first"), ("ours", "second"), ("llama", "softmax"),
    }  # fmt: skip
    assert {row["trained"] for row in rows} == {True, False}
    for row in rows:
        assert sum(row["spans"][name]["share"] for name in SPANS) == pytest.approx(1.0, abs=1e-5)
        if row["map"] in ("first", "second"):
            assert row["knockout"] is None
            continue
        assert sum(row["spans"][name]["contribution"] for name in SPANS) == pytest.approx(1.0, abs=1e-3)
        assert all(row["knockout"][what]["change"] != 0 for what in ("answer", "filler"))
    by_depth, overall, knocked = summary.main_tables(record)
    assert [row[:4] for row in knocked.rows if row[:2] == ["ours", "trained"]] == [
        *(["ours", "trained", "anywhere", layer] for layer in (0, 1, "all")),
        *(["ours", "trained", depth, "all"] for depth in ("0", "1")),
    ]  # fmt: skip
    assert [column.name for column in by_depth.columns][4:] == ["Depth 0", "Depth 1", "Anywhere"]
    assert by_depth.rows[-1] == ["the paper, differential", "trained", "", "noise", "0.01", "0.01", None]
    assert len(by_depth.rows) == 2 * 2 * (2 * 3 + 2) + 4
    softmax = [row for row in rows if (row["layer"], row["map"], row["trained"]) == ("all", "softmax", True)]
    anywhere = next(row for row in softmax if row["depth"] is None)
    share = next(row for row in by_depth.rows if row[:4] == ["llama", "trained", "share", "answer"])[-1]
    assert share == f"{100 * anywhere['spans']['answer']['share']:.1f} %"
    assert next(row for row in overall.rows if row[:2] == ["llama", "trained"])[5] == share
    left, right = figures.figures_of(record)["allocation-by-depth"].axes
    assert len(left.lines) == len(right.lines) == 4
    (found,) = [
        row for row in Allocation.read(record).last() if (row.arm, row.trained, row.depth) == ("llama", True, None)
    ]
    noise = found.on("noise", "share")
    assert 0 < noise < 1 - anywhere["spans"]["answer"]["share"]


@pytest.mark.slow
def test_the_answers_span_moves_with_its_depth(tmp_path, make, book):
    """An untrained map of small weights is nearly uniform, so it gives a span what its length is."""
    record = evaluate(request("allocation", [make("ours", "softmax")], book, samples=8, depths=[0.5]), tmp_path / "out")
    row = next(
        row for row in record.values["rows"] if not row["trained"] and row["layer"] == "all" and row["depth"] == 0.5
    )
    share = {name: row["spans"][name]["share"] for name in SPANS}
    assert share["other_needles"] == pytest.approx(2 * share["answer"], rel=0.1)


@pytest.mark.slow
def test_a_run_on_text_is_measured_on_what_it_held_out(tmp_path, tiny_preset, book):
    changes = ["data.sequence_length=240", "data.needles=2", "data.queries=1", "training.steps=2"]
    train_run(load_preset(str(tiny_preset), changes, data=[book]).run, tmp_path / "run", resume=False)
    record = evaluate(asked("needles", [str(tmp_path / "run")], depths=[0.5], samples=2), tmp_path / "out")
    assert {(row["needles"], row["queries"], row["length"]) for row in record.values["cells"]} == {(2, 1, 240)}
    assert record.values["task"] == "text"


def test_models_of_the_embedded_task_are_compared_on_the_same_sequences(tmp_path, tiny_preset):
    names = []
    for kind in ("softmax", "differential"):
        run = load_preset(str(tiny_preset), [f"model.attention_type={kind}", "training.steps=2"]).run
        train_run(run, tmp_path / kind, resume=False)
        names.append(str(tmp_path / kind))
    ask = asked("needles", names, depths=[0.5], samples=3)
    record = evaluate(ask, tmp_path / "out")
    assert record.values["crossings"] == []
    assert {row["arm"] for row in record.values["paired"]} == {"differential"}
    assert record.values["task"] == "symbols"
    assert record.values["guess_rate"] == record.values["summary"][0]["guess_rate"] == 1 / 3  # two are asked for
    assert {row["depth"] for row in record.values["summary"] if not row["trained"]} == {0.5, None}


def test_a_grid_of_needles_says_where_accuracy_falls_to_a_half(tmp_path, tiny_preset):
    """Of a run that began with short sequences, which have no room for so many needles."""
    run = load_preset(
        str(tiny_preset), ["data.sequence_length=24", "data.lengths=[12,24]", "training.steps=2"]
    ).run  # fmt: skip
    train_run(run, tmp_path / "run", resume=False)
    ask = asked("needles", [str(tmp_path / "run")], needles=[3, 4, 6], depths=[], samples=9)
    record = evaluate(ask, tmp_path / "out")
    rows = [(row["over"], row["at"], row["sizes"], row["trained"]) for row in record.values["crossings"]]
    assert rows == [("needles", 24, [3, 4, 6], trained) for trained in (True, False)]
    tables = filter(None, summary.presentation_of(record.kind).tables(record))
    (table,) = [table for table in tables if table.title == "Where accuracy falls to 50 %"]
    assert [row[6] for row in table.text()] == ["below 3"] * 2  # it knows nothing yet
    assert table.text()[0][3:5] == ["N50", "24 tokens"]


@pytest.mark.slow
def test_unsuitable_models_are_refused_before_anything_is_measured(tmp_path, make, book, tiny_preset, text_tokenizer):
    ours, short = make("ours"), make("short", "llama", positions=100)
    train_run(load_preset(str(tiny_preset), ["training.steps=1"]).run, tmp_path / "symbols", resume=False)
    symbols = str(tmp_path / "symbols")
    for words, pattern in (
        ({"names": [ours, short]}, r"against .*short reads 100 tokens, and a context .* lower --length"),
        ({"names": [ours, symbols]}, "against .*symbols has only the vocabulary of the synthetic task"),
        ({"names": [ours, str(tmp_path / "none")]}, "against .*none"),
        ({"names": [short]}, "--length 260 is longer than the 100 positions"),
        ({"queries": [4]}, "--queries 4 is more than --needles 3"),
        ({"needles": [70]}, "at most the number of cities, 64"),
        ({"lengths": [100]}, "--length 100 is too short for --needles 3"),
        ({"paths": []}, "--data is missing: .*ours was not trained here"),
        ({"names": [symbols], "lengths": [], "needles": []}, "--data cannot be used"),
    ):
        chosen = {"names": [ours], **words}
        with pytest.raises(InputError, match=pattern):
            evaluate(request("needles", book=book, **chosen), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="--needles takes one number, got 1, 2"):
        evaluate(request("allocation", [ours], book, needles=[1, 2]), tmp_path / "out")


def test_a_further_model_of_the_task_must_read_contexts_as_long(tmp_path, tiny_preset):
    for name, length in (("long", 64), ("short", 48)):
        changes = ["training.steps=1", f"data.sequence_length={length}", "data.needles=2", "data.queries=1"]
        train_run(load_preset(str(tiny_preset), changes).run, tmp_path / name, resume=False)
    names = [str(tmp_path / "long"), str(tmp_path / "short")]
    with pytest.raises(InputError, match=r"--length 64 is longer than the 48 positions of .*short; shorten it"):
        evaluate(asked("needles", names), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_is_asked_through_its_template_only_in_contexts_that_fit(tmp_path, make, book, text_tokenizer):
    """The template's tokens come on top; shorter cells are not measured before a longer one is refused."""
    text_tokenizer.chat_template = "{% for m in messages %}{{ m.content * 1 }} and the answer is: {% endfor %}"
    model = make("chat", positions=LENGTH)
    text_tokenizer.chat_template = None
    with pytest.raises(InputError, match=rf"model .*chat reads {LENGTH} tokens, and a context with its output has"):
        evaluate(request("needles", [model], book, lengths=[200, LENGTH], chat_template=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_that_carry_a_state_are_asked_and_not_looked_into(tmp_path, book, text_tokenizer, monkeypatch):
    monkeypatch.setattr(likelihood, "CHUNK", 50)  # they read even a long prompt whole
    words = {"vocab_size": len(text_tokenizer), "hidden_size": 16, "num_hidden_layers": 1}
    MambaForCausalLM(MambaConfig(**words, bos_token_id=0, eos_token_id=0, pad_token_id=0)).save_pretrained(
        tmp_path / "mamba"
    )
    text_tokenizer.save_pretrained(tmp_path / "mamba")
    names = [str(tmp_path / "mamba")]
    record = evaluate(request("needles", names, book, depths=[0.5], samples=2), tmp_path / "out")
    assert {row["samples"] for row in record.values["summary"]} == {2}
    with pytest.raises(InputError, match=r"model .*mamba: MambaForCausalLM has no eager attention function"):
        evaluate(request("allocation", names, book, samples=1), tmp_path / "new")


def test_a_haystack_too_short_is_refused(tmp_path, make):
    note = tmp_path / "note.txt"
    note.write_text("One short note. Nothing more.", encoding="utf-8")
    with pytest.raises(InputError, match=r"the text has \d+ tokens, fewer than the \d+ .* text with --data"):
        evaluate(request("needles", [make("ours")], str(note)), tmp_path / "out")


def test_names_of_arms_tell_models_apart():
    assert list(short_names(["runs/a/softmax", "runs/a/differential"]).values()) == ["softmax", "differential"]
    assert list(short_names(["one/model", "two/model"]).values()) == ["one/model", "two/model"]


@pytest.mark.slow
def test_a_script_gets_what_the_command_writes(tmp_path, make, book, generated_text):
    """The same numbers from a model at hand, as a result that shows itself."""
    name, sizes = make("ours"), {"samples": 2, "depths": [0.5]}
    loaded = load_model(name)
    texts = [generated_text]
    found = needles_in_text(loaded.model, loaded.tokenizer, texts, needles=[3], lengths=[LENGTH], **sizes)
    record = evaluate(request("needles", [name], book, **sizes), tmp_path / "needles")
    assert replace(found, models=[name]) == Needles.read(record)
    assert "Accuracy by depth of the needle" in found._repr_html_()
    seen = allocation_in_text(loaded.model, loaded.tokenizer, texts, needles=3, length=LENGTH, **sizes)
    record = evaluate(request("allocation", [name], book, **sizes), tmp_path / "allocation")
    assert replace(seen, models=[name]) == Allocation.read(record)
    assert seen._repr_html_().count("<img") == 2


# ---------------------------------------------------------------------------------- nothing is measured twice


class Counted:
    """Which models are loaded, and the cells that are measured; before cell number ``stop`` the work is stopped."""

    def __init__(self, monkeypatch):
        self.stop = None
        self.loaded = []
        self.cells = []
        for name in ("Texts", "Symbols"):
            kind = getattr(context_runner, name)
            monkeypatch.setattr(kind, "rows", self._counting(kind.rows))
        load = context_runner.load_model

        def loading(name, **words):
            self.loaded.append(name)
            return load(name, **words)

        monkeypatch.setattr(context_runner, "load_model", loading)

    def _counting(self, measure):
        def rows(experiment, loaded, cell):
            if len(self.cells) == self.stop:
                raise KeyboardInterrupt
            weights = sum(float(tensor.detach().double().sum()) for tensor in loaded.model.parameters())
            self.cells.append((loaded.name, weights, cell))
            return measure(experiment, loaded, cell)

        return rows

    def clear(self):
        self.stop, self.loaded, self.cells = None, [], []


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


@pytest.fixture
def symbols(tmp_path, tiny_preset):
    for kind in ("softmax", "differential"):
        run = load_preset(str(tiny_preset), [f"model.attention_type={kind}", "training.steps=1"]).run
        train_run(run, tmp_path / kind, resume=False)
    return [str(tmp_path / "softmax"), str(tmp_path / "differential")]


@pytest.mark.parametrize(
    ("measurement", "task"),
    [
        ("needles", "text"),
        ("allocation", "symbols"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("needles", "symbols"), ("allocation", "text"))),
    ],
)
def test_an_interrupted_grid_goes_on_and_measures_no_cell_twice(tmp_path, measurement, task, counted, request):
    if task == "text":
        make, book = request.getfixturevalue("make"), request.getfixturevalue("book")
        ask = grid(measurement, [make("ours"), make("llama", "llama")], book)
    else:
        ask = asked(measurement, request.getfixturevalue("symbols"), depths=[0.5], samples=2)
    told = []
    whole = evaluate(ask, tmp_path / "whole", report=lambda *counts: told.append(counts))
    cells = list(counted.cells)
    assert told == [(done, len(cells)) for done in range(len(cells) + 1)]  # untrained models' cells are counted too
    assert len(cells) == len(set(cells)) == (6 if (measurement, task) == ("needles", "text") else 8)
    done = []
    for stop in (0, 3, 2, None):  # before anything, in the first model, in the second, not at all
        counted.clear()
        counted.stop = stop
        if stop is None:
            record = evaluate(ask, tmp_path / "out", resume=True)
        else:
            with pytest.raises(KeyboardInterrupt):
                evaluate(ask, tmp_path / "out", resume=stop > 0)
            with (tmp_path / "out" / JOURNAL).open("ab") as file:
                file.write(b'{"key": "cut off by a ki')
        done += counted.cells
    assert done == cells
    assert (record.values, record.config, record.seeds) == (whole.values, whole.config, whole.seeds)
    (tmp_path / "out" / "record.json").unlink()  # stopped before it was written
    counted.clear()
    assert evaluate(ask, tmp_path / "out", resume=True).values == whole.values
    assert (counted.cells, counted.loaded) == ([], ask.names[:1])


def grid(measurement, names, book):
    return request(measurement, names, book, depths=[0.5], samples=2)


def test_a_finished_grid_is_returned_without_its_models(tmp_path, make, book, counted):
    ask = grid("needles", [make("ours"), make("llama", "llama")], book)
    record = evaluate(ask, tmp_path / "out")
    before = (tmp_path / "out" / "record.json").read_bytes()
    counted.clear()
    again = evaluate(replace(ask, device="auto"), tmp_path / "out", resume=True)
    assert again.values == record.values
    assert (counted.cells, counted.loaded) == ([], [])
    assert (tmp_path / "out" / "record.json").read_bytes() == before
    with pytest.raises(InputError, match="out exists and is not empty; add resume to continue"):
        evaluate(ask, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
def test_another_grid_is_refused_by_the_name_of_what_differs(tmp_path, make, book, counted, finished):
    ours, llama = make("ours"), make("llama", "llama")
    ask = grid("needles", [ours, llama], book)
    counted.stop = None if finished else 2
    if finished:
        evaluate(ask, tmp_path / "out")
    else:
        with pytest.raises(KeyboardInterrupt):
            evaluate(ask, tmp_path / "out")
    counted.clear()
    kept = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    shutil.copytree(llama, tmp_path / "copy")

    def refused(words, other=None, **changes):
        with pytest.raises(InputError, match=rf"other settings or inputs \({words}\); choose another folder"):
            evaluate(replace(other or ask, **changes), tmp_path / "out", resume=True)

    refused("--samples", samples=3)
    refused("--depths", depths=[0.25])
    refused("--needles", needles=[2])
    refused("--queries", queries=[2])
    refused("--length", lengths=[250])
    refused("--seed", seed=1)
    refused("the measurement", grid("allocation", [ours, llama], book))
    refused("--against", against=[str(tmp_path / "copy")])
    refused("--against, the files of --against", against=[])
    for path, words in (
        (Path(ours) / "model.safetensors", "the files of MODEL"),
        (Path(ours) / "tokenizer.json", "the files of MODEL"),
        (Path(llama) / "model.safetensors", "the files of --against"),
        (Path(book), "what --data names"),
    ):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refused(words)
        path.write_bytes(content)
    assert (counted.cells, counted.loaded) == ([], [])
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == kept
    evaluate(ask, tmp_path / "out", resume=True)


KILLED = """
import os, signal, sys
from antiphase.lab.measures.needles import measure as module
measure, done = module.text_needles, []
def killing(*words):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(1)
    return measure(*words)
module.text_needles = killing
from antiphase import cli
sys.argv = ["antiphase", "evaluate", "needles", *sys.argv[1:]]
cli.main()
"""


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path, make, book, counted, antiphase):
    words = [make("ours"), "--against", make("llama", "llama"), "--data", book, "--needles", "3", "--depths", "0.5"]
    words += ["--length", str(LENGTH), "--samples", "2", "--device", "cpu", "--output"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words, str(tmp_path / "out")], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out" / "record.json").exists()
    for folder, more in (("out", ["--resume"]), ("whole", [])):
        counted.clear()
        assert antiphase("evaluate needles", words, folder, more)[0] == 0
        assert len(counted.cells) == (4 if more else 6)
    assert Record.load(tmp_path / "out").values == Record.load(tmp_path / "whole").values
    assert {path.name for path in (tmp_path / "out").iterdir()} - {LOCK} == {JOURNAL, "record.json", "report.html"}
