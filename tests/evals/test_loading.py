"""By what a measurement of a model is known again: all that a result depends on, and nothing else."""

from __future__ import annotations

import pytest
import torch

from antiphase.data.tokenization import train_tokenizer
from antiphase.evals.loading import digest, load_model


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
