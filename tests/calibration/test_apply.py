"""Calibrated models against an eager procedure that holds whole maps and walks through sequences one by one."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import transformers as hf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import antiphase
from antiphase.attention.forward_pass import STATES
from antiphase.attention.hooks import observed, wrapped_attention
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.calibration.variants import varied
from antiphase.lab.measures.quantization.logits import quantized_logits
from support.eager_calibration import Eager

LAYERS, MAPS, N = 2, 4, 40
SIZES = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": MAPS,
    "intermediate_size": 48, "max_position_embeddings": 128,
}  # fmt: skip
ALPHA, BETA = 2.0, 0.3

GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": LAYERS, "n_head": MAPS, "n_positions": 128, "attn_pdrop": 0.0}
CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "mistral": lambda: hf.MistralConfig(**GROUPED, sliding_window=16),
    "qwen2": lambda: hf.Qwen2Config(**SIZES, num_key_value_heads=4),
    "gpt2": lambda: hf.GPT2Config(**GPT2),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SIZES),
    "diffllama": lambda: hf.DiffLlamaConfig(**SIZES, num_key_value_heads=4),
    "softmax": lambda: antiphase.AntiphaseConfig(**GROUPED, attention_type="softmax"),
    "differential": lambda: antiphase.AntiphaseConfig(**GROUPED, attention_type="differential"),
    "differential_v2": lambda: antiphase.AntiphaseConfig(**SIZES, attention_type="differential_v2"),
    **{f"differential_{name}": lambda name=name: antiphase.differential_config(CONFIGS[name]())
       for name in ("llama", "mistral", "gpt2")},
}  # fmt: skip
NAMES = list(CONFIGS)


def build(name):
    torch.manual_seed(5)
    config = hf.BertConfig(**SIZES) if name == "bert" else CONFIGS[name]()
    kind = hf.AutoModel if name == "bert" else hf.AutoModelForCausalLM
    model = kind.from_config(config).double().eval()
    with torch.no_grad():  # attention that is far from uniform
        for field, weight in model.named_parameters():
            is_sharp = field.endswith(("query.weight", "key.weight"))  # norms before them make up for the others
            weight *= 1 if weight.dim() == 1 else 16 if is_sharp else 4
    return model


def padded(side, length=N):
    ids = torch.randint(1, 61, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if side == "left":
        mask[1, :9] = 0
    if side == "right":
        mask[1, -9:] = 0
    if side == "middle":  # a prompt padded on the right, and what came after it
        mask[1, 9:18] = 0
    return ids, mask


def inputs_of(side):
    ids, mask = padded(side)
    return {"input_ids": ids} if side == "none" else {"input_ids": ids, "attention_mask": mask}, mask.bool()


def hidden(model, **inputs):
    return model.base_model(**inputs).last_hidden_state


@pytest.mark.grid
@pytest.mark.parametrize("side", ["none", "left", "right", "middle"])
@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@pytest.mark.parametrize("name", NAMES)
def test_one_forward_equals_the_eager_procedure(name, mode, side):
    check_one_forward(name, mode, side)


@pytest.mark.grid
@pytest.mark.parametrize("side", ["none", "left", "right", "middle"])
@pytest.mark.parametrize("mode", ["paper", "prompt"])
def test_one_forward_of_an_encoder_equals_the_eager_procedure(mode, side):
    check_one_forward("bert", mode, side)


@torch.no_grad()
def check_one_forward(name, mode, side):
    model = build(name)
    inputs, real = inputs_of(side)
    for heads in ({0: [1], 1: [0, 3]}, {layer: list(range(MAPS)) for layer in range(LAYERS)}):
        plan = CalibrationPlan(heads=heads, alpha=ALPHA, beta=BETA, mode=mode)
        plain = hidden(model, **inputs, use_cache=False)
        with calibrated(model, plan):
            found = hidden(model, **inputs, use_cache=False)
        with wrapped_attention(model, Eager(plan, real).wrap):
            expected = hidden(model, **inputs, use_cache=False)
        torch.testing.assert_close(found[real], expected[real], rtol=1e-9, atol=1e-9)
        assert (found[real] - plain[real]).abs().max() > 1e-3  # something was calibrated
        torch.testing.assert_close(hidden(model, **inputs, use_cache=False), plain)  # and is no longer


@pytest.mark.grid
@pytest.mark.parametrize("side", ["none", "left", "middle"])
@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_steps_with_a_cache_equal_the_eager_procedure_step_by_step(name, mode, side):
    model = build(name)
    ids, mask = padded(side)
    real = mask.bool()
    plan = CalibrationPlan(heads={0: [1], 1: [0, 3]}, alpha=ALPHA, beta=BETA, mode=mode)
    pieces = [slice(0, 21), slice(21, 22), slice(22, 23), slice(23, 31), slice(31, 32)]

    def steps(advance):
        cache, found = hf.DynamicCache(config=model.config), []
        for piece in pieces:
            inputs = {} if side == "none" else {"attention_mask": mask[:, : piece.stop]}
            out = model.base_model(input_ids=ids[:, piece], past_key_values=cache, use_cache=True, **inputs)
            found.append(out.last_hidden_state)
            advance(piece.stop)
        return torch.cat(found, dim=1)

    with calibrated(model, plan):
        found = steps(lambda stop: None)
    eager = Eager(plan, real)
    with wrapped_attention(model, eager.wrap):
        expected = steps(lambda stop: setattr(eager, "past", stop))
    kept = real[:, : pieces[-1].stop]
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-9, atol=1e-9)
    if mode == "running":  # a cache changes nothing, and later tokens change nothing
        whole = {} if side == "none" else {"attention_mask": mask}
        with calibrated(model, plan):
            full = hidden(model, input_ids=ids, use_cache=False, **whole)[:, : pieces[-1].stop]
        torch.testing.assert_close(found[kept], full[kept], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("change", "rows"), [
    (lambda cache: cache.reorder_cache(torch.tensor([1, 1])), [1, 1]),
    (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
    (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
], ids=["reorder", "select", "repeat"])  # fmt: skip
@pytest.mark.parametrize("mode", ["prompt", "running"])
@torch.no_grad()
def test_sequences_take_their_sinks_along(mode, change, rows):
    """Whatever a cache does to its sequences, a step after it is that of a cache filled with these sequences."""
    model = build("llama")
    ids, mask = padded("left", 17)
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, alpha=ALPHA, beta=BETA, mode=mode)
    cache = hf.DynamicCache(config=model.config)
    with calibrated(model, plan):
        model(input_ids=ids, attention_mask=mask, past_key_values=cache)
        change(cache)
        longer = torch.cat([mask[rows], torch.ones(len(rows), 1, dtype=mask.dtype)], 1)
        found = model(input_ids=ids[rows, -1:], attention_mask=longer, past_key_values=cache).logits
        fresh = hf.DynamicCache(config=model.config)
        model(input_ids=ids[rows], attention_mask=mask[rows], past_key_values=fresh)
        expected = model(input_ids=ids[rows, -1:], attention_mask=longer, past_key_values=fresh).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_room_for_steps_is_made_again_when_it_is_used_up(monkeypatch):
    model = build("llama")
    ids, _ = padded("none", 30)
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, alpha=ALPHA, beta=BETA)

    def steps():
        cache = hf.DynamicCache(config=model.config)
        with calibrated(model, plan):
            model(input_ids=ids[:, :20], past_key_values=cache)
            return torch.cat([model(input_ids=one, past_key_values=cache).logits for one in ids[:, 20:].split(1, 1)], 1)

    expected = steps()
    monkeypatch.setattr("antiphase.calibration.apply.STEPS_AHEAD", 3)
    torch.testing.assert_close(steps(), expected, rtol=0, atol=0)


@torch.no_grad()
def test_generation_with_a_cache_is_generation_without_in_mode_running():
    model = build("llama")
    ids, mask = padded("left", 23)
    plan = CalibrationPlan(heads={0: [0, 1, 2, 3], 1: [1]}, alpha=ALPHA, beta=BETA, mode="running")
    arguments = {"attention_mask": mask, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False,
                 "pad_token_id": 0}  # fmt: skip
    with calibrated(model, plan):
        cached = model.generate(ids, **arguments)
        full = model.generate(ids, use_cache=False, **arguments)
        beams = model.generate(ids, num_beams=3, **arguments)
        full_beams = model.generate(ids, num_beams=3, use_cache=False, **arguments)
        static = model.generate(ids, cache_implementation="static", disable_compile=True, **arguments)
    assert torch.equal(cached, full)
    assert torch.equal(beams, full_beams)
    assert torch.equal(static, full)
    assert not torch.equal(model.generate(ids, **arguments), full)


@torch.no_grad()
def test_a_copied_cache_has_sinks_of_its_own():
    model = build("llama")
    ids, _ = padded("none", 20)
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, alpha=ALPHA, beta=BETA)
    with calibrated(model, plan):
        cache = hf.DynamicCache(config=model.config)
        model(input_ids=ids, past_key_values=cache)
        twin = copy.deepcopy(cache)
        expected = model(input_ids=ids[:, :1], past_key_values=twin).logits
        cache.reorder_cache(torch.tensor([1, 0]))
        other = copy.deepcopy(cache)
        found = model(input_ids=ids[:, :1].flip(0), past_key_values=cache).logits
        again = model(input_ids=ids[:, :1].flip(0), past_key_values=other).logits
    torch.testing.assert_close(found.flip(0), expected)
    torch.testing.assert_close(found, again)


@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@torch.no_grad()
def test_after_the_block_a_cache_is_an_ordinary_one_with_the_same_keys(mode):
    model = build("llama")
    ids, _ = padded("none", 20)
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, mode=mode, alpha=ALPHA, beta=BETA)
    with calibrated(model, CalibrationPlan(heads={1: [0]}, mode="paper")):
        with calibrated(model, plan):
            cache = model(input_ids=ids, use_cache=True).past_key_values
            sent, twin = pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache)
            assert type(sent) is hf.DynamicCache
            if mode != "paper":
                with pytest.raises(ValueError, match="filled outside"):
                    model(input_ids=ids[:, :1], past_key_values=sent)
        assert model(input_ids=ids[:, :1], past_key_values=twin).past_key_values is twin  # the outer block goes on
    for one in (cache, twin):
        assert type(one) is hf.DynamicCache
        assert set(vars(one)) == set(vars(sent))
    for layer, other in zip(cache.layers, sent.layers, strict=True):
        assert torch.equal(layer.keys, other.keys)
    expected = model(input_ids=ids[:, :1], past_key_values=sent).logits
    torch.testing.assert_close(model(input_ids=ids[:, :1], past_key_values=cache).logits, expected)
    cache.crop(-4)
    assert cache.get_seq_length() == 17


@torch.no_grad()
def test_a_new_prompt_has_new_sinks():
    """Without earlier keys a call is a new prefill, whatever was run before within the block."""
    model = build("llama")
    ids, _ = padded("none")
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, alpha=ALPHA, beta=BETA)
    with calibrated(model, plan):
        first = hidden(model, input_ids=ids[:1])
        hidden(model, input_ids=ids[1:])
        again = hidden(model, input_ids=ids[:1])
    torch.testing.assert_close(first, again)


@pytest.mark.parametrize("mode", ["prompt", "running"])
@torch.no_grad()
def test_a_cache_filled_outside_of_the_block_is_refused(mode):
    model = build("llama")
    ids, _ = padded("none")
    cache = model(input_ids=ids, use_cache=True).past_key_values
    with calibrated(model, CalibrationPlan(heads={0: [0]}, mode=mode)):
        for _ in range(2):
            with pytest.raises(ValueError, match="filled outside"):
                model(input_ids=ids[:, :1], past_key_values=cache)
    assert cache.get_seq_length() == N


def test_attention_to_another_sequence_is_not_calibrated():
    config = hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=1, n_head=4, add_cross_attention=True)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    ids, context = inputs_of("none")[0]["input_ids"], torch.randn(2, 9, 32)
    with calibrated(model, CalibrationPlan(heads={0: [0]})):
        model(ids)
        with pytest.raises(ValueError, match="encoder_hidden_states"):
            model(ids, encoder_hidden_states=context)


@pytest.mark.parametrize("change", [
    lambda model: calibrated(model, CalibrationPlan(heads={0: [0]})),
    lambda model: varied(model, CalibrationPlan(heads={0: [0]}), "inverse"), lambda model: quantized_logits(model, 4),
], ids=["calibrated", "varied", "quantized"])  # fmt: skip
def test_changed_attention_says_that_it_has_no_gradient(change):
    model = build("llama")
    with change(model):
        out = hidden(model, **inputs_of("none")[0])
    with pytest.raises(RuntimeError, match="has no gradient"):
        out.sum().backward()


@pytest.mark.parametrize("kind", ["llama", "differential"])
@torch.no_grad()
def test_an_outer_block_that_an_inner_one_leaves_out_sees_it_or_is_refused(kind):
    model = build(kind)
    ids, _ = padded("none")
    every = CalibrationPlan(heads={layer: list(range(MAPS)) for layer in range(LAYERS)}, alpha=ALPHA, beta=BETA)
    seen = []
    with calibrated(model, every):
        expected = hidden(model, input_ids=ids)
    with observed(model, lambda call, heads, weights: seen.append((call.layer, heads))), calibrated(model, every):
        torch.testing.assert_close(hidden(model, input_ids=ids), expected)
    assert [layer for layer, _ in seen] == list(range(LAYERS))
    plain = []
    with observed(model, lambda call, heads, weights: plain.append(heads)):
        hidden(model, input_ids=ids)
    assert not torch.allclose(seen[0][1], plain[0])
    first = CalibrationPlan(heads={0: [1]}, alpha=ALPHA, beta=BETA)
    last = CalibrationPlan(heads={1: list(range(MAPS))}, alpha=ALPHA, beta=BETA)
    with calibrated(model, first), calibrated(model, last):  # another layer: both count
        both = hidden(model, input_ids=ids)
    with calibrated(model, replace(last, heads={0: [1], 1: list(range(MAPS))})):
        torch.testing.assert_close(both, hidden(model, input_ids=ids))
    twice = pytest.raises(ValueError, match="layer 0 is changed by two blocks")
    with calibrated(model, first), calibrated(model, every), twice:
        hidden(model, input_ids=ids)


@torch.no_grad()
def test_layers_without_a_calibrated_head_call_the_models_own_function(monkeypatch):
    model = build("llama")
    called = []
    own = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def spy(module, *args, **kwargs):
        called.append(module.layer_idx)
        return own(module, *args, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", spy)
    model.set_attn_implementation("sdpa")
    ids, _ = padded("none")
    with calibrated(model, CalibrationPlan(heads={1: list(range(MAPS))})):
        hidden(model, input_ids=ids)
    assert called == [0]


@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "diffllama", "differential"])
@torch.no_grad()
def test_a_mask_by_query_equals_the_mask_of_padding(name, mode):
    model = build(name)
    ids, mask = padded("left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    window = getattr(model.config, "sliding_window", None)
    if window:
        causal &= ~torch.ones(N, N, dtype=torch.bool).tril(-window)
    by_query = causal & mask.bool()[:, None, None]
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, alpha=ALPHA, beta=BETA, mode=mode)
    with calibrated(model, plan):
        one = hidden(model, input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        other = hidden(model, input_ids=ids, attention_mask=by_query, position_ids=positions, use_cache=False)
    real = mask.bool()
    torch.testing.assert_close(one[real], other[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "diffllama", "softmax", "differential_v2"])
@torch.no_grad()
def test_a_static_cache_changes_nothing(name, mode):
    """Its empty slots are no keys, with a mask and without."""
    model = build(name)
    ids, _ = padded("none")
    plan = CalibrationPlan(heads={0: [0, 2], 1: [1]}, alpha=ALPHA, beta=BETA, mode=mode)
    found = {}
    with calibrated(model, plan):
        for kind in (hf.DynamicCache, hf.StaticCache):
            room = {"max_cache_len": 64} if kind is hf.StaticCache else {}
            cache = kind(config=model.config, **room)
            pieces = [
                model.base_model(input_ids=ids[:, part], past_key_values=cache, use_cache=True).last_hidden_state
                for part in (slice(0, 25), slice(25, 26), slice(26, 27))
            ]
            found[kind] = torch.cat(pieces, dim=1)
    torch.testing.assert_close(found[hf.StaticCache], found[hf.DynamicCache], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("at_once", [9, 1])
@torch.no_grad()
def test_tokens_in_the_place_of_cropped_tokens_are_no_sinks(at_once):
    model = build("llama")
    ids, more = (torch.randint(1, 61, (1, count)) for count in (30, 9))
    plan = CalibrationPlan(heads={0: [0, 1, 2, 3], 1: [0, 1]}, alpha=1.2, beta=BETA)
    base = model.base_model
    with calibrated(model, plan):
        cropped, whole = hf.DynamicCache(), hf.DynamicCache()
        base(input_ids=ids, past_key_values=cropped, use_cache=True)
        base(input_ids=ids, past_key_values=whole, use_cache=True)
        base(input_ids=more[:, :1], past_key_values=cropped, use_cache=True)  # a step, whose room must go as well
        cropped.crop(-11)
        (state,) = getattr(whole, STATES).values()
        for name in list(state.kept):
            state.kept[name] = state.kept[name][..., :20]
        for layer in whole.layers:
            layer.keys, layer.values = layer.keys[:, :, :20], layer.values[:, :, :20]
        for part in more.split(at_once, dim=1):
            found, expected = (
                base(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state
                for cache in (cropped, whole)
            )
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [2.0, 4.0])
@torch.no_grad()
def test_steps_count_the_keys_that_a_window_dropped(alpha):
    """Steps of two tokens: the first one's window begins where the cache does, behind keys that are gone."""
    model = build("mistral")
    ids = torch.randint(0, 61, (2, 60), generator=torch.Generator().manual_seed(1))
    plan = CalibrationPlan(heads={0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}, alpha=alpha, beta=BETA, mode="running")
    with calibrated(model, plan):
        whole = hidden(model, input_ids=ids, use_cache=False)
        cache = hf.DynamicCache(config=model.config)
        pieces = [ids[:, :12], *ids[:, 12:].split(2, dim=1)]
        steps = [
            model.model(input_ids=piece, past_key_values=cache, use_cache=True).last_hidden_state for piece in pieces
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-9, atol=1e-9)
