"""Constrained decoding: equal to the same done one token at a time without any cache, whatever is shared."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.attention.continuations import Beginning
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.lab.scoring import constrained, likelihood
from antiphase.lab.scoring.beginnings import shared_beginning
from antiphase.lab.scoring.constrained import choose_options
from support.models import PADDING_COUNTS, chunked_model, probed


@torch.no_grad()
def by_hand(model, prompt, options):
    """One token at a time, everything anew."""
    written = []
    while True:
        logits = model(torch.tensor([[*prompt, *written]])).logits[0, -1]
        longer = [option for option in options if option[: len(written)] == written and len(option) > len(written)]
        if written in options and int(logits.argmax()) not in [option[len(written)] for option in longer]:
            return options.index(written)
        allowed = {option[len(written)] for option in longer}
        written = [*written, max(allowed, key=lambda token: logits[token].item())]
        if written in options and not any(o[: len(written)] == written and len(o) > len(written) for o in options):
            return options.index(written)


def asked_for(model, prompts, options):
    """Shapes of what the model reads, and the choices."""
    read = []
    handle = probed(model).register_forward_pre_hook(
        lambda module, args, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found = choose_options(model, prompts, options)
    handle.remove()
    return read, found


OPTIONS = [[3, 4], [3, 5, 6], [7], [8, 9], [8, 9, 10], [3, 5, 7, 11]]
APART, ONE_STEP, TWO_STEPS = [[3, 4, 5], [7], [8, 9]], [[3, 4], [3, 5]], [[3, 5, 6], [3, 5, 7]]


@pytest.mark.parametrize("shared", [0, 1, 9])
@pytest.mark.parametrize("kind", ["llama", "mistral", "softmax", "differential", "differential_v2"])
def test_equal_to_decoding_by_hand(kind, shared, any_model, monkeypatch):
    monkeypatch.setattr(likelihood, "CACHED_BYTES", 15_000)
    model = any_model(kind)
    begin = list(range(20, 20 + shared))
    rests = [torch.randint(30, 61, (length,)).tolist() for length in (1, 5, 3, 8, 3, 11, 2)]
    prompts = [begin + rest for rest in rests]
    seen, found = asked_for(model, prompts, [OPTIONS] * len(prompts))
    batches = [rows for rows, width in seen[1:] if width > 1]
    assert shared < 9 or (len(batches) > 1 and max(batches) > 1), seen
    assert found == [by_hand(model, prompt, OPTIONS) for prompt in prompts]


@pytest.mark.parametrize("kind", PADDING_COUNTS)
def test_where_padding_would_count_there_is_none(kind, any_model):
    model = any_model(kind)
    prompts = [[*range(20, 44), *torch.randint(30, 61, (length,)).tolist()] for length in (1, 12, 3, 20, 3, 5) * 4]
    options = [[first, second] for first in range(3, 9) for second in range(9, 30)]
    found = choose_options(model, prompts, [options] * len(prompts))
    assert found == [by_hand(model, prompt, options) for prompt in prompts]


@pytest.mark.parametrize("kind", ["llama", "mistral", "softmax", "differential", "differential_v2"])
def test_a_long_common_beginning_is_stored_once(kind, any_model, monkeypatch):
    """Where layers have no window; calibrated attention may depend on all tokens, and gets copies."""
    model, stored = any_model(kind), []
    monkeypatch.setattr(constrained, "LONG_BEGINNING", 4)
    continued = Beginning.continued
    monkeypatch.setattr(Beginning, "continued", lambda own, real: stored.append(own) or continued(own, real))
    prompts = [[*range(20, 60), *torch.randint(30, 61, (length,)).tolist()] for length in (1, 5, 3, 8, 3, 10, 2)]
    expected = [by_hand(model, prompt, OPTIONS) for prompt in prompts]
    assert choose_options(model, prompts, [OPTIONS] * len(prompts)) == expected
    assert len(set(stored)) == (kind != "mistral")
    assert len(set(expected)) > 1
    stored.clear()
    if kind == "softmax":
        with calibrated(model, CalibrationPlan({0: range(8)})):
            choose_options(model, prompts, [OPTIONS] * len(prompts))
        assert not stored


@pytest.mark.parametrize("chunk", [16, 42])
def test_chunks_of_attention_get_copies(chunk, monkeypatch):
    """The edge of a chunk lies in the beginning or after it."""
    monkeypatch.setattr(constrained, "LONG_BEGINNING", 4)
    model = chunked_model(chunk=chunk)
    prompts = [[*range(20, 60), *torch.randint(30, 61, (length,)).tolist()] for length in (5, 3, 8, 3, 10, 2)]
    found = choose_options(model, prompts, [OPTIONS] * len(prompts))
    assert found == [by_hand(model, prompt, OPTIONS) for prompt in prompts]


def test_a_prompt_without_finite_logits_spoils_no_other(any_model, monkeypatch):
    model, continued = any_model("llama"), []
    own = Beginning.continued
    monkeypatch.setattr(Beginning, "continued", lambda begin, real: continued.append(len(real)) or own(begin, real))
    prompts = [[*range(20, 60)] * 3 + [last] for last in (5, 60, 7)]
    expected = choose_options(model, prompts, [OPTIONS] * 3)
    with torch.no_grad():
        model.get_input_embeddings().weight[60] = float("nan")
    assert choose_options(model, prompts, [OPTIONS] * 3) == [expected[0], -1, expected[2]]
    assert max(continued) == 3


def test_attention_that_is_not_read_gets_copies_of_a_cache(any_model, monkeypatch):
    model = any_model("llama")
    prompts = [[*range(20, 60)] * 3 + [last] for last in (5, 6, 7)]
    expected = choose_options(model, prompts, [OPTIONS] * 3)

    def refuse(*given):
        raise ValueError("LlamaForCausalLM takes no position_ids")

    monkeypatch.setattr(Beginning, "__init__", refuse)
    assert choose_options(model, prompts, [OPTIONS] * 3) == expected


@pytest.mark.parametrize(
    ("shared", "rests", "read"),
    [
        (2, (6, 3, 6, 4), [(1, 5), (1, 6), (2, 8)]),
        (7, (6, 3, 6, 4), [(1, 7), (1, 3), (1, 4), (2, 6)]),
        (7, (20, 3, 3, 4), [(1, 7), (1, 20), (2, 3), (1, 4)]),  # one long prompt among short ones
    ],
)
@pytest.mark.parametrize("kind", ["llama", "differential"])
def test_long_prompts_are_not_padded_and_share_no_short_beginning(kind, shared, rests, read, any_model, monkeypatch):
    monkeypatch.setattr(constrained, "LONG_PROMPT", 2)
    model = any_model(kind)
    begin = list(range(20, 20 + shared))
    prompts = [begin + torch.randint(30, 61, (length,)).tolist() for length in rests]
    seen, found = asked_for(model, prompts, [APART] * 4)
    assert sorted(seen) == sorted(read)
    assert found == [by_hand(model, prompt, APART) for prompt in prompts]


def test_options_of_each_prompt(any_model):
    model = any_model("llama")
    prompts = [[5, 6, 7], [5, 6, 8, 9]]
    options = [[[1], [2, 3]], [[4, 5], [4, 6], [7]]]
    assert choose_options(model, prompts, options) == [
        by_hand(model, p, o) for p, o in zip(prompts, options, strict=True)
    ]


@pytest.mark.parametrize("kind", ["llama", "mistral", "differential"])
def test_the_output_of_free_decoding_is_chosen(kind, any_model):
    model = any_model(kind)
    prompts = [[20, 21, *torch.randint(30, 61, (length,)).tolist()] for length in (5, 2, 9, 5, 7, 3)]
    written = [
        model.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
        for prompt in prompts
    ]
    texts = [ids[0, len(prompt) :].tolist() for ids, prompt in zip(written, prompts, strict=True)]
    options = [list(text) for text in dict.fromkeys(map(tuple, texts))]
    assert len(options) > 1
    assert choose_options(model, prompts, [options] * len(prompts)) == [options.index(text) for text in texts]


@pytest.mark.parametrize(
    ("options", "steps"), [([APART] * 4, []), ([APART, ONE_STEP, TWO_STEPS, APART], [(2, 1), (1, 1)])]
)
@pytest.mark.parametrize("kind", ["llama", "mistral", "differential"])
def test_the_model_is_not_asked_for_what_is_decided(kind, options, steps, any_model):
    """Prompts are read once; a step holds only the rows for which several options are left."""
    model = any_model(kind)
    prompts = [[20, 21, *torch.randint(30, 61, (5,)).tolist()] for _ in range(4)]
    seen, found = asked_for(model, prompts, options)
    assert seen == [(1, 2), (4, 5), *steps]
    assert found == [by_hand(model, prompt, given) for prompt, given in zip(prompts, options, strict=True)]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_shared_beginning_is_the_longest_that_leaves_a_token(prompts):
    found = shared_beginning(prompts)
    assert all(prompt[:found] == prompts[0][:found] for prompt in prompts)
    assert found <= min(map(len, prompts)) - 1
    more = found + 1
    assert more > min(map(len, prompts)) - 1 or any(prompt[:more] != prompts[0][:more] for prompt in prompts)


def test_logits_that_are_not_finite_choose_nothing(any_model):
    model = any_model("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    assert choose_options(model, [[3, 4], [3, 5]], [OPTIONS] * 2) == [-1, -1]
