"""GGUF files: the model they hold, as MODEL and converted, or one sentence on what is wrong."""

import json
import re
import shutil
import struct
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.inputs import model_content
from antiphase.lab.scoring.loading import load_model
from antiphase.models.checkpoints import convert
from antiphase.models.sources import gguf as reader
from antiphase.models.sources import models
from antiphase.models.sources.models import origin_of, read_model
from antiphase.models.sources.tokenizers import load_tokenizer
from support.gguf import TEMPLATE, llama, real_file, real_model, write_gguf

IDS = torch.arange(2, 90).reshape(2, 44)
TEXT = "It was 2024,\n\n  17 abed   3!"


@pytest.fixture(scope="module")
def written(tmp_path_factory, text_tokenizer):
    """A GGUF file in four bits, and the model whose weights it holds."""
    model = llama(len(text_tokenizer))
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf"
    return write_gguf(path, model, text_tokenizer, chat_template=TEMPLATE), model


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("form", ["file", "llama", "softmax", "differential_v2", "control"])
def test_the_model_of_a_file_computes_what_its_weights_say(tmp_path, written, text_tokenizer, form):
    path, model = written
    kind = {"differential_v2": "differential_v2", "control": "differential_v2"}.get(form)
    place = str(path)
    if form != "file":
        to = {"softmax": "antiphase"}.get(form)
        config = convert(place, tmp_path / "out", to=to, attention_type=kind, control=form == "control")
        assert config.model_type == ("llama" if form == "llama" else "antiphase")
        place = str(tmp_path / "out")
        assert "dequantized from Q4_1, so figures" in (tmp_path / "out" / "README.md").read_text()
        assert "of 4 bits" in (tmp_path / "out" / "README.md").read_text()
    loaded = load_model(place)
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=2e-5, rtol=2e-5)
    assert loaded.model.dtype == torch.float32
    assert origin_of(place) == loaded.model.config.dequantized_from == "Q4_1"
    assert loaded.tokenizer.chat_template == TEMPLATE
    assert loaded.tokenizer(TEXT)["input_ids"] == text_tokenizer(TEXT)["input_ids"]
    loaded.model.save_pretrained(tmp_path / "again")  # an ordinary model, not a quantized one


@pytest.mark.parametrize("kind", [None, "differential_v2"])
def test_a_qwen2_of_a_file_becomes_a_model_here(tmp_path, text_tokenizer, kind):
    """It cannot become a Llama, as that of a Llama's file does: its biases would be left out."""
    model = llama(len(text_tokenizer), kind="qwen2")
    path = write_gguf(tmp_path / "a.gguf", model, text_tokenizer, architecture="qwen2")
    config = convert(str(path), tmp_path / "out", attention_type=kind)
    assert (config.model_type, config.qkv_bias) == ("antiphase", True)
    torch.testing.assert_close(logits(load_model(str(tmp_path / "out")).model), logits(model), atol=2e-5, rtol=2e-5)


@pytest.mark.slow
def test_a_converted_folder_needs_transformers_alone(tmp_path, written):
    convert(str(written[0]), tmp_path / "llama")
    script = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1]); AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "print(type(model).__name__, model.dtype, 'antiphase' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "llama"], capture_output=True, text=True, check=True
    )
    assert found.stdout == "LlamaForCausalLM torch.float32 False\n"


def test_the_number_format_can_be_chosen(tmp_path, written, tiny_model):
    path, model = written
    convert(str(path), tmp_path / "half", dtype="bfloat16")
    for half in (
        AutoModelForCausalLM.from_pretrained(tmp_path / "half"),
        load_model(str(path), dtype="bfloat16").model,
    ):
        assert all(
            torch.equal(half.state_dict()[name], tensor.bfloat16()) for name, tensor in model.state_dict().items()
        )
    differential = tiny_model("differential")
    differential.save_pretrained(tmp_path / "own")
    convert(str(tmp_path / "own"), tmp_path / "own-half", dtype="bfloat16")
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "own-half").state_dict()
    for name, tensor in differential.state_dict().items():
        assert state[name].dtype == (torch.float32 if ".lambda_" in name else torch.bfloat16), name
        assert torch.equal(state[name], tensor.to(state[name].dtype)), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_its_head_is_read_from_a_file_that_has_one(tmp_path, text_tokenizer, tied):
    """As look and probe read it."""
    model = llama(len(text_tokenizer), tie_word_embeddings=tied)
    write_gguf(tmp_path / "a.gguf", model, text_tokenizer)
    assert ("output.weight" in reader.read_header(str(tmp_path / "a.gguf"), "model").tensors) != tied
    found = load_model(str(tmp_path / "a.gguf"), with_head=False).model
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.allclose(found(ids).last_hidden_state, model.model(ids).last_hidden_state, atol=1e-4)


def test_weights_in_floats_have_no_origin(tmp_path, text_tokenizer):
    path = write_gguf(tmp_path / "a.gguf", llama(len(text_tokenizer)), text_tokenizer, quantization="F16")
    assert origin_of(str(path)) is None
    assert not hasattr(load_model(str(path)).model.config, "dequantized_from")
    assert load_model(str(path)).tokenizer.chat_template is None


def test_records_and_pages_say_that_figures_are_those_of_few_bits(antiphase, tmp_path, written, generated_text):
    (tmp_path / "text.txt").write_text(generated_text)
    common = "--data text.txt --length 32 --samples 4 --output out"
    code, out, err = antiphase("evaluate perplexity", written[0], common, "--dtype bfloat16 --device-map cpu")
    assert code == 0, err
    told = "dequantized from Q4_1, so figures of this model are those of a model of 4 bits"
    assert told in " ".join(out.split())
    record = Record.load(tmp_path / "out")
    assert record.config["dequantized_from"] == {str(written[0]): "Q4_1"}
    assert (record.config["dtype"], record.config["device_map"]) == ("bfloat16", "cpu")
    assert told in (tmp_path / "out" / "report.html").read_text()


def test_another_file_is_another_model(tmp_path, written, text_tokenizer):
    copy, other = tmp_path / "copy.gguf", tmp_path / "other.gguf"
    shutil.copy(written[0], copy)
    write_gguf(other, llama(len(text_tokenizer), rms_norm_eps=1e-6), text_tokenizer)
    assert model_content(str(copy)) == model_content(str(written[0])) != model_content(str(other))


# ------------------------------------------------------------------------------------------ what cannot be read


def cut(share):
    return lambda content: content[: int(share * len(content))]


V_SHAPE = struct.pack("<IQQ", 2, 64, 32)
"""Its dimensions; the type follows."""
BROKEN = {
    "no GGUF": (lambda content: b"PK" + content[2:], "is no GGUF file, whose first bytes are GGUF; give another file"),
    "another version": (lambda content: content[:4] + b"\x01" + content[5:], "has version 1 of GGUF; versions 2 and 3"),
    "four bytes": (lambda content: content[:4], "is damaged or cut short within its header; download"),
    "half a header": (cut(0.02), "is damaged or cut short within its header; download or copy it again"),
    "truncated": (cut(0.9), r"is cut short: \S+ ends at byte [\d,]+, the file has [\d,]+; download or copy it again"),
    "one byte": (lambda content: content[:-1], "is cut short: "),
    "another type": (
        lambda content: content.replace(b"attn_v.weight" + V_SHAPE + b"\3", b"attn_v.weight" + V_SHAPE + b"\x63"),
        r"blk\.0\.attn_v\.weight is stored in type 99, a quantization that cannot be read; take a file of another",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("command", ["convert", "perplexity"])
def test_a_broken_file_costs_one_sentence(refused, tmp_path, written, fault, command):
    change, said = BROKEN[fault]
    (tmp_path / "bad.gguf").write_bytes(change(written[0].read_bytes()))
    (tmp_path / "text.txt").write_text("some text")
    if command == "convert":
        refused(f"SOURCE bad.gguf.* {said}|SOURCE bad.gguf {said}", "convert bad.gguf out")
    else:
        refused(f"MODEL bad.gguf.*{said}", "evaluate perplexity bad.gguf --data text.txt --output out")


def test_what_a_reader_would_leave_out_is_refused(refused, tmp_path, text_tokenizer):
    model = llama(len(text_tokenizer))
    write_gguf(tmp_path / "a.gguf", model, text_tokenizer, architecture="dbrx")
    refused(
        r"^antiphase: SOURCE a\.gguf holds a model of the architecture 'dbrx', which cannot .*llama", "convert a.gguf b"
    )
    write_gguf(tmp_path / "a.gguf", model, text_tokenizer, more=["blk.0.attn_q.bias"])
    refused(r"SOURCE a\.gguf holds blk\.0\.attn_q\.bias, for which LlamaForC.* safetensors", "convert a.gguf b")
    norm = "blk.1.attn_q_norm.weight"
    write_gguf(
        tmp_path / "a.gguf", llama(len(text_tokenizer), kind="qwen2"), text_tokenizer, architecture="qwen2", more=[norm]
    )
    refused(rf"SOURCE a\.gguf holds {norm}, for which Qwen2ForCausalLM .* has no place; give", "convert a.gguf b")
    refused(r"MODEL none\.gguf: there is no such file; check the path", "probe none.gguf --data a --output b")
    refused(r"--dtype must be one of float32, .*, got 'int3'", "convert a.gguf b --dtype int3")


KEYS = {
    "width": ("embedding_length", 66, "llama.embedding_length, 66, is no multiple of llama.attention.head_count, 4"),
    "heads": ("attention.head_count", 7, "llama.embedding_length, 64, is no multiple of llama.attention.head_count, 7"),
    "end": ("eos_token_id", 999, "tokenizer.ggml.eos_token_id must be the number of one of its 400 words, got 999"),
}


@pytest.mark.parametrize("key", KEYS)
def test_numbers_of_a_header_that_do_not_fit_are_named_before_anything_is_read(
    refused, tmp_path, written, monkeypatch, key
):
    name, value, said = KEYS[key]
    content = bytearray(written[0].read_bytes())
    struct.pack_into("<I", content, content.index(f".{name}".encode()) + len(name) + 5, value)  # behind the type
    (tmp_path / "bad.gguf").write_bytes(content)
    monkeypatch.setattr(models, "_read_weights", None)
    refused(rf"SOURCE bad\.gguf: {re.escape(said)}; download or copy the file again", "convert bad.gguf out")


SCALED = {
    "linear": ([("rope.scaling.type", "linear"), ("rope.scaling.factor", 4.0)], (), "rope.scaling.factor"),
    "yarn": ([("rope.scaling.type", "yarn"), ("rope.scaling.factor", 4.0)], (), "rope.scaling.factor"),
    "no factor": ([("rope.scaling.type", "longrope")], (), "rope.scaling.type"),
    "an old key": ([("rope.scale_linear", 2.0)], (), "rope.scale_linear"),
    "factors": ([], ["rope_freqs.weight"], "rope_freqs.weight"),
    "long factors": ([], ["rope_factors_long.weight"], "rope_factors_long.weight"),
}


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("way", SCALED)
def test_scaled_positions_are_refused(tmp_path, text_tokenizer, kind, way):
    keys, more, named = SCALED[way]
    write_gguf(
        tmp_path / "a.gguf", llama(len(text_tokenizer), kind=kind), text_tokenizer, architecture=kind, more=more,
        keys=[(f"{kind}.{name}", value) for name, value in keys],
    )  # fmt: skip
    with pytest.raises(InputError, match=rf"a\.gguf scales its positions \({re.escape(named)}\), .* safetensors"):
        load_model(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("keys", [[("llama.rope.scaling.type", "none")], [("llama.rope.scaling.factor", 1.0)]])
def test_positions_that_a_file_scales_by_one_are_read(tmp_path, text_tokenizer, keys):
    model = llama(len(text_tokenizer))
    write_gguf(tmp_path / "a.gguf", model, text_tokenizer, keys=keys)
    assert torch.allclose(logits(load_model(str(tmp_path / "a.gguf")).model), logits(model), atol=1e-4)


@pytest.mark.parametrize("package", reader.NEEDED)
def test_a_missing_package_is_named_with_its_extra(written, monkeypatch, package):
    there = reader.importlib.util.find_spec
    monkeypatch.setattr(reader.importlib.util, "find_spec", lambda name: None if name == package else there(name))
    with pytest.raises(InputError, match=rf"^model .*: GGUF files need the package {package}; run .*antiphase\[gguf\]"):
        load_model(str(written[0]))


def test_a_tokenizer_that_is_missing_is_told(tmp_path, text_tokenizer, monkeypatch):
    import support.gguf

    monkeypatch.setattr(support.gguf, "_add_tokenizer", lambda *arguments: None)
    write_gguf(tmp_path / "a.gguf", llama(len(text_tokenizer)), text_tokenizer)
    with pytest.raises(InputError, match=r"a\.gguf: no tokenizer could be read from it"):
        load_model(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("way", ["an empty list", "no list"])
def test_byte_pairs_without_merges_are_refused(tmp_path, written, way):
    content = written[0].read_bytes()
    begin = content.index(b"tokenizer.ggml.merges") + len("tokenizer.ggml.merges") + 8  # behind the types
    if way == "an empty list":
        end = begin + 8
        for _ in range(struct.unpack_from("<Q", content, begin)[0]):
            end += 8 + struct.unpack_from("<Q", content, end)[0]
        content = content[:begin] + bytes(8) + content[end:] + bytes(64)  # the tensors begin at a multiple of 32
    else:
        content = content.replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.others")
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.gguf.*its byte-pair tokenizer has no merges; convert"):
        load_tokenizer(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("rule", ["default", "deepseek-llm", "no-such-name"])
def test_texts_that_would_be_cut_elsewhere_are_refused(tmp_path, text_tokenizer, rule):
    write_gguf(tmp_path / "a.gguf", llama(len(text_tokenizer)), text_tokenizer, splits=rule)
    with pytest.raises(InputError, match=rf"a\.gguf: its tokenizer cuts texts by the rule '{rule}', which .* folder"):
        load_tokenizer(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("rule", ["gpt-2", "exaone", None])
def test_texts_are_cut_by_the_rule_that_the_file_names(tmp_path, text_tokenizer, rule):
    write_gguf(tmp_path / "a.gguf", llama(len(text_tokenizer)), text_tokenizer, splits=rule)
    cut = load_tokenizer(str(tmp_path / "a.gguf")).backend_tokenizer.pre_tokenizer.pre_tokenize_str("It's 17.")
    numbers = ["Ġ", "1", "7"] if rule == "exaone" else ["Ġ17"]
    assert [word for word, _ in cut] == ["It", "'s", *numbers, "."]


WORDS = ["<unk>", "\u2581", "a", "b", "ab", "\u2581ab"]
"""A vocabulary of SentencePiece."""


@pytest.mark.parametrize("space", [None, True])
def test_a_text_begins_with_the_space_that_the_file_names(tmp_path, space):
    keys = () if space is None else [("tokenizer.ggml.add_space_prefix", space)]
    write_gguf(tmp_path / "a.gguf", llama(len(WORDS)), WORDS, keys=keys)
    assert load_tokenizer(str(tmp_path / "a.gguf")).tokenize("ab") == ["\u2581ab"]


def test_a_missing_space_that_would_be_added_is_refused(tmp_path):
    write_gguf(tmp_path / "a.gguf", llama(len(WORDS)), WORDS, keys=[("tokenizer.ggml.add_space_prefix", False)])
    with pytest.raises(InputError, match=r"a\.gguf: its tokenizer puts no space before a text \(add_space_prefix\)"):
        load_tokenizer(str(tmp_path / "a.gguf"))


# ------------------------------------------------------------------------------------------ a real one


@pytest.mark.slow
class TestReal:
    pytestmark = real_model

    def test_a_real_model_answers_alike_in_every_form(self, tmp_path):
        """File, folder and V2; digits are tokens, as in the tokenizer that its authors published."""
        model, tokenizer = read_model(real_file(), lambda config: AutoModelForCausalLM)
        text = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            plain = model(input_ids=text).logits
        assert tokenizer.decode([int(plain[0, -1].argmax())]) == " Paris"
        convert(real_file(), tmp_path / "llama")
        convert(str(tmp_path / "llama"), tmp_path / "v2", attention_type="differential_v2")
        for name in ("llama", "v2"):
            converted = AutoModelForCausalLM.from_pretrained(tmp_path / name)
            with torch.no_grad():
                torch.testing.assert_close(converted(input_ids=text).logits, plain, atol=2e-4, rtol=1e-4)
            assert json.loads((tmp_path / name / "config.json").read_text())["dequantized_from"] == "Q4_1"
        again = AutoTokenizer.from_pretrained(tmp_path / "llama")
        words = "a\n\n2024 3"
        assert again.convert_ids_to_tokens(again(words)["input_ids"]) == ["a", "ĊĊ", "2", "0", "2", "4", "Ġ", "3"]
        assert again.chat_template == tokenizer.chat_template
        assert "<|im_start|>" in again.chat_template


def test_a_header_that_asks_for_far_more_weights_than_the_file_holds_is_refused(tmp_path, text_tokenizer):
    """Before memory is taken for what is missing."""
    model = llama(len(text_tokenizer))
    model.config.intermediate_size = 1 << 22  # what its weights do not have
    path = write_gguf(tmp_path / "a.gguf", model, text_tokenizer)
    with pytest.raises(InputError, match=r"is no whole model: its header asks for [0-9,]+ weights, and its files hold"):
        load_model(str(path))
