"""A model is measured with its own weights, all of them, and known again by all that a result depends on."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    RobertaModel,
    XLNetConfig,
    XLNetModel,
)

from antiphase.base.errors import InputError
from antiphase.base.folders.contents import keep_model
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import digest, load_model
from antiphase.lab.text.tokenization import train_tokenizer


@pytest.fixture
def saved(tmp_path, tiny_model):
    model = tiny_model("differential", vocab_size=280)
    tokenizer = train_tokenizer(["a word and another word, and a third one"] * 9, 280)

    def save(name):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return digest(load_model(str(tmp_path / name)))

    save.model, save.tokenizer, save.folder = model, tokenizer, tmp_path
    return save


def test_the_digest_is_that_of_the_content_and_not_of_the_place(saved):
    first = saved("one")
    assert saved("two") == first
    (saved.folder / "two").rename(saved.folder / "three")
    assert digest(load_model(str(saved.folder / "three"))) == first


@torch.no_grad()
@pytest.mark.parametrize(("kind", "reads"), [(BertModel, 66), (RobertaModel, 64)])
def test_positions_that_padding_takes_are_not_read(kind, reads):
    model = kind(kind.config_class(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=66, pad_token_id=1,
    )).eval()  # fmt: skip
    assert context_length(model) == reads
    assert model(torch.full((1, reads), 5)).last_hidden_state.shape[1] == reads
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, reads + 1), 5))


def test_a_model_without_a_limit_has_none():
    config = XLNetConfig(vocab_size=20, d_model=16, n_layer=1, n_head=2, d_inner=16)
    assert config.max_position_embeddings == -1
    assert context_length(XLNetModel(config)) is None


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"])
@pytest.mark.parametrize("place", [0, -1])
def test_one_number_of_one_weight_is_another_model(saved, name, place):
    first = saved("one")
    with torch.no_grad():
        weight = saved.model.get_parameter(name).view(-1)
        weight[place] = torch.nextafter(weight[place], torch.tensor(9.0))
    assert saved("two") != first


@pytest.mark.parametrize(("field", "value"), [("rms_norm_eps", 1e-3), ("sliding_window", 4), ("head_norm_eps", 1e-2)])
def test_another_setting_is_another_model(saved, field, value):
    first = saved("one")
    setattr(saved.model.config, field, value)
    assert saved("two") != first


def test_another_tokenizer_is_another_model(saved):
    first = saved("one")
    saved.tokenizer.chat_template = "{{ messages }}"
    second = saved("two")
    saved.tokenizer.add_tokens(["neverseen"])
    assert len({first, second, saved("three")}) == 3


def test_half_precision_is_another_model(saved):
    saved("one")
    loaded = load_model(str(saved.folder / "one"))
    first = digest(loaded)
    loaded.model.to(torch.bfloat16)
    assert digest(loaded) != first


@pytest.fixture
def damaged(saved):
    """``damaged(change)``: the saved model after ``change(tensors)``, and what loading it says."""
    saved("one")
    path = saved.folder / "one" / "model.safetensors"

    def load(change, **arguments):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
        with pytest.raises(InputError) as caught:
            load_model(str(path.parent), **arguments)
        assert str(caught.value).startswith(f"model {path.parent} is no whole model: ")
        return str(caught.value).partition("whole model: ")[2]

    return load


LAYER = "model.layers.1.mlp.up_proj.weight"


def test_the_first_missing_tensor_is_named_and_the_others_are_counted(damaged):
    def change(tensors):
        for name in [name for name in tensors if name.startswith("model.layers.1.")]:
            del tensors[name]

    assert damaged(change) == "it has no weights for model.layers.1.input_layernorm.weight and 13 more"


@pytest.mark.parametrize("base", [False, True])
def test_a_bias_that_the_configuration_of_another_package_leaves_out_is_reported(tmp_path, base):
    """Without it another function would be computed; a head that the class has not is no part of what is computed."""
    config = LlamaConfig(
        vocab_size=280, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8,
        attention_bias=True, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    (model.model if base else model).save_pretrained(tmp_path)
    train_tokenizer(["a word and another word, and a third one"] * 9, 280).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"score.weight": torch.zeros(2, 32)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    load_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "attention_bias": False}))
    with pytest.raises(InputError, match=r"no place for (model\.)?layers\.0\.self_attn\.k_proj\.bias and 7 more$"):
        load_model(str(tmp_path))


def test_weights_that_the_configuration_leaves_out_are_reported(saved):
    saved("one")  # a differential model that is called softmax computes something else
    path = saved.folder / "one" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_type": "softmax"}))
    with pytest.raises(InputError, match=r"no place for model\.layers\.0\.self_attn\.head_norm\.weight and 14 more$"):
        load_model(str(path.parent))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_of_weights_are_looked_through(damaged, dtype):
    def change(tensors):
        tensors |= {name: tensor.to(dtype) for name, tensor in tensors.items()}
        tensors[LAYER][0, 0] = float("nan")

    assert damaged(change) == f"NaN or infinite weights in {LAYER}"


@pytest.mark.parametrize("is_stored", [True, False])
def test_experts_compute_in_float64(tmp_path, is_stored):
    torch.manual_seed(0)
    model = MixtralForCausalLM(
        MixtralConfig(vocab_size=280, hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
                      num_key_value_heads=2, num_local_experts=2)
    ).eval()  # fmt: skip
    (model.double() if is_stored else model).save_pretrained(tmp_path)
    train_tokenizer(["a word and another word, and a third one"] * 9, 280).save_pretrained(tmp_path)
    found = load_model(str(tmp_path), dtype=None if is_stored else "float64").model
    ids = torch.arange(3, 30)[None]
    expected = model.float()(input_ids=ids).logits
    assert found.dtype == torch.float64
    torch.testing.assert_close(found(input_ids=ids).logits.float(), expected, atol=1e-5, rtol=1e-4)


def test_a_tied_head_is_not_missing(tmp_path, tiny_model):
    tiny_model("softmax", vocab_size=280, tie_word_embeddings=True).save_pretrained(tmp_path)
    train_tokenizer(["a word and another word, and a third one"] * 9, 280).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    load_model(str(tmp_path))


@pytest.fixture
def bert(tmp_path):
    config = BertConfig(vocab_size=280, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8)

    def save(kind):
        kind(config).save_pretrained(tmp_path)
        train_tokenizer(["a word and another word, and a third one"] * 9, 280).save_pretrained(tmp_path)
        return str(tmp_path)

    return save


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForTokenClassification])
def test_an_encoder_is_loaded_as_what_it_is(bert, kind):
    assert type(load_model(bert(kind), with_head=False).model) is kind  # its class without a head would lack a pooler


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM, BertForTokenClassification])
def test_an_encoder_in_place_of_a_causal_model_is_named(bert, kind):
    name = bert(kind)
    with pytest.raises(InputError, match=rf"model {re.escape(name)} has the class {kind.__name__}, which is no causal"):
        load_model(name)


def test_a_model_that_looks_ahead_is_refused(bert):
    name = bert(BertLMHeadModel)
    with pytest.raises(InputError, match=f"model {re.escape(name)} is not a causal language model: its logits depend"):
        load_model(name)


def test_a_model_that_its_run_did_not_write_is_refused(saved):
    saved("one")
    folder = saved.folder / "one"
    keep_model(folder)
    load_model(str(folder))
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    told = f"model {folder} holds another model than its run wrote.*model.safetensors.*or remove model.sha256"
    with pytest.raises(InputError, match=told):
        load_model(str(folder))
    (folder / "model.sha256").unlink()
    load_model(str(folder))
