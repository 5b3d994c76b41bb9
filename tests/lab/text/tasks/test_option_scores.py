"""Options of a prompt are scored as by plain forward passes, with gradients, under calibration, and step by step."""

import pytest
import torch

from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.lab.scoring import likelihood
from antiphase.lab.scoring.beginnings import counts_padding, is_read_in_parts
from antiphase.lab.scoring.likelihood import generated_tokens, score_options
from support.models import PADDING_COUNTS, alone, probed

PARTS = ["gpt_neo", "mpt"]
"""Models in which padding counts, but not the length."""
PROMPTS = [[5, 6, 7, 8, 9], [11, 12], [21, 22, 23]]
OPTIONS = [[[3], [4, 5, 6]], [[7, 8], [7, 9], [3, 4, 5, 6]], [[30, 31], [30]]]


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
@pytest.mark.parametrize("cached_bytes", [1 << 30, 4000])
def test_options_are_scored_as_by_plain_forward_passes(kind, cached_bytes, tiny_model, monkeypatch):
    monkeypatch.setattr(likelihood, "CACHED_BYTES", cached_bytes)
    model, rows = probed(tiny_model(kind)), []
    hook = model.register_forward_pre_hook(
        lambda module, args, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    with torch.no_grad():
        found = score_options(model, PROMPTS, OPTIONS)
    hook.remove()
    assert len(rows) > 2 if cached_bytes == 4000 else len(rows) == 2, rows
    for prompt, options, scores in zip(PROMPTS, OPTIONS, found, strict=True):
        expected = torch.stack([alone(model, prompt, option) for option in options])
        torch.testing.assert_close(scores.log_likelihood, expected.float(), rtol=1e-4, atol=1e-4)
        for option, greedy in zip(options, scores.is_greedy, strict=True):
            written = generated_tokens(model, [prompt], longest=len(option))[0]
            assert bool(greedy) == (written == option)


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "llama", "gpt2", "mistral", *PARTS])
@pytest.mark.parametrize("cached_bytes", [1 << 30, 4000])
def test_a_common_beginning_is_read_once(kind, cached_bytes, any_model, monkeypatch):
    monkeypatch.setattr(likelihood, "CACHED_BYTES", cached_bytes)
    model, read = probed(any_model(kind)), []
    beginning = list(range(30, 50))
    prompts = [beginning + rest for rest in PROMPTS]
    assert is_read_in_parts(model)
    hook = model.register_forward_pre_hook(
        lambda module, args, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found = score_options(model, prompts, OPTIONS, shared=len(beginning))
    hook.remove()
    assert read[0] == (1, 20)
    assert {(1, 5), (1, 2), (1, 3)} <= set(read[1:])
    assert max(width for _, width in read[1:]) == 5
    for prompt, options, scores in zip(prompts, OPTIONS, found, strict=True):
        expected = torch.stack([alone(model, prompt, option) for option in options])
        torch.testing.assert_close(scores.log_likelihood, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", PADDING_COUNTS)
@torch.no_grad()
def test_prompts_in_which_padding_would_count(kind, any_model):
    model = any_model(kind)
    prompts = [*PROMPTS[:2], [*range(30, 50), *PROMPTS[2]]]
    options = [[[3], [4]], [[7], [9]], [[30], [31]]]
    assert is_read_in_parts(model) == (kind in PARTS)
    assert counts_padding(model)
    for prompt, listed, scores in zip(prompts, options, score_options(model, prompts, options), strict=True):
        logs = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        torch.testing.assert_close(scores.log_likelihood, logs[torch.tensor(listed)[:, 0]], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_prompts_longer_than_those_from_which_rope_changes(any_model, monkeypatch):
    """A probe of a few tokens does not come so far: the configuration says so."""
    monkeypatch.setitem(PADDING_COUNTS["longrope"].rope_parameters, "original_max_position_embeddings", 40)
    monkeypatch.setattr(PADDING_COUNTS["longrope"], "original_max_position_embeddings", 40)
    model = any_model("longrope")
    prompts = [[*range(3, 3 + length)] for length in (36, 44, 52)]
    assert not is_read_in_parts(model)
    for prompt, scores in zip(prompts, score_options(model, prompts, [[[3], [4]]] * 3), strict=True):
        logs = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        torch.testing.assert_close(scores.log_likelihood, logs[3:5], rtol=1e-4, atol=1e-4)


def test_logits_of_options_are_bounded_in_memory(tiny_model, monkeypatch):
    """However many options there are, and however large the vocabulary is."""
    model = probed(tiny_model("softmax"))
    size = 2 * 3 * model.config.vocab_size  # of two beginnings of at most three tokens
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", size)
    sizes = []
    hook = model.register_forward_hook(lambda module, given, output: sizes.append(output.logits.numel()))
    options = [[[token, 5, 6, 7] for token in range(3, 13)], [[7, 8], [7, 9]], [[30, 31], [30]]]
    with torch.no_grad():
        found = score_options(model, PROMPTS, options)
    hook.remove()
    assert len(sizes) == 1 + 6  # the prompts, and 12 beginnings
    assert max(sizes) <= size
    for prompt, listed, scores in zip(PROMPTS, options, found, strict=True):
        expected = torch.stack([alone(model, prompt, option) for option in listed])
        torch.testing.assert_close(scores.log_likelihood, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [OPTIONS, [[[3], [4]], [[5]], [[6]]]], ids=["several tokens", "one token"])
def test_options_have_gradients(options, tiny_model):
    model = tiny_model("softmax")
    found = score_options(model, PROMPTS, options)
    sum(scores.log_likelihood.sum() for scores in found).backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    expected = torch.autograd.grad(
        sum(alone(model, p, o) for p, os in zip(PROMPTS, options, strict=True) for o in os),
        model.get_input_embeddings().weight,
    )[0]
    torch.testing.assert_close(model.get_input_embeddings().weight.grad, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["prompt", "running"])
@pytest.mark.parametrize("cached_bytes", [1 << 30, 4000])
def test_options_choose_no_sinks(mode, cached_bytes, tiny_model, monkeypatch):
    """Calibrated, a prompt's options get what each gets alone, though they share copies of one cache."""
    monkeypatch.setattr(likelihood, "CACHED_BYTES", cached_bytes)
    model = tiny_model("softmax").double()
    plan = CalibrationPlan({0: range(8), 1: [2], 2: range(8)}, alpha=1.2, mode=mode)
    with torch.no_grad(), calibrated(model, plan):
        together = score_options(model, PROMPTS, OPTIONS)
        for prompt, options, scores in zip(PROMPTS, OPTIONS, together, strict=True):
            single = [score_options(model, [prompt], [[option]])[0].log_likelihood[0] for option in options]
            torch.testing.assert_close(scores.log_likelihood, torch.stack(single), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        plain = score_options(model, PROMPTS, OPTIONS)
    assert any(not torch.allclose(a.log_likelihood, b.log_likelihood) for a, b in zip(plain, together, strict=True))


@torch.no_grad()
def test_stepwise_is_what_decoding_sees(tiny_model):
    """Where a call's own queries choose the sinks, the later tokens of an option must not be among them."""
    model = tiny_model("softmax").double()
    plan = CalibrationPlan({0: range(8), 1: range(8)}, alpha=1.2, mode="paper")
    with calibrated(model, plan):
        found = score_options(model, PROMPTS, OPTIONS, stepwise=True)
        whole = score_options(model, PROMPTS, OPTIONS)
        for prompt, options, scores in zip(PROMPTS, OPTIONS, found, strict=True):
            for option, likely in zip(options, scores.log_likelihood, strict=True):
                out = model(torch.tensor([prompt]), use_cache=True)
                total = 0.0
                for token in option:
                    total += out.logits[0, -1].log_softmax(-1)[token].item()
                    out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
                assert likely.item() == pytest.approx(total, abs=1e-5)
    assert any(not torch.allclose(a.log_likelihood, b.log_likelihood) for a, b in zip(found, whole, strict=True))
    plain, stepped = (score_options(model, PROMPTS, OPTIONS, stepwise=stepwise) for stepwise in (False, True))
    for one, other in zip(plain, stepped, strict=True):
        torch.testing.assert_close(one.log_likelihood, other.log_likelihood, rtol=1e-5, atol=1e-5)


def test_generation_is_greedy_whatever_the_model_prefers(tiny_model):
    model = tiny_model("softmax")
    plain = generated_tokens(model, PROMPTS, longest=12)
    model.generation_config.repetition_penalty = 50.0
    assert generated_tokens(model, PROMPTS, longest=12) == plain
    assert model.generation_config.repetition_penalty == 50.0
    assert any(len(set(tokens)) < len(tokens) for tokens in plain)  # a penalty would have changed these


@pytest.mark.parametrize("mode", ["prompt", "paper", "running"])
def test_calibrated_answers_depend_neither_on_chunks_nor_on_the_batch(mode, tiny_model, monkeypatch):
    """The sinks are those of the whole prompt, also where an unchanged model reads a long prompt in chunks."""
    model = tiny_model("softmax").double()
    prompts = [torch.randint(3, 61, (length,)).tolist() for length in (12, 15, 22, 40)]
    with calibrated(model, CalibrationPlan({layer: range(8) for layer in range(2)}, alpha=1.2, beta=0.01, mode=mode)):
        whole = generated_tokens(model, prompts, longest=12)
        monkeypatch.setattr(likelihood, "CHUNK", 16)
        assert generated_tokens(model, prompts, longest=12) == whole
        assert [generated_tokens(model, [prompt], longest=12)[0] for prompt in prompts] == whole
    assert generated_tokens(model, prompts, longest=12) != whole
