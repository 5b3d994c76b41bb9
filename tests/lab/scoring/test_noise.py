"""Noise by its effect, in models whose answer depends on known tokens; and the bookkeeping of changed attention."""

import math
import statistics

import pytest
import torch

from antiphase.attention.answers import AnswerScores
from antiphase.base.randomness import keyed_generator
from antiphase.lab.scoring.noise import changed, first_answers, hidden, resampled, retrieving_layers, second_maps
from antiphase.lab.text.resampling import PARTS, of_symbols
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from support.uniform_attention import STRENGTH, uniform_attention

LANGUAGE = SymbolLanguage(4, 4, 5)
NUMBERS, FILLER = range(6, 10), range(10, 15)
TASK = RetrievalTask(LANGUAGE, needles=3, queries=1, sequence_length=24)


@pytest.fixture
def constructed(tiny_config):
    words = len(LANGUAGE.words)
    return lambda kind, signals, answers=NUMBERS: uniform_attention(tiny_config, kind, words, signals, answers)


@pytest.fixture
def batch():
    return TASK.sample(7, keyed_generator(3, "batch"))


def drawn(batch, part, count=12):
    copies = [
        of_symbols(TASK, batch, row, part, count, keyed_generator(row, part)) for row in range(len(batch.input_ids))
    ]
    return copies, list(batch.answer_positions[:, 0])


def log_odds(signals, seen):
    """Of a number when of so many tokens so many carry the signal: softmax attention, uniform over what is seen."""
    gives = 0.1 * 16 * STRENGTH / math.sqrt((1 + STRENGTH**2) / 16 + 1e-6) * signals / seen
    logit = 5.0 * gives / math.sqrt((1 + gives**2) / 16 + 1e-6)
    return logit - math.log((len(NUMBERS) - 1) * math.exp(logit) + len(LANGUAGE.words) - len(NUMBERS))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_a_model_that_reads_the_answer_alone_has_no_noise(constructed, batch, kind, part):
    """Every sequence has the same number of numbers, whichever they are."""
    copies, positions = drawn(batch, part)
    found = resampled(constructed(kind, NUMBERS), copies, positions)
    assert found["ratio"] is None
    assert found["sd"] == {"value": 0.0, "interval": [0.0, 0.0]}
    assert found["log_odds"]["value"] > math.log(1 / (len(LANGUAGE.words) - 1))


def test_a_model_that_names_a_number_whatever_it_reads_is_right_as_often_as_it_is_asked_for(constructed):
    batch = TASK.sample(60, keyed_generator(4, "batch"))
    model = constructed("softmax", range(15), answers=[NUMBERS[2]])
    for part in PARTS:
        found = resampled(model, *drawn(batch, part, 2))
        assert found["ratio"] is None
        asked = batch.input_ids.gather(1, batch.answer_positions[:, 0])
        assert found["accuracy"] == pytest.approx((asked == NUMBERS[2]).double().mean().item())
        assert 0.1 < found["accuracy"] < 0.4  # one of four numbers


def test_the_noise_of_a_model_that_reads_filler_is_that_of_the_filler(constructed, batch):
    word = FILLER[1]
    model = constructed("softmax", [word])
    copies, positions = drawn(batch, "filler")
    found = resampled(model, copies, positions)
    seen = int(batch.prompt_end[0]) + 1
    values = [[log_odds(int((copy[:seen] == word).sum()), seen) for copy in ids] for ids in copies]
    spread = math.sqrt(statistics.fmean(statistics.variance(own) for own in values))
    mean = statistics.fmean(value for own in values for value in own)
    assert found["sd"]["value"] == pytest.approx(spread, rel=1e-6)
    assert found["log_odds"]["value"] == pytest.approx(mean, rel=1e-6)
    assert found["ratio"]["value"] == pytest.approx(mean / spread, rel=1e-6)
    assert found["sd"]["interval"][0] < spread < found["sd"]["interval"][1]
    assert (found["contexts"], found["copies"]) == (7, 12)
    assert resampled(model, *drawn(batch, "other_needles"))["ratio"] is None


def test_an_answer_gains_when_what_dilutes_it_is_hidden(constructed, batch):
    """It is one number among three; with the others hidden too, one among fewer tokens."""
    model = constructed("softmax", NUMBERS)
    found = {(row["part"], str(row["layers"])): row for row in hidden(model, [batch], [0])}
    seen = int(batch.prompt_end[0]) + 1
    filler, others = (int(batch.spans[name][0].sum()) for name in ("filler", "other_needles"))
    before = log_odds(3, seen)
    for layers in ("[0]", "None"):  # all there are
        gain = log_odds(3, seen - filler) - before
        assert found["filler", layers]["log_odds"]["value"] == pytest.approx(gain, rel=1e-5)
        loss = log_odds(1, seen - others) - before
        assert found["other_needles", layers]["log_odds"]["value"] == pytest.approx(loss, rel=1e-5)
        assert loss < 0 < gain
    assert len(hidden(model, [batch], [])) == 2


def test_second_maps_change_by_layer_and_in_all(tiny_model, batch):
    model = tiny_model("differential", vocab_size=len(LANGUAGE.words)).double()
    rows = second_maps(model, [batch], [0, 2], ["removed", "exchanged"])
    assert [(row["change"], row["layers"]) for row in rows] == [
        (form, layers) for form in ("removed", "exchanged") for layers in ([0], [2], None)
    ]
    whole = first_answers(model, batch.input_ids, batch.answer_positions[:, 0])
    assert len({row["log_odds"]["value"] for row in rows}) == 6
    assert {row["accuracy_before"] for row in rows} == {whole.is_right.double().mean().item()}
    own = [layer.self_attn for layer in model.model.layers]
    for layer in (0, 2):
        own[layer]._extra = lambda hidden: {"lam": torch.zeros((), dtype=torch.float64)}
    without = first_answers(model, batch.input_ids, batch.answer_positions[:, 0])
    change = (without.log_probability - whole.log_probability).mean().item()
    assert rows[2]["log_probability"]["value"] == pytest.approx(change, rel=1e-6)
    assert rows[2]["accuracy"] == without.is_right.double().mean().item()


def test_answers_do_not_depend_on_the_batch(tiny_model, batch, monkeypatch):
    model = tiny_model("differential_v2", vocab_size=len(LANGUAGE.words)).double()
    places = batch.answer_positions[:, 0]
    whole = first_answers(model, batch.input_ids, places)
    monkeypatch.setattr("antiphase.lab.scoring.noise.TOKENS_AT_ONCE", 60)
    torch.testing.assert_close(first_answers(model, batch.input_ids, places).log_odds, whole.log_odds)


def test_changes_count_what_is_won_and_lost():
    def scores(logs, right):
        return AnswerScores(torch.tensor(logs), torch.tensor(logs) * 2, torch.tensor(right))

    found = changed(scores([-1.0, -2.0, -4.0], [True, False, False]), scores([-1.5, -1.0, -4.0], [False, True, True]))
    assert (found["accuracy_before"], found["accuracy"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert found["accuracy_change"]["value"] == pytest.approx(1 / 3)
    assert found["log_probability"]["value"] == pytest.approx(0.5 / 3)
    assert found["log_odds"]["value"] == pytest.approx(1 / 3)
    low, high = found["log_probability"]["interval"]
    assert low < 0.5 / 3 < high


def test_layers_retrieve_that_lose_the_answer_surely_and_by_much():
    def row(layer, change, interval, name="difference"):
        return {"layer": layer, "map": name, "knockout": {"answer": {"change": change, "interval": interval}}}

    rows = [row(0, -0.5, [-0.8, -0.2]), row(1, -4.0, [-5, -3]), row(2, -0.3, [-0.4, -0.2]), row(3, -3, [-7, 1]),
            row("all", -9, [-10, -8]), {"layer": 1, "map": "first"}]  # fmt: skip
    assert retrieving_layers(rows) == [0, 1]
    assert retrieving_layers(rows[:2]) == []  # all there are
    assert retrieving_layers([row(0, 0.5, [0.2, 0.8]), row(1, 0.0, None)]) == []
