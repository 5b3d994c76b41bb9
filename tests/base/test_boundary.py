"""What comes from outside is read, or refused in one sentence that names the file, what is wrong and what to do."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from antiphase import cli
from antiphase.base import files
from antiphase.base.errors import InputError
from antiphase.base.files import BYTE_ORDER_MARK, lines, read_text, whole_text
from antiphase.base.folders.work import work_in
from antiphase.base.records import Record
from antiphase.calibration.plan import CalibrationPlan
from antiphase.lab.lineage.models.word_vectors import read_word_vectors
from antiphase.lab.measures.hallucination import HallucinationSettings
from antiphase.lab.measures.look import LookSettings
from antiphase.lab.measures.look.measure import text_of
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.settings.presets import kept_run, load_preset, to_yaml
from antiphase.lab.studies.claims import registered
from antiphase.lab.text.tasks.task_files import read_task
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.lab.training.run_folder import read_curve
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.sources.failures import asking_hub
from antiphase.models.sources.models import read_model

# ------------------------------------------------------------------------------------------ files

ASKED = HallucinationSettings(name="m", judge="j", data=["d"])


def go_on(path):
    with work_in(path.parent, kept_settings(ASKED), resume=True):
        pass


READERS = {
    "a preset": ("bad.yaml", "preset", lambda path: load_preset(str(path))),
    "settings of a run": ("run.yaml", "model", lambda path: kept_run(path, field="model")),
    "a task": ("task.yaml", "task", lambda path: read_task(str(path))), "a record": ("other.json", "", Record.load),
    "a plan": ("plan.json", "plan", CalibrationPlan.load), "a request": ("request.json", "output", go_on),
    "a curve": ("curve.json", "output", lambda path: read_curve(path.parent)),
    "claims": ("claim.json", "output", lambda path: registered(path.parent)),
    "a key": (
        "key.txt", "judge_key_file",
        lambda path: replace(ASKED, judge_url="http://h", judge_key_file=str(path)).key(),
    ),
    "word vectors": ("vectors.txt", "", lambda path: read_word_vectors(path, {}, width=2)),
    "text": ("text.txt", "data", lambda path: whole_text(path, "data")),
    "text to look at": (
        "text.txt", "text_file", lambda path: text_of(LookSettings(name="m", text_file=str(path))),
    ),
    "lines": ("text.txt", "data", lambda path: list(lines(path, "data"))),
}  # fmt: skip
"""What reads a file: its name, the field that names it, the call."""
TREES = {"a preset", "settings of a run", "a task", "a record", "a plan", "a request", "claims"}
"""They hold a mapping."""
FOUND_FIRST = {"a request", "a curve", "claims"}
"""Missing, they have not begun."""


def link(target):
    return lambda path: path.symlink_to(target)


def bytes(content):
    return lambda path: path.write_bytes(content) and None


FAULTS = {
    "missing": (lambda path: None, "there is no such file; ", lambda reader: reader not in FOUND_FIRST),
    "a link to nothing": (link("nowhere"), "the link leads nowhere; ", lambda reader: reader not in FOUND_FIRST),
    "a folder": (Path.mkdir, "this is a folder; ", lambda reader: reader not in FOUND_FIRST | {"a record"}),
    "unreadable": (link("/proc/self/mem"), "the file cannot be read (Input/output error); check", lambda reader: True),
    "empty": (bytes(b""), "the file is empty; ", lambda reader: reader in TREES | {"a key", "a curve"}),
    "white space": (bytes(b"\n \n"), "the file is empty; ", lambda reader: reader in TREES | {"a key", "a curve"}),
    "not UTF-8": (
        bytes(b"a: 1\nb: \xff"), ", line 2: the text is not UTF-8 at byte 8 of the file (0xff); save it as UTF-8",
        lambda reader: reader != "word vectors",
    ),
    "cut short": (bytes(b'{"a": ['), "this is not ", lambda reader: reader in TREES | {"a curve"}),
    "a list": (bytes(b"[1]"), "; ", lambda reader: reader in TREES | {"a curve"}),
    "a number": (bytes(b"9" * 5000), "; ", lambda reader: reader in TREES | {"a curve"}),
    "a zero": (bytes(b"a: \0"), "this is not ", lambda reader: reader in TREES | {"a curve"}),
    "too deep": (bytes(b"[" * 100_000), "this is not ", lambda reader: reader in TREES | {"a curve"}),
    "other keys": (bytes(b'{"a": 1}'), "", lambda reader: reader in TREES),
    "too large": (bytes(b"a: 1" * 100), "the file is larger than ", lambda reader: reader in TREES | {"a key"}),
}  # fmt: skip
"""What may be wrong: how it comes about, what is said, and of which readers."""


@pytest.mark.parametrize(
    ("reader", "fault"), [(reader, fault) for fault, row in FAULTS.items() for reader in READERS if row[2](reader)]
)
def test_a_file_that_cannot_be_used_costs_one_sentence(tmp_path, monkeypatch, reader, fault):
    name, field, read = READERS[reader]
    make, said, _ = FAULTS[fault]
    if fault == "unreadable" and not Path("/proc/self/mem").exists():
        pytest.skip("no file here that opens and cannot be read")
    if fault == "too large":
        monkeypatch.setattr(files, "LARGEST", 99)
    make(tmp_path / name)
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    message = str(caught.value)
    assert said in message
    if fault != "other keys":  # then the field is named
        assert message.startswith(f"{field} {tmp_path / name}".lstrip())
        assert "; " in message  # what to do
    assert "\n" not in message


@pytest.mark.parametrize(("name", "read"), [(row[0], row[2]) for key, row in READERS.items() if "text" in row[0]])
def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path, name, read):
    (tmp_path / name).write_bytes(BYTE_ORDER_MARK + b"one\r\ntwo\n")
    assert "".join(read(tmp_path / name)).replace("\r", "") == "one\ntwo\n"


def test_a_later_part_of_a_text_names_the_byte_of_the_file_and_no_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nx\xff")
    with pytest.raises(InputError, match=r"a\.txt: the text is not UTF-8 at byte 9 of the file"):
        whole_text(tmp_path / "a.txt", "data", start=4)


def test_a_byte_order_mark_is_not_part_of_settings_and_records(tmp_path):
    preset = load_preset("demo")
    text = to_yaml(preset.run)
    (tmp_path / "run.yaml").write_bytes(BYTE_ORDER_MARK + text.encode())
    assert kept_run(tmp_path / "run.yaml", field="model") == preset.run
    path = Record(kind="x", values={"a": 1}).save(tmp_path)
    path.write_bytes(BYTE_ORDER_MARK + path.read_bytes())
    assert Record.load(path).values == {"a": 1}


def test_a_file_that_permissions_close_is_named(tmp_path, monkeypatch):
    def closed(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", closed)
    with pytest.raises(InputError, match=r"^x a\.txt: the file cannot be read \(Permission denied\); check its perm"):
        read_text("a.txt", "x", "give another")


@pytest.mark.parametrize("file", ["record.json", None])
def test_a_full_disk_costs_one_sentence_and_keeps_what_there_is(monkeypatch, capsys, file):
    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device", file)

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    said = f"antiphase: {file or 'a file'} cannot be written (No space left on device); make room, then repeat"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["report", "x" * 5000, "--output", "o.html"],
            "^antiphase: x{200} cannot be used .File name too long.; give a sh",
        ),
        (
            ["report", "\udcff", "--output", "o.html"],
            r"^antiphase: the argument '\\udcff' is not UTF-8; rename the file",
        ),
        (
            ["report", "damaged.json", "--output", "o.html"],
            "^antiphase: RUN damaged.json: the values of the record cann",
        ),
        (
            ["report", "damaged.json", "--output", "o.html", "--figures", "f"],
            "^antiphase: RUN damaged.json: the values",
        ),
        (["report", "damaged.json", "--output", "o"], "^antiphase: --output o must end in .html"),
        (["tokenize", "a\0\x1b[2J", "--data", "\x1b[2J"], r"^antiphase: --data \\x1b\[2J: there is no such file"),
        (
            ["evaluate", "hallucination", "m", "--data", "half.jsonl", "--judge", "m", "--output", "o"],
            "unpaired surrogate",
        ),
    ],
)
def test_arguments_and_what_they_name_cost_one_sentence(refused, tmp_path, arguments, said):
    Record(kind="benchmark-attention", values={"rows": [{"length": 3}]}).save(tmp_path, "damaged")
    (tmp_path / "half.jsonl").write_text('{"document": "a", "summary": "\\ud800"}\n')
    refused(said, arguments)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "record.json").mkdir()
    monkeypatch.setattr(cli, "app", lambda **options: Record(kind="x", values={}).save(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = f"antiphase: {tmp_path / 'record.json'} cannot be used (Is a directory); move the folder away\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_names_may_hold_brackets(antiphase, tmp_path):
    Record(kind="x", values={"a": 1}).save(tmp_path)
    code, out, _ = antiphase(["report", str(tmp_path), "--output", "o[/x].html"])
    assert code == 0
    assert "o[/x].html" in out


# ------------------------------------------------------------------------------------------ models

LAYER = "model.layers.0.mlp.up_proj.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def check(name):
    Checkpoint(name).check()


LOADERS = {
    "a language model": ("model", load_model), "any model": ("model", lambda name: load_model(name, with_head=False)),
    "a classifier": (
        "run", lambda name: read_model(name, lambda config: AutoModelForSequenceClassification, field="run"),
    ),
    "tensor by tensor": ("source", check),
}  # fmt: skip


def tensors(change):
    def harm(folder):
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return harm


def config(**fields):
    def harm(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return harm


def file(name, content):
    return lambda folder: (folder / name).write_bytes(content) and None


def linked(name):
    def harm(folder):
        (folder / name).unlink()
        (folder / name).symlink_to("nowhere")

    return harm


def pickled(folder):
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def indexed(content):
    def harm(folder):
        (folder / WEIGHTS).rename(folder / "a.safetensors")
        (folder / INDEX).write_text(content)

    return harm


def cut(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9])


HARMS = [
    (shutil.rmtree, ": there is no such folder; check the path"),
    (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), ": this is not a folder; give a model's folder"),
    (lambda folder: (folder / "config.json").unlink(), ": this folder holds no model (config.json is missing); give"),
    (linked("config.json"), ": this folder holds no model (config.json is missing); give"),
    (file("config.json", b""), "/config.json: the file is empty; save the model once more"),
    (file("config.json", b'{"model_type": "anti'), "/config.json: this is not JSON (Unterminated string"),
    (file("config.json", b"[1]"), "/config.json: this is not a JSON object; save the model once more"),
    (file("config.json", b'{"a": "\xff"}'), "/config.json, line 1: the text is not UTF-8 at byte 7 of the file"),
    (file("config.json", b"[" * 100_000), "/config.json: this is not JSON ("),
    (file("config.json", b"{}"), ": its config.json cannot be used (ValueError: Unrecognized model"),
    (config(model_type="novel"), f": transformers {transformers.__version__} knows no models of type 'novel'"),
    (config(hidden_size="x"), ": its config.json cannot be used (hidden_size must be a whole number of at least 1"),
    (
        config(model_type="llama", num_attention_heads=3),
        ": its config.json cannot be used (ValueError: The hidden size (16) is not a multiple",
    ),
    (config(dtype="float99"), ": its config.json cannot be used (AttributeError: "),
    (config(dtype={}), ": its config.json cannot be used (TypeError: dtype must be the name of a type"),
    (config(architectures=3), ": its config.json cannot be used (TypeError: architectures must be a list of names"),
    (file("generation_config.json", b"[1]"), "/generation_config.json: this is not a JSON object; save the model"),
    (lambda folder: (folder / WEIGHTS).unlink(), " holds no safetensors; give a folder that holds the weights"),
    (pickled, " holds no safetensors; pytorch_model.bin is a pickle file, which is never opened: save it as"),
    (linked(WEIGHTS), f": {WEIGHTS} is damaged (No such file"), (file(WEIGHTS, b""), f": {WEIGHTS} is damaged ("),
    (file(WEIGHTS, b"these are words"), f": {WEIGHTS} is damaged ("), (cut, f": {WEIGHTS} is damaged ("),
    (indexed("{"), f"/{INDEX}: this is not JSON (Expecting"),
    (indexed("{}"), f"/{INDEX} is damaged: its weight_map names no files; save the model once more"),
    (indexed('{"weight_map": {"a": "b.safetensors"}}'), f" lacks b.safetensors, which its {INDEX} names"),
    (indexed('{"weight_map": {"a": "a.safetensors"}}'), f" lacks the tensor a, which its {INDEX} names"),
    (file("tokenizer.json", b'{"a"'), "/tokenizer.json: this is not JSON (Expecting"),
    (file("tokenizer_config.json", b"[]"), "/tokenizer_config.json: this is not a JSON object; save the model"),
    (linked("tokenizer.json"), "/tokenizer.json: the link leads nowhere; save the model once more"),
    (tensors(lambda tensors: tensors.pop(LAYER)), f" is no whole model: it has no weights for {LAYER}"),
    (
        tensors(lambda tensors: tensors.update({LAYER: tensors[LAYER][:3].clone()})),
        f" is no whole model: {LAYER} has the shape (3, 16), expected (16, 16)",
    ),
    (
        tensors(lambda tensors: tensors[LAYER].__setitem__((0, 0), torch.inf)),
        f" is no whole model: NaN or infinite weights in {LAYER}",
    ),
    (
        tensors(lambda tensors: tensors.update(extra=torch.ones(2))),
        " is no whole model: its configuration has no place for extra",
    ),
]  # fmt: skip
TOKENIZER_HARMS = [
    (lambda folder: (folder / "tokenizer.json").unlink(), ": no tokenizer could be loaded from this folder ("),
    (file("tokenizer.json", b"{}"), ": no tokenizer could be loaded from this folder ("),
    (file("tokenizer_config.json", b'{"eos_token": 3}'), ": no tokenizer could be loaded from this folder ("),
    (
        file("tokenizer_config.json", b'{"model_max_length": ""}'),
        ": no tokenizer could be loaded from this folder (model_max_length must be a number, got '')",
    ),
    (
        lambda folder: train_tokenizer(["pack my box with five dozen liquor jugs"] * 9, 290).save_pretrained(folder),
        ": its tokenizer is another model's, with ",
    ),
]


@pytest.fixture
def saved(tmp_path):
    """A whole model of some head, in a folder."""
    from transformers import AutoModelForCausalLM

    def save(loader):
        config = AntiphaseConfig(
            vocab_size=280, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            attention_type="softmax",
        )  # fmt: skip
        auto = AutoModelForSequenceClassification if loader == "a classifier" else AutoModelForCausalLM
        auto.from_config(config).save_pretrained(tmp_path / "model")
        train_tokenizer(["a word and another word, and a third one"] * 9, 280).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


@pytest.mark.parametrize("loader", LOADERS)
def test_a_model_that_cannot_be_used_costs_one_sentence(saved, tmp_path, loader):
    whole = saved(loader)
    field, load = LOADERS[loader]
    load(str(whole))
    harmed = tmp_path / "harmed"
    for harm, said in [*HARMS, *(TOKENIZER_HARMS if loader != "tensor by tensor" else [])]:
        shutil.copytree(whole, harmed)
        harm(harmed)
        with pytest.raises(InputError) as caught:
            load(str(harmed))
        message = str(caught.value)
        assert message.startswith(f"{field} {harmed}{said}"), said
        assert "\n" not in message
        if harmed.is_dir():
            shutil.rmtree(harmed)
        else:
            harmed.unlink(missing_ok=True)


def test_special_tokens_beyond_the_embedding_are_accepted(saved):
    folder = saved("a language model")
    tokenizer = train_tokenizer(["a word and another word, and a third one"] * 9, 280)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<picture {number}>" for number in range(90)]})
    tokenizer.save_pretrained(folder)
    loaded = load_model(str(folder))
    assert len(loaded.tokenizer) > loaded.model.get_input_embeddings().num_embeddings


def test_a_model_of_the_hub_that_is_refused_is_not_reported_as_missing():
    with pytest.raises(InputError, match=r"^MODEL a/b: too many layers$"), asking_hub("a/b", "model"):
        raise InputError("MODEL a/b: too many layers")
