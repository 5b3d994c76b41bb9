"""What attacks have found, each as it was tried: one sentence of bounded length, no hang, no gigabytes."""

import gzip
import json
import os
import struct

import pytest
import yaml

from antiphase import cli
from antiphase.base import files
from antiphase.base.errors import InputError, brief
from antiphase.base.files import parse_yaml
from antiphase.base.folders.journal import Journal, append_line
from antiphase.calibration.plan import CalibrationPlan
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.text.corpora import documents
from antiphase.lab.text.tasks.task_files import read_task
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.models.sources.gguf import read_header
from antiphase.models.sources.models import read_config


def bomb(deep=9):
    """Nested lists in which every alias stands for ten of the one before: 10^deep values in a few hundred bytes."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefghijkl"[: deep - 1], "bcdefghijklm", strict=False):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ YAML and long values


@pytest.mark.parametrize(
    "text",
    [
        "!!timestamp x", "!!int ''", "!!float x", "!!binary x", "!!python/object:os.system x", "!!bool maybe",
        "!!omap 3",
        "? [a]\n: b", "&a [*a]", "*a", "- <<: 3", "!!set [a]", "!!pairs {a: b}", "2024-02-31", "0x", "1:99999999999:3",
        "[" * 5000, "!!map 3", "{a: 1, <<: [3]}", "\x00",
    ],
)  # fmt: skip
def test_a_value_that_yaml_cannot_make_costs_one_sentence(refused, tiny_preset, text):
    words = ["train", "--preset", str(tiny_preset), "--output", "o", "--set", f"training.steps={text}"]
    refused("^antiphase: ", words)


def test_aliases_are_counted_as_often_as_they_repeat(brief):
    with pytest.raises(InputError, match=r"aliases repeat too much\); mend it"):
        parse_yaml(bomb(), "--x", "mend it")
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]", "--x", "") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    assert parse_yaml(bomb(4), "--x", "")["d"][9][9][9][9] == "x"


@pytest.mark.parametrize("key", ["training.steps", "description", "data.paths", "model.dex_heads"])
def test_an_alias_bomb_in_any_key_is_refused_at_once(tmp_path, tiny_preset, brief, key):
    section, _, field = key.partition(".")
    text = f"{bomb()}\n{section}: {{{field}: *i}}\n" if field else f"{bomb()}\n{section}: *i\n"
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(InputError, match="aliases repeat too much"):
        load_preset(str(tmp_path / "bomb.yaml"))
    with pytest.raises(InputError, match="aliases repeat too much"):
        read_task(str(tmp_path / "bomb.yaml"))


def test_a_yaml_file_of_megabytes_is_not_parsed(tmp_path, brief):
    (tmp_path / "large.yaml").write_text("a: [" + "x, " * 400_000 + "]\n")
    with pytest.raises(InputError, match="the file is larger than 1 MiB; give a YAML mapping"):
        load_preset(str(tmp_path / "large.yaml"))


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, [[0] * 1000] * 1000, {"a": {"b": {"c": {"d": 1}}}}, 16**20_000, -(16**20_000), list("abc")],
    ids=["text", "list", "deep", "number", "negative", "short"],
)
def test_long_values_are_shown_in_part(value):
    assert 0 < len(brief(value)) < 1500
    assert brief([1, 2]) == "[1, 2]"
    assert brief({"b": 1, "a": "x"}) == "{'b': 1, 'a': 'x'}"


@pytest.mark.parametrize("value", [16**5000, 10**30, -(10**30)], ids=["long", "31 digits", "negative"])
@pytest.mark.parametrize(
    "key", ["training.steps", "training.seed", "description", "model.vocab_size", "model.head_dim"]
)
def test_numbers_of_thousands_of_digits_are_not_printed(refused, tiny_preset, key, value):
    words = ["train", "--preset", str(tiny_preset), "--output", "o", "--set", f"{key}={value:#x}"]
    if key == "description":
        assert len(load_preset(str(tiny_preset), [f"{key}={value:#x}"]).run.description) < 200
    else:
        refused(f"{key} must have at most 30 digits, got", words)


def test_a_message_is_shorter_than_300_characters_and_keeps_its_end(monkeypatch, capsys):
    def fail(**options):
        raise InputError(f"--flag {'x' * 5000}: this is wrong; give a shorter one")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert len(said) < 300
    assert said.startswith("antiphase: --flag xxx")
    assert said.endswith("x: this is wrong; give a shorter one\n")


def test_a_message_is_cut_between_words(monkeypatch, capsys):
    words = [f"word{number:03}" for number in range(90)]

    def fail(**options):
        raise InputError(" ".join(words))

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert 250 < len(said) < 300
    assert set(said.split()) <= {"antiphase:", "…", *words}


def test_a_name_too_long_for_a_file_is_one_sentence(tmp_path, text_tokenizer):
    settings = {"kind": "classification", "data": "9" * 999, "prompt": "{{ text }}:"}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(InputError):
        load_task(str(tmp_path / "task.yaml"), text_tokenizer)


def test_half_a_surrogate_pair_in_yaml_is_refused(tmp_path, text_tokenizer):
    (tmp_path / "rows.txt").write_text("A one two\nB three four\n" * 3)
    task = '{kind: classification, data: rows.txt, prompt: "\\ud800 {{ text }}"}'
    (tmp_path / "task.yaml").write_text(task)
    with pytest.raises(
        InputError, match=r"task\.yaml: this is not valid YAML \(a text in it holds half a surrogate pair\)"
    ):
        load_task(str(tmp_path / "task.yaml"), text_tokenizer)


def test_inputs_of_a_journal_that_are_no_mapping_are_refused(tmp_path):
    append_line(tmp_path / "journal.jsonl", {"key": "inputs", "rows": 7})
    with pytest.raises(InputError, match=r"journal\.jsonl does not say what was measured; restore it"):
        Journal(tmp_path, lambda: {"a": 1})


@pytest.mark.parametrize("inner", [10, 8])  # an array of numbers, of texts
def test_lengths_in_a_header_that_no_file_has_are_refused(tmp_path, inner):
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    (tmp_path / "m.gguf").write_bytes(head + struct.pack("<IQQ", inner, 1 << 62, 1 << 63))
    with pytest.raises(InputError, match=r"^model \S+m\.gguf"):
        read_header(str(tmp_path / "m.gguf"), "model")


# ------------------------------------------------------------------------------------------ compressed text


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.jsonl.gz", "bomb.csv.gz"])
def test_a_file_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch, brief, name):
    monkeypatch.setattr(files, "SMALL", 1 << 20)
    with gzip.open(tmp_path / name, "wb") as file:
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    with pytest.raises(InputError, match=r"data \S+gz: it unpacks to more than 200 times its size, which no text do"):
        list(documents([str(tmp_path / name)]))


def test_text_that_compresses_well_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL", 1 << 10)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("".join(f"line {number} of the text\n" for number in range(9999)))
    (text,) = documents([str(tmp_path / "a.txt.gz")])
    assert text.endswith("line 9998 of the text\n")


# ------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.threads=100000", "training.threads must lie between 1 and 1024"),
        ("data.sequence_length=1000000000", "data.sequence_length must lie between 2 and 16777216"),
        ("data.keys=1000000000000000", "data.keys must lie between 1 and 1000000"),
        ("model.num_hidden_layers=100000000", "model.num_hidden_layers must lie between 1 and 10000"),
    ],
)
def test_numbers_that_no_machine_has_are_refused(refused, tiny_preset, setting, said):
    refused(said, ["train", "--preset", str(tiny_preset), "--output", "o", "--set", setting])


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        "model.hidden_size=1000000000000", "data.sequence_length=100000000000000",
        "training.batch_size=100000000000000",
        "model.intermediate_size=9000000000000000000",
    ],
)  # fmt: skip
def test_sizes_that_no_memory_holds_cost_one_sentence(antiphase, tiny_preset, setting):
    code, _, err = antiphase(["train", "--preset", str(tiny_preset), "--output", "o", "--set", setting])
    assert code == 2, err
    assert err.count("\n") == 1


# ------------------------------------------------------------------------------------------ models of strangers


@pytest.fixture
def saved(tmp_path, tiny_model, text_tokenizer):
    """A whole model in a folder, and a function that changes its configuration."""
    folder = tmp_path / "model"
    tiny_model("softmax", vocab_size=len(text_tokenizer)).save_pretrained(folder)
    text_tokenizer.save_pretrained(folder)

    def change(**values):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        return str(folder)

    return change


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_hidden_layers": 10**8}, "config.json cannot be used"),
        ({"vocab_size": 10**9}, r"its config.json asks for \d\d,000"),
        ({"hidden_size": 48 * 10**5, "head_dim": 6}, "its config.json asks for "),
        ({"attn_implementation": "kernels-community/flash-attn"}, "is code of the Hub, never run here"),
        ({"attn_implementation": {"": "someone/kernel"}}, "is code of the Hub, never run here"),
    ],
)
def test_a_configuration_neither_fills_the_memory_nor_runs_code(saved, brief, changed, said):
    with pytest.raises(InputError, match=said) as caught:
        load_model(saved(**changed))
    assert str(caught.value).startswith("model ")


def test_a_configuration_of_a_foreign_model_with_endless_layers(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 100000000}')
    with pytest.raises(InputError, match="num_hidden_layers must be a whole number up to 10000, got 100000000"):
        read_config(str(tmp_path), field="model")


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "n_layer"), ("llama", "num_labels")])
def test_numbers_that_a_class_makes_lists_of_are_bounded(tmp_path, kind, name):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, name: 10**7}))
    with pytest.raises(InputError, match=f"{name} must be a whole number up to 10000, got 10000000"):
        read_config(str(tmp_path), field="model")


def test_an_adapter_leads_to_no_other_model(saved, tmp_path):
    folder = tmp_path / "model"
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else", "peft_type": "LORA"}')
    with pytest.raises(InputError, match=r"adapter_config\.json names another model"):
        load_model(str(folder))


def test_the_weights_of_an_index_lie_in_its_folder(saved, tmp_path):
    folder = tmp_path / "model"
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "../outside.safetensors"}}')
    with pytest.raises(InputError, match=r"lacks \.\./outside\.safetensors, which its"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_among_the_files_of_a_model_is_not_opened(saved, tmp_path, brief, name, kind):
    path = tmp_path / "model" / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    if name == "config.json":  # without which it is no model's folder
        with pytest.raises(InputError, match=r"holds no model|pipe or a device"):
            load_model(str(tmp_path / "model"))
        return
    with pytest.raises(InputError, match=rf"^model \S+{name}: this is a pipe or a device, which may never end"):
        load_model(str(tmp_path / "model"))


@pytest.mark.parametrize("value", ["nan", 1e308, "manual_seed", True, []])
def test_a_type_that_torch_does_not_have_is_refused(saved, value):
    with pytest.raises(InputError, match=r"^model \S+model: its config\.json cannot be used"):
        load_model(saved(dtype=value))


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_what_a_model_returns_is_checked_before_it_runs(saved, name):
    with pytest.raises(InputError, match=f"{name} must be true or false, got 'x'"):
        load_model(saved(**{name: "x"}))


@pytest.mark.parametrize("value", [1e308, [0, "x"], 2**70])
def test_a_special_token_is_a_number_of_a_token(saved, tmp_path, value):
    saved()
    path = tmp_path / "model" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": value}))
    with pytest.raises(InputError, match=r"^model \S+model: eos_token_id in its configuration must be the number"):
        load_model(str(tmp_path / "model"))


# ------------------------------------------------------------------------------------------ strange files and sizes


@pytest.mark.parametrize(
    "words",
    [
        ["report", "pipe", "--output", "o.html"], ["train", "--preset", "pipe.yaml", "--output", "o"],
        ["calibrate", "apply", "model", "--plan", "pipe", "--text", "a", "--output", "o"],
        ["calibrate", "apply", "model", "--plan", "plan.json", "--task", "pipe.yaml", "--output", "o"],
        ["look", "pipe.gguf", "--text", "a", "--output", "o"],
    ],
)  # fmt: skip
def test_nobody_waits_for_a_named_pipe(saved, tmp_path, refused, brief, words):
    saved()
    CalibrationPlan({0: [1]}, beta=0.4).save(tmp_path / "plan.json")
    for name in ("pipe", "pipe.yaml", "pipe.gguf"):
        os.mkfifo(tmp_path / name)
    refused(r"pipe\S*: this is a named pipe or a device, which may never end; save what", words)


def test_a_pipe_of_the_shell_is_read(tmp_path):
    from antiphase.base.files import read_text

    ours, theirs = os.pipe()
    os.write(theirs, b"the key")
    os.close(theirs)
    try:
        assert read_text(f"/dev/fd/{ours}", "judge_key_file", "give a key") == "the key"
    finally:
        os.close(ours)


def test_a_loop_of_links_costs_one_sentence(saved, tmp_path, refused):
    saved()
    (tmp_path / "loop").symlink_to("loop")
    refused("loop", ["convert", "model", "loop"])


@pytest.mark.parametrize("kind", ["words", "characters", "bpe", "unigram"])
@pytest.mark.parametrize("size", [10_000_001, 10**11, 10**40])
def test_a_vocabulary_that_no_memory_holds_is_refused(refused, kind, size):
    words = ["tokenize", "a b", "--tokenizer", kind, "--vocabulary", str(size)]
    refused(r"--vocabulary must be at most 10000000, got 10", words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("classify --train rows.txt --seeds -1", "--seeds must lie between 0 and"),
        ("classify --train rows.txt --seeds 99999999999999999999999999", "--seeds must lie between 0 and"),
        ("classify --train rows.txt --folds 100000000000", "--folds 100000000000 is more than the 60 rows"),
        ("classify --train rows.txt --min-count 100000000000000000000000000", "--min-count must lie between 1 and"),
        ("classify --train rows.txt --word-vectors zeros", "zeros: this is a named pipe or a device"),
        ("study gradients --layers 100000000000", "--layers must lie between 2 and 1000"),
        ("study dependency --samples 100000000000000000", "--samples must be at most 1000000"),
        ("study dependency --test-samples 100000000000000000", "--test-samples must be at most 1000000"),
    ],
)
def test_numbers_beyond_all_work_cost_one_sentence(refused, tmp_path, brief, words, said):
    (tmp_path / "rows.txt").write_text("A one two\nB three four\n" * 30)
    (tmp_path / "zeros").symlink_to("/dev/zero")
    refused(said, f"{words} --output o")
