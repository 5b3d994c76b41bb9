"""GGUF files of strangers, each as an attack tried it: one sentence, and no work that the file only claims."""

import json
import struct

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.scoring.loading import load_model
from antiphase.models.sources.gguf import read_header
from antiphase.models.sources.tokenizers import load_tokenizer


def text_of_gguf(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_header(values=b"", keys=0, tensors=b"", count=0):
    """The beginning of a file: its keys and tensors, as bytes."""
    return b"GGUF" + struct.pack("<IQQ", 3, count, keys) + values + tensors


def one_value(key, code, packed):
    return text_of_gguf(key) + struct.pack("<I", code) + packed


@pytest.mark.parametrize(
    "alignment",
    [(4, struct.pack("<I", 0)), (8, text_of_gguf("x")), (9, struct.pack("<IQ", 4, 0)), (6, struct.pack("<f", 32.0)),
     (5, struct.pack("<i", -32)), (10, struct.pack("<Q", 1 << 63))],
    ids=["zero", "text", "array", "fraction", "negative", "huge"],
)  # fmt: skip
def test_an_alignment_that_is_none_is_refused(tmp_path, alignment):
    (tmp_path / "m.gguf").write_bytes(gguf_header(one_value("general.alignment", *alignment), 1) + bytes(99))
    with pytest.raises(InputError, match=r"^model \S+m\.gguf is damaged or cut short within its header"):
        read_header(str(tmp_path / "m.gguf"), "model")


@pytest.mark.parametrize(
    "head",
    [
        gguf_header(count=1 << 62), gguf_header(keys=1 << 62),
        gguf_header(one_value("a", 9, struct.pack("<IQ", 8, 1 << 62)), 1),
        gguf_header(tensors=text_of_gguf("a") + struct.pack("<I", (1 << 32) - 1), count=1),
    ],
    ids=["tensors", "keys", "texts", "dimensions"],
)  # fmt: skip
def test_counts_in_a_header_are_bounded_however_long_the_file_is(tmp_path, brief, head):
    with open(tmp_path / "m.gguf", "wb") as file:
        file.write(head)
        file.truncate(40 << 30)
    with pytest.raises(InputError, match="damaged or cut short within its header"):
        read_header(str(tmp_path / "m.gguf"), "model")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("block_count", "from 0 to 10000"), ("feed_forward_length", "from 0 to 1073741824"),
        ("attention.head_count", "from 0 to"), ("attention.head_count_kv", "from 0 to"), ("vocab_size", "from 0 to"),
        ("rope.dimension_count", "from 0 to"), ("context_length", "from 0 to"), ("embedding_length", "from 0 to"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [(5, struct.pack("<i", -1)), (4, struct.pack("<I", 1 << 31)), (8, text_of_gguf("x"))])
def test_sizes_in_a_header_are_sizes(tmp_path, key, said, value):
    values = one_value("general.architecture", 8, text_of_gguf("llama")) + one_value(f"llama.{key}", *value)
    (tmp_path / "m.gguf").write_bytes(gguf_header(values, 2) + bytes(99))
    with pytest.raises(InputError, match=rf"^model \S+m\.gguf: llama\.{key} must be a whole number {said}"):
        read_header(str(tmp_path / "m.gguf"), "model")


def test_a_header_of_a_model_without_heads_is_read(tmp_path):
    """llama.cpp writes zero heads for Mamba."""
    values = one_value("general.architecture", 8, text_of_gguf("mamba"))
    values += one_value("mamba.embedding_length", 4, struct.pack("<I", 64))
    values += one_value("mamba.attention.head_count", 4, struct.pack("<I", 0))
    (tmp_path / "m.gguf").write_bytes(gguf_header(values, 3) + bytes(99))
    assert read_header(str(tmp_path / "m.gguf"), "model").metadata["mamba.attention.head_count"] == 0


def test_words_of_a_gguf_file_that_do_not_fit_together_are_refused(tmp_path, text_tokenizer):
    from support.gguf import llama, write_gguf

    backend = json.loads(text_tokenizer.backend_tokenizer.to_str())
    first = backend["model"]["merges"][0]
    path = write_gguf(tmp_path / "m.gguf", llama(len(text_tokenizer)), text_tokenizer)
    content = path.read_bytes()
    merge = " ".join(first).encode()
    assert content.count(merge) >= 1
    path.write_bytes(content.replace(merge, b"~" + merge[1:], 1))  # a piece that is no word
    with pytest.raises(InputError, match=r"^model \S+m\.gguf: no tokenizer could be read from it"):
        load_tokenizer(str(path), field="model")


def test_an_architecture_that_the_package_gguf_does_not_know_is_refused(tmp_path, text_tokenizer):
    from support.gguf import llama, write_gguf

    path = write_gguf(tmp_path / "m.gguf", llama(len(text_tokenizer)), text_tokenizer)
    content = path.read_bytes().replace(text_of_gguf("llama"), text_of_gguf("mistral"))
    path.write_bytes(content.replace(b"llama.", b"mistral."))
    with pytest.raises(InputError, match=r"^model \S+m\.gguf"):
        load_model(str(path))
