"""``antiphase.look``: the maps of a model in memory are its own eager ones; figures and page show the same."""

import copy
import html
import re

import matplotlib
import numpy
import pytest
import torch
import transformers as hf
from matplotlib.colors import LogNorm

import antiphase
from antiphase.base.errors import InputError
from antiphase.lab.measures.look.page import look_page
from antiphase.lab.measures.look.tables import layers_of
from support.map_codes import error_bound

TEXT = "Ein $x^ Stein, am Rand\tder Stadt"
SIZES = {
    "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 300, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture
def model(text_tokenizer):
    """A factory of models whose attention is far from uniform."""

    def make(kind, **fields):
        torch.manual_seed(4)
        size = {**SIZES, "vocab_size": len(text_tokenizer), **fields}
        if kind == "llama":
            made = hf.LlamaForCausalLM(hf.LlamaConfig(**size, attention_dropout=0.3))
        else:
            made = antiphase.AntiphaseForCausalLM(antiphase.AntiphaseConfig(attention_type=kind, **size))
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if "q_proj" in name or "k_proj" in name:
                    parameter.mul_(25)
        return made

    return make


def test_maps_are_those_of_the_models_own_eager_attention(model, text_tokenizer):
    llama = model("llama")
    llama.train()
    before = copy.deepcopy(llama.state_dict())
    maps = antiphase.look(llama, text_tokenizer, TEXT)
    assert llama.training, "dropout is off only while it looks"
    assert all(torch.equal(before[name], value) for name, value in llama.state_dict().items())
    assert llama.config._attn_implementation == "sdpa"
    ids = text_tokenizer(TEXT, return_tensors="pt")["input_ids"]
    llama.eval().set_attn_implementation("eager")
    expected = llama(ids, output_attentions=True).attentions
    assert maps.layers == [0, 1, 2]
    for layer in maps.layers:
        torch.testing.assert_close(maps[layer], expected[layer][0].detach())
        for head in range(4):
            torch.testing.assert_close(maps[layer, head], expected[layer][0, head].detach())
    assert torch.equal(maps[-1, -1], maps[2, 3])
    assert maps[0, 0].dtype == torch.float32
    assert len(list(maps)) == 3, "a loop over the layers ends"
    assert maps.tokens == maps.queries == [text_tokenizer.decode([token]) for token in ids[0].tolist()]
    assert (
        repr(maps) == f"<attention maps of LlamaForCausalLM: 3 layers, 4 heads, {len(ids[0])} × {len(ids[0])} tokens>"
    )


def test_a_differential_head_has_its_difference_and_both_maps(model, text_tokenizer):
    maps = antiphase.look(model("differential"), text_tokenizer, TEXT)
    first, second = maps.map(1, 1, "first"), maps.map(1, 1, "second")
    torch.testing.assert_close(first.sum(-1), torch.ones(len(maps.tokens)))
    lam = ((first - maps[1, 1]) * second).sum() / second.square().sum()  # one number for all cells
    torch.testing.assert_close(maps[1, 1], first - lam * second)
    assert lam > 0.1
    assert (maps[1, 1] < 0).any()
    for which, weights in (("first", first), ("second", second), ("difference", maps[1, 1])):
        axes = maps.plot(1, 1, which)
        found = numpy.ma.filled(axes.images[0].get_array(), numpy.nan)
        visible = numpy.tril(numpy.ones(found.shape, bool))
        numpy.testing.assert_allclose(found[visible], weights.numpy()[visible])
        assert numpy.isnan(found[~visible]).all()
        assert axes.get_title() == f"layer 1, head 1: {which}"
        assert axes.images[0].cmap.name == ("RdBu_r" if which == "difference" else "Reds")
        matplotlib.pyplot.close(axes.figure)


def test_a_plot_can_be_changed(model, text_tokenizer):
    maps = antiphase.look(model("llama"), text_tokenizer, TEXT)
    axes = maps.plot(0, 2)
    assert axes.get_title() == "layer 0, head 2"
    names = [token.replace("\t", "→") for token in maps.tokens]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == names
    axes.images[0].set(norm=LogNorm(1e-4, 1), cmap="viridis")
    axes.set_xticklabels([f"{place}" for place in range(len(maps.tokens))])
    axes.figure.canvas.draw()  # a token may hold a dollar sign, which is no formula
    bar = axes.images[0].colorbar
    assert (bar.norm.vmin, bar.cmap.name) == (1e-4, "viridis"), "the colour bar follows"
    own = matplotlib.figure.Figure().subplots()
    assert maps.plot(0, 2, axes=own) is own
    matplotlib.pyplot.close("all")
    sheet = maps.grid()
    assert sheet.axes[0].images[0].get_array().shape[1] == 4 * (len(maps.tokens) + 3)
    assert sheet._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"


def test_the_page_in_a_notebook_is_the_whole_page_of_the_maps(model, text_tokenizer, tmp_path):
    maps = antiphase.look(model("differential"), text_tokenizer, TEXT)
    record = maps.record()
    for layer in layers_of(record):
        exact = maps.found[layer.layer].maps.numpy()
        assert (numpy.abs(layer.maps - exact) <= error_bound(exact) + 1e-6).all()
    path = maps.save(tmp_path / "maps.html")
    page = path.read_text(encoding="utf-8")
    (shown,) = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads" [^<>]*></iframe>',
                            maps._repr_html_()).groups()  # fmt: skip
    created = re.compile(r"\d{4}-\d\d-\d\dT[\d:+]+")
    assert created.sub("", html.unescape(shown)) == created.sub("", page)
    assert created.sub("", page) == created.sub("", look_page([record]))
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.search(r'(src|href)="?(https?:)?//', page), "it is offline"
    with pytest.raises(InputError, match=r"^path .*maps\.txt must end in \.html"):
        maps.save(tmp_path / "maps.txt")


def test_layers_without_attention_have_no_maps(model, text_tokenizer):
    maps = antiphase.look(model("llama"), text_tokenizer, TEXT)
    del maps.found[1]
    assert maps.layers == [0, 2]
    assert torch.equal(maps[-1], maps[2])
    with pytest.raises(IndexError, match="layer 1 has no attention maps; those that have: 0, 2"):
        maps[1, 0]
    with pytest.raises(IndexError, match="layer 2 has the heads 0 to 3, got 4"):
        maps[2, 4]


@pytest.mark.parametrize(("given", "options", "message"), [
    ("1" * 600, {}, r"text has 600 tokens, more than the 256 of length; give truncate to look at"),
    (" ", {}, "text is empty; give a sentence to look at"),
    (["a", "b"], {}, "text must be one text, got list"),
    ("a", {"length": 513}, "length must lie between 1 and 512, got 513"),
    ("a", {"text_target": "b"}, "text_target is only for encoder–decoders; LlamaForCausalLM has no"),
])  # fmt: skip
def test_unsuitable_texts_are_refused_in_the_words_of_python(model, text_tokenizer, given, options, message):
    with pytest.raises(InputError, match=message) as refused:
        antiphase.look(model("llama"), text_tokenizer, given, **options)
    assert "--" not in str(refused.value)


def test_unsuitable_models_and_maps_are_refused(model, text_tokenizer):
    llama = model("llama")
    with pytest.raises(InputError, match=r"text has the token id \d+, but LlamaForCausalLM knows 9 on this side"):
        antiphase.look(model("llama", vocab_size=9), text_tokenizer, TEXT)
    bloom = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=len(text_tokenizer), hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(InputError, match=r"^model BloomForCausalLM: .*attention interface"):
        antiphase.look(bloom, text_tokenizer, TEXT)
    maps = antiphase.look(llama, text_tokenizer, "1" * 600, length=9, truncate=True)
    assert len(maps.tokens) == 9
    with pytest.raises(InputError, match="which is second, but the heads of layer 0 have one map each; leave it out"):
        maps.plot(0, 0, "second")
    with pytest.raises(InputError, match="which must be one of difference, first, second, got 'secnd'; did you mean"):
        maps.map(0, 0, "secnd")
    with pytest.raises(InputError, match="LlamaForCausalLM has no part 'cross'"):
        maps.part("cross")


def test_a_pair_is_cross_attention_first(text_tokenizer):
    config = hf.BartConfig(
        vocab_size=len(text_tokenizer), max_position_embeddings=100, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        decoder_start_token_id=0, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24,
    )  # fmt: skip
    bart = hf.BartForConditionalGeneration(config).eval()
    maps = antiphase.look(bart, text_tokenizer, "12 Rand am", text_target="Ein x")
    source, target = (text_tokenizer(text, return_tensors="pt")["input_ids"] for text in ("12 Rand am", "Ein x"))
    bart.set_attn_implementation("eager")
    outputs = bart(input_ids=source, labels=target, output_attentions=True)
    torch.testing.assert_close(maps[1, 2], outputs.cross_attentions[1][0, 2].detach())
    assert (len(maps.queries), len(maps.tokens)) == (target.shape[1], source.shape[1])
    inner = maps.part("encoder")
    torch.testing.assert_close(inner[0, 3], outputs.encoder_attentions[0][0, 3].detach())
    assert len(inner.queries) == source.shape[1]
    assert maps.part("decoder")[0].shape[-1] == target.shape[1]
    with pytest.raises(InputError, match="text_target is missing: BartForConditionalGeneration has an encoder and a"):
        antiphase.look(bart, text_tokenizer, "12 Rand am")
