"""Files of models that are nested deeper than Python can follow."""

import struct

import pytest

from antiphase.base.errors import InputError
from antiphase.base.limits import check_depth
from antiphase.models.sources.gguf import read_header
from antiphase.models.sources.models import read_config
from antiphase.models.sources.tokenizers import load_tokenizer


@pytest.mark.parametrize("inner", ["[" * 900 + "]" * 900, '{"a": ' * 700 + "1" + "}" * 700], ids=["lists", "objects"])
def test_a_deep_configuration_costs_one_sentence(tmp_path, inner):
    (tmp_path / "config.json").write_text(f'{{"model_type": "antiphase", "a": {inner}}}')
    with pytest.raises(InputError, match=r"^model \S+: its config\.json cannot be used"):
        read_config(str(tmp_path), field="model")


def test_a_deep_tokenizer_costs_one_sentence(tmp_path, text_tokenizer):
    text_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"a": ' * 700 + "1" + "}" * 700)
    with pytest.raises(InputError, match="no tokenizer could be loaded from this folder"):
        load_tokenizer(str(tmp_path))


def test_layers_are_counted_at_any_depth():
    tree = {"num_hidden_layers": 10**9}
    for _ in range(5000):
        tree = {"a": tree}
    with pytest.raises(InputError, match="num_hidden_layers must be a whole number up to 10000"):
        check_depth(tree, "MODEL m")


def test_a_text_in_a_gguf_header_is_bounded(tmp_path):
    with open(tmp_path / "m.gguf", "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, (1 << 24) + 1))
        file.truncate(1 << 26)
    with pytest.raises(InputError, match="damaged or cut short within its header"):
        read_header(str(tmp_path / "m.gguf"), "model")
