"""Shares of attention: hand-made weights with known sums, and the bounds that any model's figures keep."""

import pytest
import torch

from antiphase.attention.rows import LayerRows
from antiphase.base.randomness import keyed_generator
from antiphase.lab.scoring import allocation as module
from antiphase.lab.scoring.allocation import _ratio, allocation, attention_map
from antiphase.lab.text.retrieval import SPANS, RetrievalBatch, RetrievalTask, SymbolLanguage

LANGUAGE = SymbolLanguage(9, 11, 5)
TASK = RetrievalTask(LANGUAGE, needles=4, queries=2, sequence_length=37)


def rows(found):
    return {(row["layer"], row["map"]): row for row in found}


def total(row, figure):
    return sum(row["spans"][name][figure] for name in SPANS)


def stub(monkeypatch, layers):
    """What the model would show, handed out to batches in order."""
    start = [0]

    def attention_rows(model, input_ids, positions):
        assert positions.shape == (len(input_ids), 1)
        part = slice(start[0], start[0] + len(input_ids))
        start[0] += len(input_ids)
        return [LayerRows(layer.maps[part], layer.lam, layer.layer) for layer in layers]

    monkeypatch.setattr(module, "attention_rows", attention_rows)


@pytest.fixture
def one_row():
    """Seven tokens: each part once, but two of filler; nothing after the question."""
    kinds = torch.tensor([[0, 1, 4, 2, 3, 4, 5]])
    spans = {name: kinds == index for index, name in enumerate(SPANS)}
    return RetrievalBatch(torch.arange(7)[None], torch.tensor([[[7]]]), torch.tensor([6]), spans)


def test_sums_and_shares_of_weights_made_by_hand(monkeypatch, one_row):
    first = torch.tensor([[0.10, 0.05, 0.05, 0.40, 0.20, 0.10, 0.10], [0.10, 0.05, 0.05, 0.20, 0.40, 0.10, 0.10]])
    second = torch.tensor([[0.20, 0.10, 0.30, 0.10, 0.10, 0.10, 0.10], [0.20, 0.10, 0.30, 0.10, 0.10, 0.10, 0.10]])
    maps = torch.stack([first, second], dim=1)[None, :, :, None]  # (1, 2 heads, 2 maps, 1, 7)
    stub(monkeypatch, [LayerRows(maps, torch.full((1, 1, 1), 0.5), 0)])
    found = rows(allocation(None, one_row))
    assert found.keys() == {(layer, name) for layer in (0, "all") for name in ("difference", "first", "second")}
    spans = found[0, "difference"]["spans"]
    # head 1: answer 0.40 - 0.05, others 0.15, filler -0.10 + 0.05; head 2: answer 0.15, others 0.35
    assert spans["answer"]["signed"] == pytest.approx((0.35 + 0.15) / 2)
    assert spans["other_needles"]["signed"] == pytest.approx(0.25)
    assert spans["filler"]["signed"] == pytest.approx(-0.05)
    # Σ|A| = 0 + 0 + 0.10 + 0.35 + 0.15 + 0.05 + 0.05 = 0.70 in both heads
    assert spans["answer"]["share"] == pytest.approx(0.25 / 0.7)
    assert spans["filler"]["share"] == pytest.approx(0.15 / 0.7)
    assert found[0, "difference"]["answer_to_noise"]["signed"] == pytest.approx(0.25 / 0.20)
    assert found[0, "difference"]["answer_to_noise"]["share"] == pytest.approx(0.25 / 0.40)
    assert found[0, "first"]["spans"]["answer"]["signed"] == pytest.approx(0.30)
    assert found[0, "second"]["spans"]["filler"]["share"] == pytest.approx(0.40)
    assert found[0, "second"]["answer_to_noise"]["share"] == pytest.approx(0.1 / 0.5)


def test_all_is_the_mean_over_layers_and_its_ratio_that_of_the_means(monkeypatch, one_row):
    layers = [torch.tensor([0.1, 0.1, 0.1, 0.4, 0.1, 0.1, 0.1]), torch.tensor([0.0, 0.0, 0.5, 0.1, 0.1, 0.2, 0.1])]
    stub(monkeypatch, [LayerRows(layer.view(1, 1, 1, 1, 7), None, number) for number, layer in enumerate(layers)])
    found = rows(allocation(None, one_row))
    assert found.keys() == {(0, "softmax"), (1, "softmax"), ("all", "softmax")}
    assert found["all", "softmax"]["spans"]["answer"] == pytest.approx({"signed": 0.25, "share": 0.25})
    assert found["all", "softmax"]["answer_to_noise"]["signed"] == pytest.approx(0.25 / 0.55)
    assert found[0, "softmax"]["answer_to_noise"]["share"] == pytest.approx(0.4 / 0.3)


def test_a_row_without_noise_has_no_ratio_and_one_without_attention_no_share(monkeypatch, one_row):
    on_answer = torch.tensor([0.0, 0, 0, 1, 0, 0, 0]).view(1, 1, 1, 1, 7)
    stub(monkeypatch, [LayerRows(on_answer, None, 0)])
    assert rows(allocation(None, one_row))[0, "softmax"]["answer_to_noise"] == {"signed": None, "share": None}
    equal = torch.full((1, 1, 2, 1, 7), 1 / 7)
    stub(monkeypatch, [LayerRows(equal, torch.ones(1, 1, 1), 0)])
    found = rows(allocation(None, one_row))[0, "difference"]
    assert total(found, "share") == 0.0
    assert total(found, "signed") == 0.0


@pytest.mark.parametrize(("noise", "ratio"), [(0.5, 0.8), (0.019, None), (-0.3, None), (0.0, None)])
def test_no_ratio_is_formed_to_weights_that_cancel(noise, ratio):
    """The signed noise of a differential map may come to any small number of either sign."""
    spans = {**dict.fromkeys(SPANS, 0.0), "answer": 0.4, "filler": noise}
    assert _ratio(spans) == (None if ratio is None else pytest.approx(ratio))


@pytest.mark.parametrize("kind", ["softmax", "differential"])
def test_figures_of_a_model_keep_their_sums(tiny_model, kind):
    model = tiny_model(kind, vocab_size=len(LANGUAGE.words))
    found = rows(allocation(model, TASK.sample(20, keyed_generator(1))))
    names = ["softmax"] if kind == "softmax" else ["difference", "first", "second"]
    assert list(found) == [(layer, name) for layer in (0, 1, 2) for name in names] + [("all", name) for name in names]
    lambdas = [layer.self_attn.lam().item() if kind == "differential" else 0.0 for layer in model.model.layers]
    for (layer, name), row in found.items():
        assert total(row, "share") == pytest.approx(1.0, abs=1e-5)
        lam = sum(lambdas) / 3 if layer == "all" else lambdas[layer]
        assert total(row, "signed") == pytest.approx(1 - lam if name == "difference" else 1.0, abs=1e-5)
        assert all(row["spans"][span]["share"] >= 0 for span in SPANS)


@pytest.mark.parametrize("tokens", [1, 100])
def test_batching_changes_no_figure(tiny_model, monkeypatch, tokens):
    model, batch = tiny_model(vocab_size=len(LANGUAGE.words)), TASK.sample(7, keyed_generator(3))
    expected = rows(allocation(model, batch))
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", tokens)
    for key, row in rows(allocation(model, batch)).items():
        for span in SPANS:
            assert row["spans"][span] == pytest.approx(expected[key]["spans"][span], abs=1e-6)


def test_an_untrained_model_spreads_its_attention_evenly(tiny_config):
    """With small random weights every map is near uniform, so each part gets its share of the prompt."""
    import antiphase

    batch = TASK.sample(20, keyed_generator(4))
    prompt = (batch.prompt_end + 1).double()
    for kind, name in (("softmax", "softmax"), ("differential", "first"), ("differential", "difference")):
        model = antiphase.AntiphaseForCausalLM(tiny_config(kind, vocab_size=len(LANGUAGE.words))).eval()
        spans = rows(allocation(model, batch))["all", name]["spans"]
        for span in SPANS:
            share = (batch.spans[span].sum(1) / prompt).mean().item()
            assert spans[span]["share"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("kind", ["softmax", "differential"])
def test_a_map_for_drawing_is_the_signed_weights_of_a_range_of_queries(tiny_model, kind):
    model = tiny_model(kind, attn_implementation="eager")
    ids = torch.randint(3, 61, (1, 20))
    found = attention_map(model, ids, queries=slice(12, None))
    whole = torch.stack([weights[0] for weights in model(ids, output_attentions=True).attentions])
    assert found.shape == (3, 8 if kind == "softmax" else 4, 8, 20)
    torch.testing.assert_close(found, whole[:, :, 12:], rtol=1e-5, atol=1e-6)
