"""The command line: a mistake costs one sentence, exit code 2 and nothing on disk; every help shows an example."""

import json
import re

import pytest
import torch
import typer
from typer.core import TyperGroup

from antiphase import cli
from antiphase.base.records import Record
from support.paths import ROOT

DOCS = ROOT / "docs"
ALL = typer.main.get_command(cli.app)
COMMANDS = sorted(
    [name for name, command in ALL.commands.items() if not isinstance(command, TyperGroup)]
    + [f"{group} {name}" for group, one in ALL.commands.items() if isinstance(one, TyperGroup) for name in one.commands]
)


@pytest.fixture
def tiny(tiny_preset):
    """Words that every command on the tiny preset begins with."""
    return f"--preset {tiny_preset.name}"


@pytest.fixture
def text(tmp_path):
    """A file of some four thousand words."""
    path = tmp_path / "book.txt"
    path.write_text(BOOK * 40, encoding="utf-8")
    return path


BOOK = (
    "The harbour lay quiet under a pale morning. Two boats, one red and one grey, rocked beside the pier. "
    "A gull walked along the wall, looked at the water, and flew away. Nobody spoke of the storm; everyone "
    "remembered it. By noon the market was full of voices, of fish and of bread.\n"
)


@pytest.fixture
def foreign_model(tmp_path, capsys):
    """A tiny model of another family, with a tokenizer."""
    from antiphase.lab.text.tokenization import train_tokenizer
    from support.models import save, small_llama

    tokenizer = train_tokenizer([BOOK], 270)
    torch.manual_seed(0)
    folder = save(small_llama(tokenizer, max_position_embeddings=300), tokenizer, tmp_path / "llama")
    capsys.readouterr()  # what saving has printed
    return folder


# ---------------------------------------------------------------------------------- words of the command itself


def test_json_is_all_that_standard_output_holds(antiphase, foreign_model, text, tmp_path):
    words = f"--length 32 --samples 2 --output {tmp_path / 'p'} --json"
    code, out, err = antiphase("evaluate perplexity", foreign_model, "--data", text, words)
    assert code == 0, err
    assert json.loads(out) == json.loads((tmp_path / "p/record.json").read_text())
    assert "record:" in err


def test_every_command_is_known():
    assert {"compare", "train", "tune", "evaluate needles", "calibrate search", "report", "env"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(antiphase, command):
    code, out, _ = antiphase(f"{command} --help")
    assert code == 0
    assert re.search(rf"Example: antiphase {command}\b", " ".join(out.split()))


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", *sorted(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_documents_name_commands_and_flags_that_exist(page):
    """What stands behind ``antiphase`` in a line of code, or between backquotes, and the flags in the rest of it."""
    text = (DOCS.parent / page).read_text(encoding="utf-8").replace("\\\n", " ")
    named = re.findall(r"(?:^|`|bin/|-m )antiphase ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^`\n]*)", text, re.MULTILINE)
    for first, second, rest in named:
        one = ALL.get_command(None, first)
        assert one is not None, first
        if isinstance(one, TyperGroup) and second:
            one = one.get_command(None, second)
            assert one is not None, f"{first} {second}"
        below = [one.get_command(None, name) for name in one.commands] if isinstance(one, TyperGroup) else [one]
        known = {"--help", *(flag for command in below for parameter in command.params for flag in parameter.opts)}
        assert set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", rest)) <= known, f"{first} {second} {rest}"


@pytest.mark.parametrize(
    "page", ["README.md", "DESIGN.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in DOCS.glob("*.md"))]
)
def test_documents_name_files_that_exist(page):
    """Links, modules, and paths from the root or the package: ``models/heads.py`` is antiphase/models/heads.py."""
    root = DOCS.parent
    text = (root / page).read_text(encoding="utf-8")
    folders = {path.name for base in (root, root / "antiphase") for path in base.iterdir() if path.is_dir()} - {"runs"}
    paths = {path for path in re.findall(r"(?<![\w/.:-])[a-z_]+/[\w/.-]*\w", text) if path.split("/")[0] in folders}
    paths = {path for path in paths if re.search(r"\.\w+$", path) or path.startswith(("antiphase/", "tests/", "docs/"))}
    missing = {path for path in paths if not ((root / path).exists() or (root / "antiphase" / path).exists())}
    missing |= {
        link for link in re.findall(r"\]\(([^)#:]+)[#)]", text) if not (root / page).parent.joinpath(link).exists()
    }
    assert missing == set()
    modules = {name.replace(".", "/") for name in re.findall(r"\bantiphase(?:\.[a-z_]+)+", text)}
    homes = {home for path in (root / "antiphase").rglob("*.py") for home in (path.with_suffix(""), path.parent)}
    assert {name for name in modules if not {root / name, (root / name).parent} & homes} == set()


def test_help_of_the_whole_lists_every_command(antiphase):
    code, out, _ = antiphase("--help")
    assert code == 0
    assert all(command.split(" ")[0] in out for command in COMMANDS)


def test_a_model_alone_is_looked_at(antiphase, tmp_path):
    (tmp_path / "model").mkdir()
    for words in (f"{tmp_path / 'model'} --text cat", "owner/name --text cat"):
        code, _, err = antiphase(words)
        assert (code, err.count("antiphase look --help")) == (2, 1), err  # it misses --output
    code, _, err = antiphase("modle --text cat")
    assert (code, "no such command 'modle'" in err) == (2, True)


def test_help_shows_every_command_under_a_heading_and_the_commonest_first(antiphase):
    assert sorted(cli.NAMES) == sorted(ALL.commands)
    _, out, _ = antiphase("--help")
    places = [out.index(f"─ {heading} ─") for heading in cli.PANELS]
    assert places == sorted(places)
    assert places[0] < out.index("│ look ") < out.index("│ probe ") < places[1] < out.index("│ compare ") < places[2]


@pytest.mark.parametrize("group", ["calibrate", "evaluate"])
def test_help_of_a_group_lists_its_commands(antiphase, group):
    code, out, _ = antiphase(f"{group} --help")
    assert code == 0
    named = [command.split(" ")[1] for command in COMMANDS if command.startswith(f"{group} ")]
    assert len(named) >= 3
    assert all(re.search(rf"\b{name}\b", out) for name in named)


def test_usage_errors_are_what_typer_raises():
    assert issubclass(typer.BadParameter, cli.USAGE_ERROR)
    assert cli.USAGE_ERROR.__name__ == "ClickException"


# ---------------------------------------------------------------------------------- settings

SETTINGS = [
    ("--set training.stpes=5", "unknown key 'training.stpes'; did you mean 'steps'"),
    ("--set model.num_attention_heads=3", r"num_attention_heads \(3\) does not divide hidden_size \(16\)"),
    ("--set data.needles=8", r"data.needles \(8\) is more than the 7 different keys"),
    ("--set data.sequence_length=8", r"data.sequence_length \(8\) is too short for 3 needles and 2 queries"),
    ("--set model.max_position_embeddings=24", r"model.max_position_embeddings \(24\) is shorter"),
    ("--device nonsense", "--device nonsense is not a device"),
    ("--data missing.txt", "--data missing.txt: there is no such file"),
    ("--data empty.txt", "--data empty.txt: the file is empty"),
    ("--data small.txt --set data.sequence_length=200", "--data holds .* less than one block"),
    ("--data small.txt --set data.sequence_length=4", "--data holds 5 tokens, 1 whole block of 4, and .* takes 2"),
    ("--data small.txt --validation book.txt --set data.sequence_length=200", "--data holds .* less than one block"),
    ("--data book.txt --validation missing.txt", "--validation missing.txt: there is no such file"),
    ("--data book.txt --set data.needles=2 --set data.queries=1", r"data.sequence_length \(25\) is too short"),
    ("--data book.txt --set data.vocabulary_size=5", "data.vocabulary_size must be at least 258"),
    ("--data book.txt --set data.tokenizer=missing/deep/folder", "data.tokenizer missing/deep/folder"),
    ("--validation book.txt", "--validation cannot be used without --data"),
    ("--set data.source=text", "--data needs at least one file"),
]


@pytest.fixture
def bad_files(tmp_path, text):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "small.txt").write_text("A few words only.")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "notes.json").write_text('{"values": 3}')
    Record(kind="other", values={"a": 1}).save(tmp_path / "good")


@pytest.mark.parametrize("command", ["train", "compare", "tune --learning-rates 1e-3"])
@pytest.mark.parametrize(("words", "pattern"), SETTINGS)
@pytest.mark.usefixtures("bad_files")
def test_settings_that_cannot_be_used_cost_one_sentence(refused, tiny, command, words, pattern):
    refused(pattern, f"{command} {tiny} --output out {words}")


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        # the command itself
        ("bogus", "no such command 'bogus'"),
        ("compare", "missing option '--output'; see antiphase compare --help"),
        ("train --outptu x", "--outptu"),
        ("train --output x --seed one", "--seed"),
        ("tune --output x", "--learning-rates"),
        ("evaluate bogus model --output x", "no such command 'bogus'"),
        ("evaluate needles --output x", "MODEL|model"),
        ("evaluate needles m --samples many --output x", "--samples"),
        ("report --output x.html", "RUN"),
        ("env extra", "extra"),
        # presets, studies
        ("train --preset demmo --output out", "--preset demmo: unknown preset; did you mean 'demo'"),
        ("compare TINY --seeds 0,x", "--seeds must be comma-separated numbers, got '0,x'"),
        ("compare TINY --seeds 0,1,0", "--seeds must be different whole numbers"),
        ("tune TINY --learning-rates 1e-3 --seeds 2,2", "--seeds must be different whole numbers"),
        ("tune TINY --learning-rates 0", "--learning-rates must be different numbers above 0"),
        ("tune TINY --learning-rates 1e-3,0.001", "--learning-rates must be different numbers above 0"),
        ("compare TINY --set evaluation.needles=[64]", r"evaluation.needles \(64\) is more than the 7 different keys"),
        ("compare TINY --set evaluation.lengths=[9]", r"evaluation.lengths \(9\) is too short"),
        (
            "compare TINY --set evaluation.queries=[99]",
            r"data.sequence_length \(25\) is too short for 3 .* lower data.needles or evaluation.queries",
        ),
        ("compare TINY --set evaluation.queries=[1,1]", "evaluation.queries must be different numbers of at least 1"),
        # models and records
        ("evaluate needles mine --output out", "MODEL mine: this folder holds no model .config.json is missing."),
        ("evaluate needles ./missing --output out", "MODEL ./missing"),
        ("report mine --output page.html", "mine/record.json: there is no such file"),
        ("report missing --output page.html", "missing: there is no such file; give a record"),
        ("report notes.json --output page.html", "notes.json is not a record"),
        ("report good --output mine", "--output mine is a folder"),
        ("report good --output good/record.json/page.html", "--output .* cannot be"),
        ("report good notes.json --output page.html", "notes.json is not a record"),
    ],
)
@pytest.mark.usefixtures("bad_files", "tiny")
def test_unusable_input_costs_one_sentence(refused, words, pattern):
    refused(pattern, words.replace("TINY", "--preset tiny.yaml --output out"))


@pytest.mark.parametrize("command", ["train", "compare", "tune --learning-rates 1e-3"])
@pytest.mark.parametrize(("output", "pattern"), [
    ("mine", "--output mine exists and holds no (run|study) of antiphase; choose another folder"),
    ("file", "--output file exists and holds no (run|study) of antiphase"),
    ("file/deep", "--output file/deep cannot be made"),
])  # fmt: skip
@pytest.mark.usefixtures("bad_files")
def test_output_that_is_something_else_is_left_alone(refused, tiny, command, output, pattern):
    refused(pattern, f"{command} {tiny} --output {output}")
    refused(pattern, f"{command} {tiny} --output {output} --resume")


@pytest.mark.slow
def test_refused_text_may_be_corrected_into_the_same_folder(antiphase, refused, tiny, text):
    sizes = "--set data.sequence_length=200 --set training.steps=2 --set data.queries=1 --set evaluation.samples=2"
    start = f"train {tiny} --output out --data book.txt {sizes}"
    refused("less than one block", f"{start} --set data.sequence_length=99999")
    assert antiphase(f"{start} --set data.needles=2")[0] == 0


# ---------------------------------------------------------------------------------- one run and what follows


@pytest.mark.slow
@pytest.mark.essential
def test_run_and_all_that_reads_it(antiphase, refused, tmp_path, tiny):
    start = f"train {tiny} --set training.steps=4 --output out"
    code, out, err = antiphase(f"{start} --seed 3")
    assert (code, err) == (0, "")
    assert "out/record.json" in out
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["kind"] == "train"
    assert record["seeds"] == [3]
    assert record["command"] == f"antiphase {start} --seed 3"
    assert record["config"]["training"]["steps"] == 4
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!")

    refused("already contains a run; add --resume", f"{start} --seed 3")
    refused("holds a run with other settings .training.seed.", f"{start} --seed 4 --resume")
    refused("holds no study", f"compare {tiny} --output out")
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert antiphase(f"{start} --seed 3 --resume")[0] == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights

    for measurement, words in (("needles", "--depths 0,1"), ("perplexity", ""), ("allocation", "")):
        code, _, err = antiphase(f"evaluate {measurement} out --samples 3 {words} --output {measurement}")
        assert (code, err) == (0, "")
        assert json.loads((tmp_path / measurement / "record.json").read_text())["kind"] == f"evaluate-{measurement}"
        assert (tmp_path / measurement / "report.html").is_file()
    refused("exists and is not empty", "evaluate needles out --output needles")
    assert antiphase("evaluate needles out --samples 2 --depths 0 --needles 1,2 --queries 1,2 --output grid")[0] == 0
    summary = json.loads((tmp_path / "grid" / "record.json").read_text())["values"]["summary"]
    sizes = {(row["needles"], row["queries"], row["depth"], row["trained"]) for row in summary}
    assert len(sizes) == len(summary) == 2 * 2 * 2 * 2
    code, _, err = antiphase("report out needles allocation/record.json --output all/page.html --figures figures")
    assert (code, err) == (0, "")
    assert (tmp_path / "all" / "page.html").read_text().count("antiphase train") >= 1

    length = "is longer than the 25 positions of out"
    for words, pattern in (
        ("--length 26", f"--length 26 {length}"),
        ("--length 9", r"--length \(9\) is too short .* or lower --needles or --queries"),
        ("--needles 99", r"--needles \(99\) is more than the 7 different keys"),
        ("--queries 99", r"--length \(25\) is too short for 3 needles and 99 queries"),
        ("--data missing.txt", "--data cannot be used: out has only the vocabulary of the synthetic task"),
    ):
        refused(pattern, f"evaluate needles out --output new {words}")
    (tmp_path / "words.txt").write_text("The harbour lay quiet.\n" * 90)
    only = "--data cannot be used: out has only the vocabulary of the synthetic task"
    refused(only, "probe out --data words.txt --length 20 --output new")
    refused("holds a run|is not empty", "evaluate needles out --output out")
    for flag in ("--needles", "--queries"):
        refused(f"{flag} takes one number", f"evaluate allocation out --output new {flag} 1,2")


def test_a_training_that_diverges_is_exit_code_3_and_one_sentence(antiphase, tmp_path, tiny):
    start = f"train {tiny} --set training.learning_rate=1e30 --output out"
    words = "antiphase: --output out: training diverged at step 2, its loss is nan; its last checkpoint stays as it was"
    for more in ("", "--resume"):
        code, _, err = antiphase(f"{start} {more}")
        assert code == 3
        assert err.startswith(words)
        assert err.count("\n") == 1
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert antiphase("report out --output page.html")[0] == 0
    assert "1 of 1, at step 2" in (tmp_path / "page.html").read_text()


def test_a_loss_says_how_many_sequences_it_rests_on(antiphase, tmp_path, foreign_model, text):
    text.write_text(BOOK * 2)
    assert antiphase("evaluate perplexity llama --data book.txt --length 48 --samples 200 --output out")[0] == 0
    (row,) = json.loads((tmp_path / "out" / "record.json").read_text())["values"]["rows"]
    assert row["tokens"] == 47 * row["sequences"] < 47 * 200


def test_a_model_is_converted_and_unsuitable_ones_are_refused(antiphase, refused, tmp_path, foreign_model):
    code, out, err = antiphase("convert llama ours")
    assert (code, err) == (0, "")
    assert "written: ours (antiphase, softmax attention)" in out
    assert antiphase("convert llama v2 --attention-type differential_v2")[0] == 0
    assert antiphase("convert llama control --attention-type differential_v2 --control")[0] == 0
    assert antiphase("convert ours back --to llama")[0] == 0
    kept = {path.name for path in tmp_path.iterdir()}
    for words, pattern in (
        ("llama ours", "TARGET ours exists and is not empty"),
        ("missing new", "SOURCE missing: there is no such folder"),
        ("v2 new --to llama", "--to llama takes softmax models, not differential_v2"),
        ("v2 new --to elsewhere", "invalid value for '--to'"),
        ("llama new --attention-type v3", "--attention-type must be one of differential_v2, differential, dex"),
        ("llama new --control", "--control needs --attention-type"),
    ):
        refused(pattern, f"convert {words}")
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.slow
def test_only_a_softmax_model_is_upcycled(antiphase, refused, tiny):
    refused("MODEL missing: there is no such folder", "upcycle missing --output new")
    for kind in ("softmax", "differential"):
        words = f"train {tiny} --output {kind} --set training.steps=1 --set model.attention_type={kind}"
        assert antiphase(words)[0] == 0
    refused("MODEL differential is not a softmax model", "upcycle differential --output new")
    refused("--seeds must not hold 0: softmax was trained on", "upcycle softmax --output new --seeds 0,1")
    refused("exists and holds no study", "upcycle softmax --output differential")
    said = r"--set cannot change MODEL softmax: model.hidden_size=32 \(it has 16\); leave them out"
    refused(said, "upcycle softmax --output new --set model.hidden_size=32")


def test_model_of_another_family_needs_text_and_takes_it(antiphase, refused, tmp_path, foreign_model, text):
    refused("--data is missing: .*llama was not trained here", "evaluate perplexity llama --output new")
    refused(
        "--length 301 is longer than the 300", "evaluate perplexity llama --length 301 --data book.txt --output new"
    )
    refused("config.json, line 1: this is not JSON", "evaluate perplexity llama --data llama/config.json --output new")
    code, _, err = antiphase("evaluate perplexity llama --data book.txt --samples 4 --output new")
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    assert record["config"]["data"]["sequence_length"] == 300
    (row,) = record["values"]["rows"]
    assert row["tokens"] == 4 * 299


def test_probe_of_another_family(antiphase, refused, tmp_path, foreign_model, text):
    refused("--alpha must be above 0, got 0.0", "probe llama --data book.txt --alpha 0 --output new")
    refused("--length 301 is longer than the 300", "probe llama --data book.txt --length 301 --output new")
    refused("--data", "probe llama --output new")
    (tmp_path / "short.txt").write_text("one two three")
    refused("13 tokens, less than one block of --length=200", "probe llama --data short.txt --length 200 --output new")
    code, _, err = antiphase("probe llama --data book.txt --length 64 --samples 5 --output new")
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    assert record["kind"] == "probe"
    assert record["values"]["sequences"] == 5
    assert record["values"]["null_local"] == pytest.approx(0.2, abs=0.02)
    layers, heads = record["values"]["layers"], record["values"]["heads"]
    assert len(heads) == len(layers) * (heads[-1]["head"] + 1)
    page = (tmp_path / "new" / "report.html").read_text()
    assert page.count("<img") >= 2  # no token may have been a sink
    assert "Sinks by layer and position" in page
    refused("exists and is not empty", "probe llama --data book.txt --length 64 --output new")


# ---------------------------------------------------------------------------------- looking at one text


def test_look_writes_a_record_and_a_page_that_report_draws_again(antiphase, foreign_model, tmp_path):
    code, out, err = antiphase("look", foreign_model, "--output out --device cpu --text", BOOK[:50].replace(" ", "_"))
    assert code == 0, err
    assert "Attention by layer" in out
    page = (tmp_path / "out" / "report.html").read_bytes()
    made = {path.name for path in (tmp_path / "out").iterdir()} - {".lock"}
    assert made == {"record.json", "record.safetensors", "report.html"}
    code, _, _ = antiphase("report out --output again.html --figures figures")
    assert code == 0
    assert (tmp_path / "again.html").read_bytes() == page
    assert len(list((tmp_path / "figures").glob("look-*.png"))) == 3


@pytest.mark.parametrize(("pattern", "arguments"), [
    ("--length must lie between 1 and 8192, got 9000", "--text a --length 9000"),
    ("more than the 3 of --length", "--text harbour,harbour --length 3"),
    ("--text and --text-file are missing; give one", ""),
])  # fmt: skip
def test_look_refuses(refused, foreign_model, pattern, arguments):
    refused(pattern, "look", foreign_model, "--output out", arguments)


@pytest.mark.slow
def test_further_measurements_of_another_family(antiphase, refused, tmp_path, foreign_model, text):
    words = "llama --data book.txt --length 48 --samples 2"
    for measurement, title, figure in (
        ("long-context", "Loss by length of context", "loss-by-length"),
        ("outliers", "Largest values", "outliers"),
        ("quantization --needles 1 --queries 1 --length 200", "Attention logits in few bits", "quantization"),
    ):
        name = measurement.split(" ")[0]
        code, _, err = antiphase(f"evaluate {name} {words} {measurement.removeprefix(name)} --output {name}")
        assert code == 0, err
        page = (tmp_path / name / "report.html").read_text()
        assert title in page
        assert page.count("<img") == 1
        assert f"record-1-{figure}" in page
    curve = json.loads((tmp_path / "long-context" / "record.json").read_text())["values"]["curve"]
    assert [row["position"] for row in curve] == [24, 48]
    rows = json.loads((tmp_path / "quantization" / "record.json").read_text())["values"]["rows"]
    assert [row["bits"] for row in rows] == [None, 16, 8, 6, 4]
    assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], abs=1e-3)


@pytest.mark.parametrize("subject", ["attention", "model"])
def test_benchmarks_on_a_gpu_need_the_kernels(subject, refused, monkeypatch):
    monkeypatch.setattr("antiphase.lab.training.device.choose_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr("antiphase.ops.implementations.HAS_TRITON", False)
    refused("--device cuda: .*needs Triton.*pip install", f"benchmark {subject} --device cuda --output out")


@pytest.mark.slow
def test_a_finished_run_is_extended(antiphase, refused, tmp_path, tiny):
    assert antiphase(f"train {tiny} --output short --set training.steps=2")[0] == 0
    refused("--length 25 must be more than the 25 positions", "extend short --length 25 --output long")
    refused("MODEL missing is not a finished run", "extend missing --length 50 --output long")
    again = "extend short --length 50 --rope-theta 50000 --output long --set training.steps=2"
    assert antiphase(again)[::2] == (0, "")
    assert json.loads((tmp_path / "long" / "config.json").read_text())["max_position_embeddings"] == 50
    refused("already contains a run; add --resume", again)
    assert antiphase(f"{again} --resume")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("measurement", "words"), [
    ("needles", "llama --data book.txt --length 150 --needles 2 --depths 0"),
    ("allocation", "llama --data book.txt --length 150 --needles 2 --depths 0"),
    ("noise", "llama --data book.txt --length 150 --needles 2 --times 1 --resamples 2"),
    ("many-shot", "llama --task task.yaml --shots 1,2 --orders 2"),
    ("long-context", "llama --data book.txt --length 48"), ("perplexity", "llama --data book.txt --length 48"),
    ("outliers", "llama --data book.txt --length 48"),
    ("quantization", "llama --data book.txt --length 200 --needles 1 --queries 1 --bits 8"), ("cancellation", "own"),
])  # fmt: skip
def test_nothing_is_evaluated_twice(
    antiphase, refused, tmp_path, foreign_model, tiny, text, monkeypatch, measurement, words
):
    assert antiphase(f"train {tiny} --output own --set training.steps=1")[0] == 0
    (tmp_path / "rows.all").write_text("".join(f"{i % 2} word {i}\n" for i in range(40)))
    (tmp_path / "task.yaml").write_text("template: cr\ndata: rows.all\n")
    start = f"evaluate {measurement} {words} --output new --samples"
    code, _, err = antiphase(f"{start} 2 --resume")
    assert code == 0, err
    record = (tmp_path / "new" / "record.json").read_bytes()

    def load(*arguments, **words):
        raise AssertionError("a model is loaded")

    for module in ("running", "context_runner"):
        monkeypatch.setattr(f"antiphase.lab.measures.{module}.load_model", load)
    assert antiphase(f"{start} 2 --resume")[0] == 0
    assert (tmp_path / "new" / "record.json").read_bytes() == record
    refused("--output new exists and is not empty; add --resume", f"{start} 2")
    refused(r"--output new contains work .*\(--samples\); choose another folder", f"{start} 3 --resume")
    (tmp_path / words.split()[0] / "config.json").write_text("{}")
    refused(r"--output new contains work .*\(the files of MODEL\); choose another folder", f"{start} 2 --resume")
