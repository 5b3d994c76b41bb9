"""Checkpoint folders convert shard by shard; whatever is wrong is named, and nothing half-written stays."""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    GenerationConfig,
)

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.studies.started import overrides_from
from antiphase.lab.studies.upcycle.measure import upcycle_preset
from antiphase.lab.text.prepare import symbol_tokenizer
from antiphase.lab.text.retrieval import SymbolLanguage
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.models.checkpoints import convert

IDS = torch.randint(3, 61, (2, 17), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def source(tmp_path):
    """A DiffLlama of several shards with a tokenizer and generation settings."""
    config = DiffLlamaConfig(
        vocab_size=61, hidden_size=48, intermediate_size=40, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=96, pad_token_id=0,
    )  # fmt: skip
    folder = tmp_path / "diffllama"
    DiffLlamaForCausalLM(config).save_pretrained(folder, max_shard_size="60KB")
    symbol_tokenizer(SymbolLanguage(8, 9, 10)).save_pretrained(folder)
    GenerationConfig(max_new_tokens=7).save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def logits(folder):
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(input_ids=IDS).logits


def test_a_folder_goes_there_and_back_with_all_that_belongs_to_it(tmp_path, source):
    sentences = []
    convert(str(source), tmp_path / "ours", say=sentences.append)
    assert torch.allclose(logits(tmp_path / "ours"), logits(source), atol=1e-5)
    assert len(sentences) == len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    largest = max(path.stat().st_size for path in source.glob("*.safetensors"))
    assert all(path.stat().st_size <= 1.1 * largest for path in (tmp_path / "ours").glob("*.safetensors"))
    words = "key1 number2"
    one, other = (AutoTokenizer.from_pretrained(folder)(words).input_ids for folder in (tmp_path / "ours", source))
    assert one == other
    assert GenerationConfig.from_pretrained(tmp_path / "ours").max_new_tokens == 7
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "differential attention" in card
    assert f"converted from {source.name}." in card
    convert(str(tmp_path / "ours"), tmp_path / "back", to="diffllama")
    assert torch.equal(logits(tmp_path / "back"), logits(source))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_weights_can_be_read_by_everyone_who_may_read_the_folder(tmp_path, source, umask):
    convert(str(source), tmp_path / "ours")
    written = [*(tmp_path / "ours").glob("*.safetensors"), tmp_path / "ours" / "config.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o666 & ~umask}


def test_a_model_of_this_project_is_upcycled_from_its_folder(tmp_path, tiny_model):
    tiny_model("softmax").double().save_pretrained(tmp_path / "softmax")
    config = convert(str(tmp_path / "softmax"), tmp_path / "v2", attention_type="differential_v2")
    assert config.attention_type == "differential_v2"
    assert torch.allclose(logits(tmp_path / "v2"), logits(tmp_path / "softmax"), rtol=1e-10, atol=1e-10)
    assert json.loads((tmp_path / "v2" / "config.json").read_text())["architectures"] == ["AntiphaseForCausalLM"]


@pytest.mark.parametrize(("change", "pattern"), [
    (lambda tensor: tensor.index_fill(0, torch.tensor(60), torch.nan),
     "NaN or infinite weights in model.embed_tokens.weight"),
    (lambda tensor: tensor.to(torch.int8), "model.embed_tokens.weight is of type I8, expected one of F64, F32, BF16"),
    (lambda tensor: None, "lacks the tensor model.embed_tokens.weight, which its model.safetensors.index.json names"),
])  # fmt: skip
def test_a_harmed_shard_is_refused_and_leaves_nothing_behind(tmp_path, source, change, pattern):
    shard = min(source.glob("*.safetensors"))
    tensors = load_file(shard)
    changed = change(tensors.pop("model.embed_tokens.weight"))
    save_file(tensors | ({} if changed is None else {"model.embed_tokens.weight": changed}), shard)
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=pattern):
        convert(str(source), tmp_path / "ours")
    assert set(tmp_path.iterdir()) == before


def test_an_encoder_is_named_by_its_type_whatever_its_tensors_are(tmp_path):
    """Older files of BERT store its positions, which are whole numbers."""
    sizes = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(intermediate_size=8, **sizes))
    model.save_pretrained(tmp_path / "bert")
    tensors = {"embeddings.position_ids": torch.arange(31), **model.state_dict()}
    save_file(tensors, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"^source is a model of type 'bert'; antiphase, llama, .* can be converted$"):
        convert(str(tmp_path / "bert"), tmp_path / "ours")


def test_quantized_weights_are_refused_by_studies_before_they_begin(tmp_path, tiny_model):
    """``convert`` and runs check all tensors; these look at the dtypes first, which costs nothing."""
    folder = tmp_path / "softmax"
    tiny_model("softmax").save_pretrained(folder)
    (folder / "run.yaml").write_text("{}")
    tensors = load_file(folder / "model.safetensors")
    changed = {"model.embed_tokens.weight": tensors["model.embed_tokens.weight"].to(torch.int8)}
    save_file(tensors | changed, folder / "model.safetensors", metadata={"format": "pt"})
    words = r"softmax: the tensor model.embed_tokens.weight is of type I8, expected one of F64"
    with pytest.raises(InputError, match=f"^model .*{words}"):
        upcycle_preset(str(folder), tmp_path / "up", data=["text.txt"])
    with pytest.raises(InputError, match=f"^start_from .*{words}"):
        overrides_from(str(folder), field="start_from")


def test_the_tokenizer_of_another_model_is_refused(tmp_path, source):
    train_tokenizer(["five dozen jugs"] * 9, 280).save_pretrained(source)
    with pytest.raises(InputError, match="its tokenizer is another model's"):
        convert(str(source), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_a_tied_head_stored_a_second_time_is_left_out_and_another_one_refused(tmp_path, tiny_model):
    folder = tmp_path / "tied"
    tiny_model("softmax", tie_word_embeddings=True).save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    extra = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone(),
             "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}  # fmt: skip
    save_file({**tensors, **extra}, path, metadata={"format": "pt"})
    convert(str(folder), tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "model.safetensors").keys() == tensors.keys()
    extra["lm_head.weight"][3, 4] += 1
    save_file({**tensors, **extra}, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight, though tie_word"):
        convert(str(folder), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_tokenizer_models_travel(tmp_path, source):
    (source / "tokenizer.model").write_bytes(b"pieces")
    (source / "spiece.model").write_bytes(b"more")
    convert(str(source), tmp_path / "ours")
    assert (tmp_path / "ours" / "tokenizer.model").read_bytes() == b"pieces"
    assert (tmp_path / "ours" / "spiece.model").read_bytes() == b"more"


def test_everything_that_a_tokenizer_writes_travels(tmp_path, source):
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "with [tools]": "TOOLS"}
    tokenizer.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(source)
    (source / "preprocessor_config.json").write_text("{}")
    convert(str(source), tmp_path / "ours")
    written = [path.relative_to(tmp_path / "saved") for path in (tmp_path / "saved").rglob("*.*")]
    assert len(written) == 4
    for path in [*written, "preprocessor_config.json"]:
        assert (tmp_path / "ours" / path).read_bytes() == (source / path).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "ours").chat_template == tokenizer.chat_template


def test_a_given_tokenizer_is_written_alone(tmp_path, source):
    """Beside files of another one, in the older forms."""
    given = symbol_tokenizer(SymbolLanguage(8, 9, 10))
    given.save_pretrained(tmp_path / "given")
    (source / "tokenizer.json").unlink()
    others = {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "tokenizer.model"}
    for name in (*others, "preprocessor_config.json"):
        (source / name).write_text('{"eos_token": "other"}')
    convert(str(source), tmp_path / "ours", tokenizer=str(tmp_path / "given"))
    written = {path.name for path in (tmp_path / "ours").iterdir()}
    assert written & others == {path.name for path in (tmp_path / "given").iterdir()} & others
    assert AutoTokenizer.from_pretrained(tmp_path / "ours").eos_token == given.eos_token
    assert "preprocessor_config.json" in written
    assert GenerationConfig.from_pretrained(tmp_path / "ours").max_new_tokens == 7


def test_unusual_paths_and_files_work(tmp_path, source, monkeypatch):
    (source / "tokenizer").mkdir()
    (source / "tokenizer_config_old.json").symlink_to("nowhere")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    convert(str(source), tmp_path / "link")
    assert (tmp_path / "real" / "config.json").is_file()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    convert(str(source), ".")
    assert (tmp_path / "here" / "config.json").is_file()


def test_a_stop_in_the_middle_leaves_nothing_behind(tmp_path, source):
    def stop(message):
        raise KeyboardInterrupt

    before = set(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        convert(str(source), tmp_path / "ours", say=stop)
    assert set(tmp_path.iterdir()) == before


def test_the_set_of_weights_that_transformers_reads_is_read(tmp_path, tiny_model):
    tiny_model("softmax").save_pretrained(tmp_path / "both", max_shard_size="60KB")  # shards with their index
    other = tiny_model("softmax")
    with torch.no_grad():
        other.lm_head.weight.neg_()
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "both")
    convert(str(tmp_path / "both"), tmp_path / "v2", attention_type="differential_v2")
    assert torch.allclose(logits(tmp_path / "both"), logits(tmp_path / "other"))
    assert torch.allclose(logits(tmp_path / "v2"), logits(tmp_path / "both"), atol=1e-4)


def test_a_conversion_removes_what_an_ended_one_has_left_and_nothing_else(tmp_path, source):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {f".ours.{ended.pid}.tmp": False, f".ours.{os.getppid()}.tmp": True, f".other.{ended.pid}.tmp": True}
    for name in names:
        (tmp_path / name).mkdir()
    convert(str(source), tmp_path / "ours")
    assert {name: (tmp_path / name).exists() for name in names} == names


def test_an_exported_run_says_how_it_was_trained_and_what_it_reached(tmp_path, tiny_model):
    run = tmp_path / "run"
    tiny_model("softmax").save_pretrained(run)
    values = {"tokens": 9600, "seed": 3, "final": {"loss": 1.25, "accuracy": 0.5}, "diverged": None}
    training = {"steps": 40, "batch_size": 6, "learning_rate": 4e-3}
    data = {"sequence_length": 40, "paths": ["elsewhere/books"], "needle_share": 0.25}
    record = Record(kind="train", values=values, config={"training": training, "data": data})
    for changes, words in (
        ({}, "text (books), 25% of it questions about facts in the context; learning rate 0.004, seed 3. On held-out "
             "data: loss 1.250 nats a token, 50.0% of the questions right."),
        ({"needle_share": 0.0}, "text (books); learning rate 0.004, seed 3. On held-out data: loss 1.250 nats a "
                                "token."),
        ({"paths": []}, "generated questions; learning rate 0.004, seed 3. On held-out data: loss 1.250 nats a token, "
                        "50.0% of the questions right."),
    ):  # fmt: skip
        replace(record, config={"training": training, "data": data | changes}).save(run)
        target = tmp_path / str(len(words))
        convert(str(run), target, portable=True)
        card = (target / "README.md").read_text()
        assert f"40 steps of 6 × 40 tokens, 9,600 in all, on {words}" in card
        assert "elsewhere" not in card
    convert(str(target), tmp_path / "again")
    assert "auto_map" in json.loads((target / "config.json").read_text())
    assert "auto_map" not in json.loads((tmp_path / "again" / "config.json").read_text())  # its code is not there
    for name, content in (
        ("diverged", replace(record, values=values | {"diverged": {"step": 3}}).text()), ("foreign", '{"mine": 1}'),
    ):  # fmt: skip
        (run / "record.json").write_text(content)
        convert(str(run), tmp_path / name)
        assert "## Training" not in (tmp_path / name / "README.md").read_text()
