"""``antiphase.look``: the maps of a model in memory are its own eager ones; figures and page show the same."""

import html
import re
from dataclasses import replace

import matplotlib
import numpy
import pytest
import torch
import transformers as hf
from matplotlib.colors import LogNorm

import antiphase
from antiphase.base.errors import InputError
from antiphase.lab.measures.look import plots
from antiphase.lab.measures.look.tables import chosen_head, layer_table, remarks
from support.models import randomize, small_llama

TEXT = "Ein $x^ Stein, am Rand\tder Stadt"


@pytest.fixture
def llama(text_tokenizer):
    return randomize(small_llama(text_tokenizer, num_hidden_layers=3, num_attention_heads=4, attention_dropout=0.3))


@pytest.fixture
def look(text_tokenizer):
    return lambda model, text=TEXT, **options: antiphase.look(model, text_tokenizer, text, **options)


def test_maps_are_those_of_the_models_own_eager_attention(llama, look, text_tokenizer):
    llama.train().model.layers[1].eval()
    maps = look(llama)
    assert [layer.training for layer in llama.model.layers] == [True, False, True], "dropout is off while it looks"
    assert llama.config._attn_implementation == "sdpa"
    ids = text_tokenizer(TEXT, return_tensors="pt")["input_ids"]
    llama.eval().set_attn_implementation("eager")
    expected = llama(ids, output_attentions=True).attentions
    for layer in range(3):
        torch.testing.assert_close(maps[layer], expected[layer][0].detach())
        assert torch.equal(maps[layer, 2], maps[layer][2])
    assert torch.equal(maps[-1, -1], maps[2, 3])
    assert maps.plot(-1, -1).get_title() == "layer 2, head 3"
    assert len(list(maps)) == 3, "a loop over the layers ends"
    assert maps.tokens == maps.queries == [text_tokenizer.decode([token]) for token in ids[0].tolist()]
    assert repr(maps).startswith("<attention maps of LlamaForCausalLM: 3 layers, 4 heads, ")


def test_a_differential_head_has_its_difference_and_both_maps(look, tiny_model, text_tokenizer):
    maps = look(tiny_model("differential", vocab_size=len(text_tokenizer)))
    first, second = maps.map(1, 1, "first"), maps.map(1, 1, "second")
    torch.testing.assert_close(first.sum(-1), torch.ones(len(maps.tokens)))
    lam = ((first - maps[1, 1]) * second).sum() / second.square().sum()  # one number for all cells
    torch.testing.assert_close(maps[1, 1], first - lam * second)
    assert abs(lam) > 0.1
    visible = numpy.tril(numpy.ones(first.shape, bool))
    for which, weights in (("first", first), ("second", second), ("difference", maps[1, 1])):
        axes = maps.plot(1, 1, which)
        found = numpy.ma.filled(axes.images[0].get_array(), numpy.nan)
        numpy.testing.assert_allclose(found[visible], weights.numpy()[visible])
        assert numpy.isnan(found[~visible]).all()
        assert axes.get_title() == f"layer 1, head 1: {which}, λ = {lam:.2f}"
        assert maps.lam(1)[1].mean() == pytest.approx(float(lam), abs=1e-4)
        assert axes.images[0].cmap.name == ("RdBu_r" if (weights < 0).any() else "Reds")


def test_a_plot_can_be_changed(llama, look, monkeypatch):
    maps = look(llama)
    figure = matplotlib.pyplot.figure  # in a notebook, the first one turns interaction on
    monkeypatch.setattr("matplotlib.pyplot.figure", lambda **size: matplotlib.interactive(True) or figure(**size))
    with matplotlib.rc_context():
        axes = maps.plot(0, 2)
        assert matplotlib.is_interactive()
    assert [text.get_text() for text in axes.get_xticklabels()] == [one.replace("\t", "→") for one in maps.tokens]
    axes.images[0].set(norm=LogNorm(1e-4, 1), cmap="viridis")
    axes.figure.canvas.draw()  # a token may hold a dollar sign, which is no formula
    assert axes.images[0].colorbar.norm.vmin == 1e-4, "the colour bar follows"
    assert maps.plot(0, 2, axes=axes) is axes
    sheet = maps.grid()
    assert sheet.axes[0].images[0].get_array().shape[1] == 4 * (len(maps.tokens) + 3)
    assert sheet._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"


def test_the_page_in_a_notebook_is_the_whole_page_of_the_maps(llama, look, tmp_path, monkeypatch):
    maps = look(llama)
    made = maps.record()
    monkeypatch.setattr(type(maps), "record", lambda maps: made)  # with one time, which the page also has as CSV
    page = maps.save(tmp_path / "maps.html").read_text(encoding="utf-8")
    (shown,) = re.findall(r'^<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads" ', maps._repr_html_())
    assert html.unescape(shown) == page
    assert not re.search(r'(src|href)="?(https?:)?//', page), "it is offline"
    assert "<td>antiphase.look(model, tokenizer, text)</td>" in page


def test_layers_without_attention_have_no_maps(look, llama, text_tokenizer):
    sizes = {"num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 0, "num_experts": 1}
    sizes |= {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    maps = look(hf.JambaForCausalLM(hf.JambaConfig(vocab_size=len(text_tokenizer), use_mamba_kernels=False, **sizes)))
    assert (maps.layers, maps.without_attention) == ([0, 2], [1])
    assert remarks(maps.record()) == ["Layer 1 has no attention."]
    assert look(llama).without_attention == []
    assert torch.equal(maps[-1], maps[2])
    with pytest.raises(IndexError, match="layer 1 has no attention maps; those that have: 0, 2"):
        maps[1]


def test_a_layer_that_is_passed_again_is_not_given_by_its_number(llama, look):
    """As in models that loop over their layers."""
    maps = look(llama)
    twice = replace(maps, found=[*maps.found, maps.found[1]])
    assert torch.equal(twice[0], maps[0])
    with pytest.raises(InputError, match=r"layer 1 is passed 2 times, and has maps of each; take them from .* \.found"):
        twice[1]


def test_what_is_unsuitable_is_refused_in_the_words_of_python(llama, look, text_tokenizer):
    maps = look(llama, "1" * 600, length=9, truncate=True)
    assert len(maps.tokens) == 9
    bloom = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=len(text_tokenizer), hidden_size=16, n_layer=1, n_head=2))
    for message, wrong in {
        "text has 600 tokens, more than the 256 of length; give length 8192 or truncate to look at": lambda: look(
            llama, "1" * 600
        ),
        "text must be one text, got list": lambda: look(llama, ["a"]),
        "layer 2 has the heads 0 to 3, got 4": lambda: maps[2, 4],
        r"path maps\.txt must end in \.html": lambda: maps.save("maps.txt"),
        "model BloomForCausalLM: .*attention interface": lambda: look(bloom),
        "which is second, but the heads of layer 0 have one map each": lambda: maps.plot(0, 0, "second"),
        "which must be one of difference, first, second, got 'secnd'; did you": lambda: maps.map(0, 0, "secnd"),
        "LlamaForCausalLM has no part 'cross'": lambda: maps.part("cross"),
    }.items():
        with pytest.raises((InputError, IndexError), match=f"^{message}"):
            wrong()


def test_a_long_text_is_shown_by_segments_and_a_part_of_it_token_by_token(llama, look, text_tokenizer, tmp_path):
    text = " ".join(["Ein Stein am Rand"] * 60)
    ids = text_tokenizer(text, return_tensors="pt")["input_ids"]
    count = ids.shape[1]
    assert 512 < count < 1024
    size = -(-count // 256)
    maps = look(llama, text, length=1024)
    whole = eager_maps(llama.eval(), ids, 1)
    assert len(maps.tokens) == -(-count // size)
    cell = whole[:, 10 * size : 11 * size, 2 * size : 3 * size]
    torch.testing.assert_close(maps[1][:, 10, 2], cell.sum(-1).mean(-1))
    torch.testing.assert_close(maps.part("peaks")[1][:, 10, 2], cell.amax((-1, -2)))
    assert maps.part("peaks")._repr_html_() is None
    assert maps.part("peaks").grid().axes
    with pytest.raises(
        InputError, match="largest weights have no page of their own; that of the whole maps shows them"
    ):
        maps.part("peaks").save(tmp_path / "peaks.html")
    assert "".join(maps.tokens[:1]).startswith(text_tokenizer.decode(ids[0, :1]))
    assert remarks(maps.record())[0].startswith(f"A row and a column are {size} tokens: the sum over the keys, ")
    assert len(remarks(maps.record())) == 1
    page = maps.save(tmp_path / "long.html").read_text(encoding="utf-8")
    assert "(largest)" in page
    assert '"unit": "Segment"' in page
    assert [page.count(f'"peaks": {word}') for word in ("false", "true")] == [3, 3]
    assert chosen_head(maps.record())[0].name.endswith("(text)")
    assert "Pieces of the" not in page
    assert [row[0] for row in layer_table(maps.record()).rows] == ["0 (text)", "1 (text)", "2 (text)"]
    distance = layer_table(maps.record()).rows[0][5]
    apart = (torch.arange(len(maps.tokens))[:, None] - torch.arange(len(maps.tokens))).abs()
    assert distance == pytest.approx(float((maps[0] * apart).sum(-1).mean()) * size, rel=1e-2)
    part = look(llama, text, length=1024, queries=(500, 540), keys=(3, 20))
    torch.testing.assert_close(part[2], eager_maps(llama, ids, 2)[:, 500:540, 3:20])
    assert part.queries == [text_tokenizer.decode([token]) for token in ids[0, 500:540].tolist()]
    assert part.tokens == [text_tokenizer.decode([token]) for token in ids[0, 3:20].tolist()]
    (said,) = remarks(part.record())
    assert said.startswith("A part of a text: its queries and its keys are counted from 0")
    assert said.endswith("a query's weights on other keys are not in the pictures.")
    part.save(tmp_path / "part.html")
    assert [axes.get_title() for axes in plots.masks(part.record()).axes] == ["part of a mask\nqueries → keys"]
    assert plots.alignment(part.record()) is None
    with pytest.raises(InputError, match="in no layer do these queries see any of these keys"):
        look(llama, text, length=1024, queries=(3, 20), keys=(500, 540))


def eager_maps(model, ids, layer):
    model.set_attn_implementation("eager")
    found = model(ids, output_attentions=True).attentions[layer][0].detach()
    model.set_attn_implementation("sdpa")
    return found


def test_spans_and_long_texts_that_cannot_be_shown_are_refused_by_name(llama, look):
    with pytest.raises(InputError, match="queries and keys are given together"):
        look(llama, queries=(0, 3))
    with pytest.raises(InputError, match=r"keys must be two numbers such as 90:200, at most 512 apart, got 5:2"):
        look(llama, queries=(0, 3), keys=(5, 2))
    with pytest.raises(InputError, match=r"queries must end at \d+ at most, as the text does, got 99"):
        look(llama, queries=(0, 99), keys=(0, 2))
