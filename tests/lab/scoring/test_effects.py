"""What attention on the answer does, in models whose answer lives in one place and can be worked out by hand."""

import math

import pytest
import torch

from antiphase.base.randomness import keyed_generator
from antiphase.lab.scoring.allocation import allocation, batches_of
from antiphase.lab.scoring.effects import allocation_with_effects, random_filler
from antiphase.lab.text.retrieval import SPANS, RetrievalBatch, RetrievalTask, SymbolLanguage
from support.uniform_attention import STRENGTH, uniform_attention

LANGUAGE = SymbolLanguage(9, 11, 5)
TASK = RetrievalTask(LANGUAGE, needles=4, queries=2, sequence_length=37)
LAST_MAP = {"softmax": "softmax", "differential": "difference", "differential_v2": "difference"}
ANSWER = 11
"""The number in the needle of ``batch``."""


def by_place(rows):
    return {(row["layer"], row["map"]): row for row in rows}


def measured(model, batch):
    return by_place(allocation_with_effects(model, batches_of(batch)))


@pytest.fixture
def constructed(tiny_config):
    words = len(LANGUAGE.words)
    return lambda kind, signals: uniform_attention(tiny_config, kind, words, signals, [ANSWER])


@pytest.fixture
def batch():
    """One sequence: opening, four words of filler, the needle (key 2, number 11), two more of filler, the question."""
    kinds = torch.tensor([[0, 4, 4, 4, 4, 2, 2, 4, 4, 5, -1]])
    ids = torch.tensor([[1, 22, 23, 24, 25, 2, ANSWER, 26, 22, 2, ANSWER]])
    spans = {name: kinds == index for index, name in enumerate(SPANS)}
    return RetrievalBatch(ids, torch.tensor([[[10]]]), torch.tensor([9]), spans)


def log_probability(gives):
    """Of the answer, when attention gives this to the result's channel, beside 1 in the constant one; width 16."""
    logit = 5.0 * gives / math.sqrt((1 + gives**2) / 16 + 1e-6)
    return logit - math.log(math.exp(logit) + len(LANGUAGE.words) - 1)


@pytest.mark.parametrize("kind", LAST_MAP)
def test_values_that_live_in_the_answer_alone_are_its_whole_contribution(constructed, batch, kind):
    """Its weights are no larger than any other's."""
    found = measured(constructed(kind, signals=[ANSWER]), batch)
    for layer in (0, "all"):
        spans = found[layer, LAST_MAP[kind]]["spans"]
        for figure in ("contribution", "contribution_norm"):
            assert spans["answer"][figure] == pytest.approx(1.0)
            assert all(spans[span][figure] == pytest.approx(0.0, abs=1e-9) for span in SPANS if span != "answer")
        assert spans["answer"]["share"] == pytest.approx(2 / 10)
        assert spans["filler"]["share"] == pytest.approx(6 / 10)
    lam = {"softmax": None, "differential": 0.2, "differential_v2": 0.5}[kind]  # both maps have the same weights
    parts = {"first": None if lam is None else 1 / (1 - lam), "second": None if lam is None else -lam / (1 - lam)}
    for (_, name), row in found.items():
        assert ("knockout" in row) == (name == LAST_MAP[kind])
        assert row["spans"]["answer"]["contribution"] == pytest.approx(parts.get(name, 1.0))


@pytest.mark.parametrize("kind", ["softmax", "differential_v2"])
def test_the_change_without_the_answer_is_that_of_the_formula(constructed, batch, kind):
    """10 tokens are seen, one of which carries the signal; 8 without the needle, or without two words of filler."""
    found = measured(constructed(kind, signals=[ANSWER]), batch)[0, LAST_MAP[kind]]["knockout"]
    signal = STRENGTH / math.sqrt((1 + STRENGTH**2) / 16 + 1e-6)  # after the norm
    channels, left = (16, 1.0) if kind == "softmax" else (8, 0.5)  # λ = σ(0)
    gives = [0.1 * channels * left * signal * weight for weight in (1 / 10, 0.0, 1 / 8)]
    whole, without, fewer = map(log_probability, gives)
    assert found["answer"]["change"] == pytest.approx(without - whole, rel=1e-4)
    assert found["filler"]["change"] == pytest.approx(fewer - whole, rel=1e-4)
    assert without - whole < -0.5 < 0 < fewer - whole
    assert found["answer"]["interval"] is None  # one sequence has no spread


def test_with_a_head_norm_the_answer_counts_for_all_there_is_however_small_its_weight(constructed, batch):
    """The norm gives what attention gives its size; without the needle there is nothing left."""
    model = constructed("differential", signals=[ANSWER])
    found = measured(model, batch)[0, "difference"]["knockout"]
    with torch.no_grad():
        attention = model.model.layers[0].self_attn
        signal = STRENGTH / math.sqrt((1 + STRENGTH**2) / 16 + 1e-6)
        lam, eps = attention.lam().item(), attention.head_norm.eps
    whole, without, fewer = (
        log_probability(0.1 * 16 * (1 - attention.lambda_init) * value / math.sqrt(value**2 + eps))
        for value in (signal * (1 - lam) / 10, 0.0, signal * (1 - lam) / 8)
    )
    assert found["answer"]["change"] == pytest.approx(without - whole, rel=1e-4)
    assert found["filler"]["change"] == pytest.approx(fewer - whole, abs=1e-4)


def test_an_answer_that_is_attended_to_but_not_used_does_not_help(constructed, batch):
    """The signal lies in the filler: the answer has its share of the weights, and no part in the output."""
    found = measured(constructed("softmax", signals=[22, 23, 24, 25, 26]), batch)[0, "softmax"]
    assert found["spans"]["answer"]["share"] == pytest.approx(0.2)
    assert found["spans"]["answer"]["contribution"] == pytest.approx(0.0, abs=1e-9)
    assert found["spans"]["filler"]["contribution"] == pytest.approx(1.0)
    assert found["knockout"]["filler"]["change"] < 0 < found["knockout"]["answer"]["change"]


@pytest.mark.parametrize("kind", LAST_MAP)
def test_shares_add_up_and_batches_change_no_figure(tiny_model, monkeypatch, kind):
    model, batch = tiny_model(kind, vocab_size=len(LANGUAGE.words)).double(), TASK.sample(5, keyed_generator(3))
    found = measured(model, batch)
    alone = by_place(allocation(model, batch))
    assert found.keys() == alone.keys()
    for layer in (0, 1, 2, "all"):
        spans = found[layer, LAST_MAP[kind]]["spans"]
        assert sum(spans[span]["contribution"] for span in SPANS) == pytest.approx(1.0)
        for span, figures in alone[layer, LAST_MAP[kind]]["spans"].items():
            assert {name: spans[span][name] for name in figures} == pytest.approx(figures)
        assert all((spans[span]["contribution_norm"] > 0) == bool(batch.spans[span].any()) for span in SPANS)
    for figure in ("contribution", "contribution_norm"):
        by_layer = [found[layer, LAST_MAP[kind]]["spans"]["answer"][figure] for layer in range(3)]
        assert found["all", LAST_MAP[kind]]["spans"]["answer"][figure] == pytest.approx(sum(by_layer) / 3)
    monkeypatch.setattr("antiphase.lab.scoring.allocation.TOKENS_AT_ONCE", 80)
    for key, row in measured(model, batch).items():
        for span in SPANS:
            assert row["spans"][span] == pytest.approx(found[key]["spans"][span], abs=1e-9)
        for what, change in row.get("knockout", {}).items():
            assert change["change"] == pytest.approx(found[key]["knockout"][what]["change"], abs=1e-9)
            assert change["interval"][0] < change["change"] < change["interval"][1]


def test_all_layers_at_once_are_not_the_mean_of_each_alone(tiny_model):
    model, batch = tiny_model(vocab_size=len(LANGUAGE.words)).double(), TASK.sample(5, keyed_generator(3))
    found = measured(model, batch)
    alone = [found[layer, "difference"]["knockout"]["answer"]["change"] for layer in range(3)]
    assert len({round(change, 6) for change in alone}) == 3
    assert abs(found["all", "difference"]["knockout"]["answer"]["change"] - sum(alone) / 3) > 1e-3


def test_random_filler_is_as_much_as_the_needle_and_each_sequence_has_its_own():
    sampled = TASK.sample(40, keyed_generator(1))
    chosen = random_filler(sampled, 0)
    assert torch.equal(chosen.sum(1), sampled.spans["answer"].sum(1))
    assert not (chosen & ~sampled.spans["filler"]).any()
    places = chosen.float() @ torch.arange(37.0)
    assert len(set(places.tolist())) > 20
    spans = {name: span[7:] for name, span in sampled.spans.items()}
    later = RetrievalBatch(sampled.input_ids[7:], sampled.answer_positions[7:], sampled.prompt_end[7:], spans)
    assert torch.equal(chosen[7:], random_filler(later, 7))


def test_too_little_filler_and_no_answer_leave_the_figure_out(constructed, batch):
    model = constructed("softmax", signals=[ANSWER])
    kinds = torch.tensor([[0, 3, 3, 3, 3, 2, 2, 4, 3, 5, -1]])
    spans = {name: kinds == index for index, name in enumerate(SPANS)}
    one_filler = RetrievalBatch(batch.input_ids, batch.answer_positions, batch.prompt_end, spans)
    found = measured(model, one_filler)["all", "softmax"]["knockout"]
    assert found["filler"] is None
    assert found["answer"]["change"] < 0
    no_answer = RetrievalBatch(batch.input_ids, torch.full((1, 1, 1), -1), batch.prompt_end, batch.spans)
    assert measured(model, no_answer)["all", "softmax"]["knockout"] == {"answer": None, "filler": None}
