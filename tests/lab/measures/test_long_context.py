"""Loss by position: equal to one whole forward pass, whatever the chunks, and honest about what context is worth."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from antiphase.base.records import Record, finite
from antiphase.lab.measures.long_context.measure import has_unknown, long_context, losses_by_position, points
from antiphase.lab.measures.long_context.presentation import positions


@pytest.mark.grid
@pytest.mark.parametrize("chunk", [1, 5, 16, 40, 64])
@pytest.mark.parametrize("kind", ["llama", "mistral", "softmax", "differential", "differential_v2"])
@torch.no_grad()
def test_chunks_change_nothing(kind, chunk, any_model):
    model = any_model(kind)
    ids = torch.randint(1, 61, (2, 40))
    logits = model(ids).logits[:, :-1]
    expected = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    found = losses_by_position(model, ids, chunk=chunk)
    assert found.shape == (2, 39)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_points_are_halves_of_the_length():
    assert points(4096) == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert points(100) == [25, 50, 100]
    assert points(20) == [20]


def test_the_curve_is_the_mean_up_to_each_position(tiny_model):
    model = tiny_model("softmax")
    ids = torch.randint(1, 61, (3, 64))
    losses = losses_by_position(model, ids).double()
    found = long_context(model, ids, bytes_of=lambda tokens: 2 * len(tokens))
    assert [row.position for row in found.curve] == [16, 32, 64]
    for row in found.curve:
        here = losses[:, : row.position - 1]
        assert row.loss == pytest.approx(here.mean().item(), rel=1e-6)
        assert row.interval[0] < row.loss < row.interval[1]
        assert row.bits_per_byte == pytest.approx(row.loss / 2 / math.log(2), rel=1e-6)
    table = positions(Record(kind="evaluate-long-context", values=finite(found)))
    since = [row[-1] for row in table.rows]
    assert since == [None, *(pytest.approx(losses[:, a:b].mean().item(), rel=1e-6) for a, b in ((15, 31), (31, 63)))]


def test_text_that_the_tokenizer_does_not_know_has_no_count_of_bytes():
    ids = torch.tensor([[5, 7, 9]])
    cases = (({"unk": 7}, True), ({"unk": 8}, False), ({"unk": None}, False), ({"unk": 7, "eos": 7}, False))
    for names, expected in cases:
        tokens = {f"{name}_token_id": names.get(name) for name in ("unk", "bos", "eos", "pad")}
        assert has_unknown(SimpleNamespace(**tokens), ids) is expected


class Copier(torch.nn.Module):
    """Stands for a model with perfect memory: a token seen before in the sequence is certain, others are guessed."""

    device, config, _is_stateful = torch.device("cpu"), None, False

    def __init__(self, remembers):
        super().__init__()
        self.remembers = remembers

    def forward(self, input_ids, past_key_values, use_cache):
        past = getattr(past_key_values, "ids", [])
        past_key_values.ids = past + input_ids[0].tolist()
        logits = torch.zeros(1, input_ids.shape[1], 61)
        if self.remembers:
            for place in range(input_ids.shape[1]):
                before = past_key_values.ids[: len(past) + place + 1]
                logits[0, place, before[0]] = 50.0  # every token of a window equals its first one
        return SimpleNamespace(logits=logits)


def test_context_is_worth_what_it_is_worth(monkeypatch):
    from antiphase.lab.measures.long_context import measure as module

    monkeypatch.setattr(module, "DynamicCache", lambda config: type("Cache", (), {})())
    monkeypatch.setattr(module, "is_read_in_parts", lambda model: True)  # what is no model of transformers
    monkeypatch.setattr(module, "check_causal", lambda model, measured: None)  # the same
    monkeypatch.setattr(module, "forget_length", lambda model: None)
    windows = torch.arange(1, 6)[:, None].expand(5, 32).contiguous()
    knowing = long_context(Copier(True), windows).tail
    assert knowing.loss == pytest.approx(0, abs=1e-6)
    assert knowing.gain == pytest.approx(50, rel=0.01)  # behind another window it is sure of the wrong word
    assert knowing.context_gain == pytest.approx(0, abs=1e-6)  # little of its own text tells it as much
    blind = long_context(Copier(False), windows).tail
    assert blind.gain == blind.context_gain == 0
    assert blind.loss == pytest.approx(math.log(61))


class FirstToken(Copier):
    """A model that is sure of the window's first token, if it is an even one: what is far back is what helps."""

    def forward(self, input_ids, past_key_values, use_cache):
        found = super().forward(input_ids, past_key_values, use_cache)
        first = past_key_values.ids[0]
        if first % 2:
            found.logits.zero_()
        return found


def test_the_gain_from_context_is_what_more_of_the_same_text_is_worth(monkeypatch):
    """Windows begin with the even token that they end in; little context begins with an odd one."""
    from antiphase.lab.measures.long_context import measure as module

    monkeypatch.setattr(module, "DynamicCache", lambda config: type("Cache", (), {})())
    monkeypatch.setattr(module, "is_read_in_parts", lambda model: True)  # what is no model of transformers
    monkeypatch.setattr(module, "check_causal", lambda model, measured: None)  # the same
    monkeypatch.setattr(module, "forget_length", lambda model: None)
    windows = torch.full((4, 32), 7)
    windows[:, 0] = torch.tensor([2, 4, 6, 8])
    windows[:, -4:] = windows[:, :1]
    found = long_context(FirstToken(True), windows).tail
    assert found.loss == pytest.approx(0, abs=1e-6)
    assert found.little_loss == pytest.approx(math.log(61))
    assert found.context_gain == pytest.approx(math.log(61))
    assert found.context_gains == pytest.approx([math.log(61)] * 4)
    assert found.gain == pytest.approx(50, rel=0.01)  # confused by another's beginning: no gain from context
    opened = long_context(FirstToken(True), windows, opening=1).tail  # the even token opens a short context too
    assert opened.context_gain == pytest.approx(0, abs=1e-6)
    assert opened.loss == found.loss


def test_one_window_has_no_control(tiny_model):
    assert long_context(tiny_model("softmax"), torch.randint(1, 61, (1, 20))).tail is None
