"""Recurrent networks: torch.nn's on single texts, by hand, and what each direction has read."""

import pytest
import torch

import antiphase
from antiphase.lab.lineage.models.recurrent import RecurrentForCausalLM, RecurrentModel


def network(**fields):
    sizes = {"vocab_size": 23, "embedding_size": 5, "hidden_size": 7, "num_hidden_layers": 2}
    model = RecurrentModel(antiphase.RecurrentConfig(**{**sizes, **fields})).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


every_network = pytest.mark.parametrize(
    ("cell", "bidirectional"), [(cell, both) for cell in ("rnn", "lstm") for both in (False, True)]
)


@pytest.mark.parametrize("layers", [1, 3])
@every_network
def test_a_batch_with_holes_gives_what_torch_gives_single_texts(cell, bidirectional, layers):
    """Padding on either side and in the middle; states, and the last one of each direction."""
    model = network(cell=cell, bidirectional=bidirectional, num_hidden_layers=layers)
    ids = torch.randint(0, 23, (5, 9))
    mask = torch.tensor(
        [[1] * 9, [0, 0, 1, 1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0, 1, 0], [0] * 9]
    )
    found = model(ids, attention_mask=mask)
    for row, seen, states, pooled in zip(ids, mask.bool(), found.last_hidden_state, found.pooler_output, strict=True):
        if not seen.any():  # nothing was read
            assert not pooled.any()
            assert not states.any()
            continue
        expected, final = model.network(model.embed_tokens(row[seen])[None])
        torch.testing.assert_close(states[seen], expected[0], rtol=1e-12, atol=1e-12)
        assert not states[~seen].any()
        final = final[0] if cell == "lstm" else final
        last = [final[-2, 0], final[-1, 0]] if bidirectional else [final[-1, 0]]
        torch.testing.assert_close(pooled, torch.cat(last), rtol=1e-12, atol=1e-12)


def elman_by_hand(model, vectors):
    """h(t) = tanh(W x(t) + b + U h(t-1) + c)."""
    cell, state = model.network, torch.zeros(7, dtype=torch.float64)
    for vector in vectors:
        new = cell.weight_ih_l0 @ vector + cell.bias_ih_l0
        state = torch.tanh(new + cell.weight_hh_l0 @ state + cell.bias_hh_l0)
    return state


def lstm_by_hand(model, vectors):
    """Input, forget and output gates, and c(t) = f c(t-1) + i g (Gers et al., 2000)."""
    cell, state, memory = model.network, torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    for vector in vectors:
        gates = cell.weight_ih_l0 @ vector + cell.bias_ih_l0 + cell.weight_hh_l0 @ state + cell.bias_hh_l0
        enter, keep, new, show = gates.chunk(4)
        memory = torch.sigmoid(keep) * memory + torch.sigmoid(enter) * torch.tanh(new)
        state = torch.sigmoid(show) * torch.tanh(memory)
    return state


@pytest.mark.parametrize(("cell", "by_hand"), [("rnn", elman_by_hand), ("lstm", lstm_by_hand)])
def test_the_networks_are_those_of_the_papers(cell, by_hand):
    model = network(cell=cell, num_hidden_layers=1)
    ids = torch.randint(0, 23, (1, 6))
    torch.testing.assert_close(model(ids).pooler_output[0], by_hand(model, model.embed_tokens(ids[0])))


def language_model(cell, **fields):
    config = antiphase.RecurrentConfig(
        vocab_size=23, embedding_size=6, hidden_size=9, num_hidden_layers=2, pad_token_id=0, cell=cell, **fields
    )
    model = RecurrentForCausalLM(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def half_padded():
    ids, mask = torch.randint(1, 23, (3, 6)), torch.ones(3, 6, dtype=torch.int64)
    ids[0, :2], mask[0, :2] = 0, 0
    return ids, mask


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_a_text_in_pieces_gives_what_the_whole_gives(cell):
    model, (ids, mask) = language_model(cell), half_padded()
    whole = model(ids, attention_mask=mask, use_cache=True)
    assert model(ids).past_key_values is None
    state, found = None, []
    for begin, end in ((0, 1), (1, 4), (4, 6)):  # the first text's first piece is padding alone
        part = model(ids[:, begin:end], attention_mask=mask[:, begin:end], past_key_values=state, use_cache=True)
        state = part.past_key_values
        found.append(part.logits)
    seen = mask.bool()
    torch.testing.assert_close(torch.cat(found, dim=1)[seen], whole.logits[seen], rtol=1e-12, atol=1e-12)
    assert len(state) == (2 if cell == "lstm" else 1)
    torch.testing.assert_close(state, whole.past_key_values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}], ids=["greedy", "beams"])
@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_generation_with_a_state_reads_each_token_once_and_says_the_same(cell, options, monkeypatch):
    model, (ids, mask) = language_model(cell), half_padded()
    read = []
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda given, **kw: read.append(given.shape[1]) or forward(given, **kw))
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None, **options}
    said = model.generate(ids, **options)
    assert read == [6] + [1] * 7
    assert torch.equal(said, model.generate(ids, use_cache=False, **options))
    assert read[8:] == list(range(6, 14))


def test_a_state_is_refused_where_the_text_is_read_from_the_end():
    model = network(bidirectional=True)
    assert model(torch.ones(1, 3, dtype=torch.int64), use_cache=True).past_key_values is None
    with pytest.raises(ValueError, match="past_key_values cannot be used in a bidirectional network"):
        model(torch.ones(1, 3, dtype=torch.int64), past_key_values=(torch.zeros(4, 1, 7),) * 2)


@every_network
def test_texts_of_one_length_are_not_packed_and_give_the_same(cell, bidirectional, monkeypatch):
    """Beside a shorter text, the same texts are; packed, a plain network takes much longer."""
    model = network(cell=cell, bidirectional=bidirectional)
    ids = torch.randint(0, 23, (4, 6))
    mask = torch.ones(4, 6)
    mask[3, 4:] = 0
    packed = model(ids, attention_mask=mask)
    monkeypatch.setattr("antiphase.lab.lineage.models.recurrent.pack_padded_sequence", None)
    for given in (None, torch.ones(3, 6)):
        plain = model(ids[:3], attention_mask=given)
        for name in ("last_hidden_state", "pooler_output"):
            torch.testing.assert_close(plain[name], packed[name][:3], rtol=1e-12, atol=1e-12)
