"""Texts that share a stored beginning, against the same texts read whole, in fp64."""

import pytest
import torch
from transformers import DynamicCache

from antiphase.attention import continuations
from antiphase.attention.continuations import Beginning
from support.models import FOREIGN, chunked_model, foreign_model

BEGINNING = list(range(20, 29))
RESTS = [[3, 4, 5, 6], [7], [8, 9, 10]]
OWN = {
    "softmax": {"attention_type": "softmax"}, "gate": {"attention_type": "softmax", "output_gate": True},
    "sink logits": {"attention_type": "softmax", "sink_logits": True}, "V1": {"attention_type": "differential"},
    "V1 with shared noise": {"attention_type": "differential", "num_key_value_heads": 4, "num_noise_heads": 2},
    "V2": {"attention_type": "differential_v2"}, "V2 across": {"attention_type": "differential_v2_across"},
}  # fmt: skip
WINDOWED = ["mistral"]


@pytest.fixture
def build(tiny_model):
    def make(name):
        if name in FOREIGN:
            return foreign_model(name, "sdpa").double()
        fields = dict(OWN[name])
        return tiny_model(fields.pop("attention_type"), **fields).double()

    return make


def padded():
    """Token ids, which of them are real, and their positions after the beginning."""
    ids = torch.zeros(len(RESTS), 4, dtype=torch.int64)
    for row, rest in enumerate(RESTS):
        ids[row, : len(rest)] = torch.tensor(rest)
    real = torch.arange(4) < torch.tensor([[len(rest)] for rest in RESTS])
    return ids, real, len(BEGINNING) + torch.arange(4).expand(3, -1)


@torch.no_grad()
def whole(model, tokens):
    """Logits after the last of these tokens, which follow the beginning."""
    return model(torch.tensor([[*BEGINNING, *tokens]])).logits[0, -1]


@pytest.mark.parametrize("name", [*OWN, *(name for name in FOREIGN if name not in WINDOWED)])
@torch.no_grad()
def test_texts_are_read_as_if_each_were_whole(build, name):
    """Padding, and two further tokens with a cache that holds no token of the beginning, one text left out."""
    model, (ids, real, places) = build(name), padded()
    beginning, cache = Beginning(model, BEGINNING), DynamicCache(config=model.config)
    with beginning.continued(real):
        logits = model(ids, position_ids=places, past_key_values=cache, use_cache=True).logits
    for row, rest in enumerate(RESTS):
        for place in range(len(rest)):
            torch.testing.assert_close(logits[row, place], whole(model, rest[: place + 1]), rtol=1e-5, atol=1e-6)
    kept = torch.tensor([0, 2])
    cache.batch_select_indices(kept)
    real, written = real[kept], [list(RESTS[0]), list(RESTS[2])]
    for further in ([11, 12], [13, 14]):
        real = torch.cat([real, torch.ones(2, 1, dtype=torch.bool)], dim=1)
        positions = torch.tensor([[len(BEGINNING) + len(tokens)] for tokens in written])
        with beginning.continued(real):
            logits = model(
                torch.tensor([[token] for token in further]), position_ids=positions, past_key_values=cache,
                use_cache=True,
            ).logits  # fmt: skip
        for row, token in enumerate(further):
            written[row].append(token)
            torch.testing.assert_close(logits[row, -1], whole(model, written[row]), rtol=1e-5, atol=1e-6)


def test_layers_that_do_not_see_all_earlier_tokens_are_refused(build):
    """A window, however short the text is, and chunks once there is more than one."""
    with pytest.raises(ValueError, match="layer 0 of MistralForCausalLM does not see all earlier tokens"):
        Beginning(build("mistral"), BEGINNING[:3])
    with pytest.raises(ValueError, match="layer 0 of Llama4ForCausalLM does not see all earlier tokens"):
        Beginning(chunked_model(chunk=4), BEGINNING)


def test_tokens_at_once_waste_a_fifth_of_attention_at_most_and_fit_in_memory(build, monkeypatch):
    beginning = Beginning(build("softmax"), [3] * 43)
    assert beginning.tokens_at_once == 10
    maps = beginning._calls[0].query.shape[1]
    for tokens in range(1, 11):
        monkeypatch.setattr(continuations, "NUMBERS_AT_ONCE", maps * tokens * (43 + tokens))
        assert beginning.tokens_at_once == tokens
        monkeypatch.setattr(continuations, "NUMBERS_AT_ONCE", maps * tokens * (43 + tokens) - maps)
        assert beginning.tokens_at_once == tokens - 1
