"""The paper's other rules, against the same on whole maps by hand, in a prefill and in the steps after it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, MistralConfig

from antiphase.attention.forward_pass import STATES
from antiphase.attention.hooks import wrapped_attention
from antiphase.base.errors import InputError
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.calibration.variants import varied
from antiphase.lab.scoring.likelihood import score_options

N, ALPHA, BETA, HEADS = 24, 1.6, 0.3, (0, 2)
QUESTION = (15, 24)


def build():
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                         num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64)  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 6 if weight.dim() > 1 else 1
    return model


def by_hand(rule, row, sinks, question, temperature):
    """One row of weights (M,) after a rule, for sinks and question as sets of keys."""
    weights = row.clone()
    keys = [j for j in range(len(row)) if row[j] > 0]
    if rule == "first-token":
        sinks = {0}
    mine = [j for j in keys if j in sinks]
    rest = [j for j in keys if j not in sinks]
    if rule == "temperature":
        weights[1:] *= temperature
        return weights / weights.sum()
    if rule == "inverse":
        mine, rest = rest, mine
    receivers = [j for j in rest if rule not in ("question",) or j in question]
    if not receivers or sum(row[j] for j in receivers) == 0:
        return weights
    freed = sum((1 - BETA) * row[j] for j in mine)
    total = sum(row[j] for j in receivers)
    for j in mine:
        weights[j] = BETA * row[j]
    for j in receivers:
        weights[j] += freed / len(receivers) if rule == "uniform" else freed * row[j] / total
    return weights


@pytest.mark.parametrize("rule", ["proportional", "uniform", "question", "inverse", "temperature", "first-token"])
@torch.no_grad()
def test_rules(rule):
    model = build()
    ids = torch.randint(1, 61, (1, N + 3))
    sinks = {}
    maps = []

    def eager(function):
        def attend(module, query, key, value, attention_mask, **kwargs):
            keys, values = (t.repeat_interleave(2, dim=1) for t in (key, value))
            length, count = query.shape[2], keys.shape[2]
            scores = query @ keys.transpose(-1, -2) * kwargs["scaling"]
            hidden = torch.ones(length, count, dtype=torch.bool).triu(count - length + 1)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            for head in HEADS:
                if length > 1:
                    received = weights[0, head].sum(0) / torch.arange(count, 0, -1)
                    sinks[head] = {j for j in range(1, count) if received[j] > ALPHA / count}
                    maps.append(len(sinks[head]))
                for row in range(length):
                    weights[0, head, row] = by_hand(rule, weights[0, head, row], sinks[head], range(*QUESTION), 1.3)
            return (weights @ values).transpose(1, 2), None

        return attend

    def pieces():
        cache = DynamicCache()
        parts = [slice(0, N), slice(N, N + 1), slice(N + 1, N + 2), slice(N + 2, N + 3)]
        return torch.cat(
            [model.model(input_ids=ids[:, part], past_key_values=cache, use_cache=True).last_hidden_state
             for part in parts], dim=1,
        )  # fmt: skip

    with wrapped_attention(model, eager):
        expected = pieces()
    assert min(maps) > 0, "without a sink the rules would say nothing"
    plan = CalibrationPlan({0: HEADS}, alpha=ALPHA, beta=BETA)
    spans = {tuple(ids[0, :N].tolist()): {"question": QUESTION}}
    with varied(model, plan, rule, temperature=1.3, spans=spans):
        found = pieces()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    plain = pieces()
    assert not torch.allclose(found, plain, atol=1e-4)
    with calibrated(model, plan):
        ordinary = pieces()
    assert torch.allclose(found, ordinary, atol=1e-8) == (rule == "proportional")


@torch.no_grad()
def test_random_tokens_are_as_many_and_kept(monkeypatch):
    from antiphase.calibration import variants

    seen = []
    real = variants.redistribute
    monkeypatch.setattr(variants, "redistribute", lambda w, s, *, beta: (seen.append(s), real(w, s, beta=beta))[1])
    model = build()
    ids = torch.randint(1, 61, (1, N + 1))
    plan = CalibrationPlan({0: HEADS}, alpha=ALPHA, beta=BETA)

    def chosen(rule, seed=0):
        seen.clear()
        with varied(model, plan, rule, seed=seed):
            cache = DynamicCache()
            model.model(input_ids=ids[:, :N], past_key_values=cache, use_cache=True)
            model.model(input_ids=ids[:, N:], past_key_values=cache, use_cache=True)
        return [one.flatten(0, 3) for one in seen]

    sinks, drawn, other = chosen("proportional"), chosen("random-tokens"), chosen("random-tokens", seed=1)
    assert torch.equal(drawn[0].sum(-1), sinks[0].sum(-1))
    assert not (drawn[0] & sinks[0]).any()
    assert not drawn[0][:, 0].any()  # the first token is none
    assert torch.equal(drawn[1][:, :N], drawn[0])  # a step keeps the prompt's draw
    assert not drawn[1][:, N].any()
    assert not torch.equal(drawn[0], other[0])


def build_window():
    torch.manual_seed(3)
    config = MistralConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                           num_key_value_heads=2, intermediate_size=48, sliding_window=8)  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 6 if weight.dim() > 1 else 1
    return model


@pytest.mark.parametrize("rule", ["question", "random-tokens", "proportional"])
@torch.no_grad()
def test_steps_know_which_keys_a_window_dropped(rule):
    """A cache that drops keys outside of the window gives what one that keeps them gives."""
    model = build_window()
    ids = torch.randint(1, 61, (1, 24))
    spans = {tuple(ids[0, :20].tolist()): {"question": (14, 20)}}
    found = {}
    with varied(model, CalibrationPlan({0: HEADS}, alpha=1.1, beta=BETA), rule, spans=spans):
        for cache in (DynamicCache(), DynamicCache(config=model.config)):
            found[cache] = torch.cat(
                [model.model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state
                 for part in ids.split([20, 1, 1, 1, 1], dim=1)], dim=1,
            )  # fmt: skip
            held = cache.layers[0].keys.shape[2]
            assert held == (24 if len(found) == 1 else 7)
    torch.testing.assert_close(*found.values(), rtol=1e-9, atol=1e-9)
    plain = model.model(input_ids=ids).last_hidden_state
    assert not torch.allclose(plain[:, 20:], found[cache][:, 20:], atol=1e-4)


@pytest.mark.parametrize("rule", ["question", "random-tokens"])
@torch.no_grad()
def test_tokens_in_the_place_of_cropped_ones_are_not_marked(rule):
    """They get what they get after the shorter prompt with its own marks."""
    model, ids, more = build(), torch.randint(1, 61, (1, N)), torch.randint(1, 61, (1, 9))
    spans = {tuple(ids[0].tolist()): {"question": QUESTION}}
    with varied(model, CalibrationPlan({0: HEADS}, alpha=ALPHA, beta=BETA), rule, spans=spans):
        cropped, whole = DynamicCache(), DynamicCache()
        for cache in (cropped, whole):
            model.model(input_ids=ids, past_key_values=cache, use_cache=True)
        cropped.crop(-7)
        (state,) = getattr(whole, STATES).values()
        for name, marks in list(state.kept.items()):
            state.kept[name] = marks[..., : N - 7]
        for layer in whole.layers:
            layer.keys, layer.values = layer.keys[:, :, : N - 7], layer.values[:, :, : N - 7]
        found, expected = (
            model.model(input_ids=more, past_key_values=cache, use_cache=True).last_hidden_state
            for cache in (cropped, whole)
        )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_in_mode_paper_every_call_draws_as_many_random_tokens_as_it_has_sinks(monkeypatch):
    from antiphase.calibration import variants

    seen = []
    drawn = variants._Varied._drawn

    def watched(self, call, maps, found):
        seen.append((found, drawn(self, call, maps, found), maps))
        return seen[-1][1]

    monkeypatch.setattr(variants._Varied, "_drawn", watched)
    model, cache = build(), DynamicCache()
    ids = torch.randint(1, 61, (2, N + 6))
    with varied(model, CalibrationPlan({0: HEADS}, alpha=ALPHA, beta=BETA, mode="paper"), "random-tokens"):
        for part in ids.split([N, 1, 1, 1, 1, 1, 1], dim=1):
            model.model(input_ids=part, past_key_values=cache, use_cache=True)
    assert len(seen) == 7
    assert len({tuple(sinks.sum(-1).flatten().tolist()) for sinks, _, _ in seen}) > 1
    for sinks, others, maps in seen:
        assert torch.equal(others.sum(-1), sinks.sum(-1))
        assert not (others & (sinks | ~maps.chosen)).any()
        assert not others[..., 0].any()
    assert any(others[..., N:].any() for _, others, _ in seen)


@pytest.mark.parametrize("rule", ["question", "random-tokens"])
@torch.no_grad()
def test_a_cache_of_unknown_tokens_is_refused(rule):
    model, cache = build(), DynamicCache()
    ids = torch.randint(1, 61, (1, N))
    model.model(input_ids=ids, past_key_values=cache, use_cache=True)
    with (
        varied(model, CalibrationPlan({0: HEADS}, mode="paper"), rule),
        pytest.raises(ValueError, match=f"the rule {rule} must see the complete sequence"),
    ):
        model.model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("mode", ["prompt", "paper"])
@torch.no_grad()
def test_each_prompt_has_its_own_random_tokens(mode):
    """What else is in the batch, and padding, change nothing, neither for the prompt nor for steps."""
    model = build()
    plan = CalibrationPlan({0: HEADS}, alpha=ALPHA, beta=BETA, mode=mode)
    ids = torch.randint(1, 61, (2, N), generator=torch.Generator().manual_seed(3))
    options = [[[7], [8, 9, 10, 11]], [[12, 13, 14]]]
    prompts = [ids[0].tolist(), torch.randint(1, 61, (N + 5,)).tolist()]
    with varied(model, plan, "random-tokens"):
        together = score_options(model, prompts, options, stepwise=mode == "paper")
        for prompt, listed, scores in zip(prompts, options, together, strict=True):
            (alone,) = score_options(model, [prompt], [listed], stepwise=mode == "paper")
            torch.testing.assert_close(scores.log_likelihood, alone.log_likelihood, rtol=1e-5, atol=1e-5)
        alone = model.model(input_ids=ids[:1]).last_hidden_state
        padded = torch.cat([torch.zeros(2, 5, dtype=torch.int64), ids], dim=1)
        mask = torch.ones(2, N + 5, dtype=torch.int64)
        mask[:, :5] = 0
        mask[1] = 1  # the other one is longer
        together = model.model(input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    torch.testing.assert_close(together.last_hidden_state[:1, 5:], alone, rtol=1e-9, atol=1e-9)


def test_refusals():
    model = build()
    plan = CalibrationPlan({0: [0]})
    with pytest.raises(InputError, match="rule must be one of"), varied(model, plan, "none"):
        pass
    with (
        pytest.raises(InputError, match="other rules need"),
        varied(model, CalibrationPlan({0: [0]}, mode="running"), "uniform"),
    ):
        pass
    with (
        pytest.raises(InputError, match="does not know the parts of this prompt"),
        varied(model, plan, "question"),
        torch.no_grad(),
    ):
        model(torch.randint(1, 61, (1, 9)))
