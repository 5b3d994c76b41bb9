"""The attention function, its masks, and swapping one in any model of transformers."""

from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from transformers.masking_utils import causal_mask_function, packed_sequence_mask_function

from antiphase.attention import interface
from antiphase.attention.hooks import observed, wrapped_attention
from antiphase.attention.interface import antiphase_mask
from antiphase.layers.functions import antiphase_attention, eager_attention, is_differential, join_halves
from antiphase.layers.masks import boolean_mask, combine_mask
from support.models import BASE, FOREIGN, foreign_model
from zoo.architectures import built, texts

foreign = pytest.mark.parametrize("name", FOREIGN)


def layer(kind="softmax", **fields):
    module = nn.Module()
    module.config = SimpleNamespace(attention_type=kind)
    for name, value in fields.items():
        setattr(module, name, value)
    return module


def tensors(kind="softmax", *, keys=5, queries=5):
    """Four maps; two maps share a key in V2."""
    key_maps = 2 if kind == "differential_v2" else 4
    shapes = ((2, 4, queries, 6), (2, key_maps, keys, 6), (2, key_maps, keys, 6))
    query, key, value = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return query, key, value


def arguments(kind):
    return {} if kind == "softmax" else {"lam": torch.tensor(0.4)}


every_kind = pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
both_functions = pytest.mark.parametrize("function", [antiphase_attention, eager_attention])

# ------------------------------------------------------------------------------------------ the functions


def test_the_form_is_read_from_the_configuration():
    assert is_differential(layer("differential"))
    assert is_differential(layer("differential_v2"))
    for other in ("softmax", "block_sparse", "original_full", None):  # BigBird has a field of this name too
        assert not is_differential(layer(other))
    module = nn.Module()
    module.config = SimpleNamespace()
    assert not is_differential(module)


def test_value_heads_are_joined_from_neighbouring_halves():
    value = torch.arange(2 * 4 * 3 * 2).view(2, 4, 3, 2)
    joined = join_halves(value)
    assert joined.shape == (2, 2, 3, 4)
    for head in (0, 1):
        assert torch.equal(joined[:, head], torch.cat([value[:, 2 * head], value[:, 2 * head + 1]], dim=-1))


@every_kind
@both_functions
@pytest.mark.parametrize("name", ["softcap", "position_bias", "anything_new"])
def test_arguments_that_would_change_the_result_are_refused_by_name(function, kind, name):
    with pytest.raises(ValueError, match=f"does not support the arguments {name}.* of .*; leave them out$"):
        function(layer(kind), *tensors(kind), None, **arguments(kind), **{name: 1.0})
    function(layer(kind), *tensors(kind), None, **arguments(kind), **{name: None})  # None asks for nothing


@both_functions
@pytest.mark.parametrize("kind", ["differential", "differential_v2"])
def test_differential_maps_have_no_sink_logit(function, kind):
    with pytest.raises(ValueError, match="does not support the arguments s_aux"):
        function(layer(kind), *tensors(kind), None, **arguments(kind), s_aux=torch.zeros(4))


@every_kind
@both_functions
def test_dropout_is_refused_and_its_absence_accepted(function, kind):
    with pytest.raises(ValueError, match=r"no dropout.*attention_dropout"):
        function(layer(kind), *tensors(kind), None, **arguments(kind), dropout=0.1)
    function(
        layer(kind), *tensors(kind), None, **arguments(kind), dropout=0.0, position_ids=torch.zeros(1, 5), use_cache=1
    )


@every_kind
@both_functions
@pytest.mark.parametrize("mask", [
    torch.full((2, 1, 1, 5), -0.5, dtype=torch.float64), torch.linspace(-3, 0, 25).view(1, 1, 5, 5),
    torch.ones(2, 1, 5, 5, dtype=torch.int64),
], ids=["bias", "distances", "whole numbers"])  # fmt: skip
def test_a_mask_that_is_more_than_visible_or_hidden_is_refused(function, kind, mask):
    with pytest.raises(ValueError, match="mask"):
        function(layer(kind), *tensors(), mask, **arguments(kind))


@every_kind
@both_functions
@pytest.mark.parametrize("hidden", [float("-inf"), torch.finfo(torch.float32).min, -1e9])
def test_an_additive_mask_of_transformers_means_the_boolean_one(function, kind, hidden):
    visible = (torch.rand(2, 1, 5, 5) < 0.6).tril() | torch.eye(5, dtype=torch.bool)
    additive = torch.zeros(2, 1, 5, 5).masked_fill(~visible, hidden)
    inputs = tensors(kind)
    expected = function(layer(kind), *inputs, visible, **arguments(kind))[0]
    assert torch.equal(function(layer(kind), *inputs, additive, **arguments(kind))[0], expected)


@every_kind
@both_functions
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_that_sees_nothing_gives_zeros_and_finite_gradients(function, kind, causal):
    inputs = tensors(kind)
    padding = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    padding[0], padding[1, ..., :2] = False, False
    out, weights = function(layer(kind, is_causal=causal), *inputs, padding, **arguments(kind))
    assert torch.isfinite(out).all()
    assert not out[0].any()
    assert out[1, :2].any() != causal  # queries before the first visible key
    if weights is not None:
        assert not weights[0].any()
    out.sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in inputs)


@pytest.mark.grid
@every_kind
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 7), (3, 7)])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("padded", [True, False])
def test_the_fast_function_equals_the_eager_one(kind, queries, keys, window, padded):
    inputs = tensors(kind, queries=queries, keys=keys)
    mask = None
    if padded:
        mask = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        mask[1, ..., :2] = False
    fast, eager = (
        function(layer(kind), *inputs, mask, sliding_window=window, scaling=0.3, **arguments(kind))[0]
        for function in (antiphase_attention, eager_attention)
    )
    shapes = {"softmax": (4, 6), "differential": (2, 12), "differential_v2": (2, 6)}
    assert fast.shape == (2, queries, *shapes[kind])
    torch.testing.assert_close(fast, eager, rtol=1e-10, atol=1e-10)


def test_the_last_query_stands_at_the_last_key_and_the_window_counts_from_it():
    visible = combine_mask(None, 2, 5, is_causal=True, sliding_window=3, device=torch.device("cpu"))
    expected = torch.tensor([[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]).bool()
    assert torch.equal(visible, expected)


@every_kind
@both_functions
def test_a_window_is_not_counted_from_the_empty_slots_of_a_static_cache(function, kind):
    """A step's mask says which keys its query sees; the last key is not the query's own."""
    query, key, value = tensors(kind, queries=1, keys=8)
    mask = torch.tensor([False, False, True, True, True, False, False, False]).expand(2, 1, 1, 8)
    found = function(layer(kind), query, key, value, mask, sliding_window=3, **arguments(kind))[0]
    expected = function(layer(kind), query, key[:, :, 2:5], value[:, :, 2:5], None, **arguments(kind))[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@every_kind
@both_functions
@pytest.mark.parametrize("padded", [True, False])
def test_the_window_of_a_layer_that_is_not_causal_reaches_to_both_sides(function, kind, padded):
    inputs, places = tensors(kind, queries=7, keys=7), torch.arange(7)
    near = ((places[:, None] - places).abs() < 3).expand(2, 1, 7, 7)
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., :2] = False
    both_ways = layer(kind, is_causal=False)
    found = function(both_ways, *inputs, mask if padded else None, sliding_window=3, **arguments(kind))[0]
    expected = function(both_ways, *inputs, near & mask if padded else near, **arguments(kind))[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    whole = function(both_ways, *inputs, None, sliding_window=7, **arguments(kind))[0]
    torch.testing.assert_close(whole, function(both_ways, *inputs, None, **arguments(kind))[0], rtol=1e-10, atol=1e-10)


def test_flex_attentions_mask_is_evaluated_at_every_pair():
    real = torch.tensor([[False, True, True, True, True], [True, True, True, True, False]])
    block = create_block_mask(lambda b, h, q, k: (q + 2 >= k) & real[b, k], 2, None, 3, 5, device="cpu")
    expected = torch.ones(3, 5, dtype=torch.bool).tril(2) & real[:, None, None]
    assert torch.equal(boolean_mask(block), expected)


# ------------------------------------------------------------------------------------------ the mask function


def test_plain_causality_needs_no_mask_and_padding_one_row():
    assert antiphase_mask(2, 5, 5) is None
    assert antiphase_mask(2, 3, 9, 6) is None
    attention_mask = torch.ones(2, 9, dtype=torch.bool)
    assert antiphase_mask(2, 3, 9, 6, attention_mask=attention_mask) is None
    attention_mask[1, :4] = False
    mask = antiphase_mask(2, 3, 9, 6, attention_mask=attention_mask)
    assert mask.shape == (2, 1, 1, 9)
    assert torch.equal(mask[:, 0, 0], attention_mask)


def test_anything_but_plain_causality_is_a_mask_by_query():
    packed = packed_sequence_mask_function(torch.tensor([[0, 0, 1, 1, 1]]))

    def both(*place):
        return causal_mask_function(*place) & packed(*place)

    mask = antiphase_mask(1, 5, 5, mask_function=both)
    expected = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).bool().tril()
    assert torch.equal(mask, expected[None, None])
    longer = antiphase_mask(1, 2, 8, 3)  # a cache with room for more keys than it holds
    assert longer.shape == (1, 1, 2, 8)
    assert longer.sum(-1).flatten().tolist() == [4, 5]


@foreign
@pytest.mark.parametrize("padded", [True, False])
def test_a_model_of_transformers_gives_the_same_with_the_registered_function(name, padded):
    ids, mask = torch.randint(3, 61, (3, 11)), torch.ones(3, 11, dtype=torch.int64)
    if padded:
        mask[0, :7], mask[1, :2] = 0, 0
    model = foreign_model(name, "sdpa").double()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    expected = model(**inputs).logits
    model.set_attn_implementation("antiphase")
    found = model(**inputs).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-6, atol=1e-6)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("family", ["bigbird_pegasus", "nllb-moe", "pegasus_x"])
@torch.no_grad()
def test_layers_that_leave_causality_to_the_mask_get_one(family):
    """Their decoders say is_causal=False, also where they attend to their own tokens."""
    model, ids = built("encoder-decoder", family, "antiphase", torch.float64), texts(2)
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % 60
    before, after = (model(input_ids=ids, decoder_input_ids=given).logits for given in (ids, other))
    assert (after - before)[:, -1].abs().max() > 1e-2
    assert torch.equal(after[:, :-1], before[:, :-1])


@torch.no_grad()
def test_a_model_that_reads_the_mask_itself_gets_a_whole_one():
    assert antiphase_mask(2, 5, 5, allow_is_causal_skip=False).shape == (2, 1, 5, 5)
    model = built("causal", "deepseek_v32", "antiphase", torch.float32)  # its indexer adds the mask to scores
    with pytest.raises(ValueError, match=r"arguments indices of DeepseekV32Attention; choose .*=\"eager\"$"):
        model(texts(2))


@pytest.mark.parametrize(("family", "name"), [("causal", "bloom"), ("encoder", "convbert"), ("encoder-decoder", "led")])
def test_models_with_attention_code_of_their_own_are_refused_by_name(family, name):
    """They would add a boolean mask to their scores, or miss a mask that was left out."""
    model, ids = built(family, name, "antiphase", torch.float32), texts(2)
    with pytest.raises(ValueError, match=f'models of type {name} compute attention in code of their own.*"eager"'):
        model(input_ids=ids)


@pytest.mark.parametrize("padded", [False, True])
def test_the_direction_that_a_model_passes_precedes_its_layers(padded):
    """CLIP's text encoder passes ``is_causal`` to layers that say that they are not."""
    config = hf.CLIPTextConfig(**BASE, num_attention_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = hf.CLIPTextModel(config).eval()
    ids, mask = torch.randint(3, BASE["vocab_size"], (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    if padded:
        mask[0, 6:] = 0
    found = []
    for name in ("eager", "antiphase"):
        model.set_attn_implementation(name)
        found.append(model(ids, attention_mask=mask).last_hidden_state[mask.bool()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_decoder_whose_configuration_is_not_causal_sees_both_sides():
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**BASE, num_attention_heads=4, is_causal=False)).eval()
    ids, found = torch.randint(3, BASE["vocab_size"], (2, 9)), []
    for name in ("sdpa", "antiphase"):
        model.set_attn_implementation(name)
        found.append(model(ids).logits)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    other = model(torch.cat([ids[:, :-1], 3 + ids[:, -1:] % 5], dim=1)).logits
    assert not torch.allclose(other[:, 0], found[0][:, 0])


@pytest.mark.parametrize("padded", [True, False])
def test_layers_that_do_not_say_their_direction_hide_no_more_than_their_mask(padded):
    if not hf.LayoutLMModel._supports_sdpa:
        pytest.skip("LayoutLM of this version of transformers has no SDPA to compare with")
    config = hf.LayoutLMConfig(**BASE, num_attention_heads=4, attn_implementation="sdpa")
    model = hf.LayoutLMModel(config).double().eval()
    ids, mask = torch.randint(3, 61, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    if padded:
        mask[0, :3] = 0
    expected = model(ids, attention_mask=mask).last_hidden_state
    model.set_attn_implementation("antiphase")
    found = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------ swapping


def registered():
    return set(hf.AttentionInterface._global_mapping), set(hf.AttentionMaskInterface._global_mapping)


def counting(calls, name=""):
    def wrap(function):
        def observe(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return observe

    return wrap


def zeroing(function):
    def replaced(*args, **kwargs):
        out, weights = function(*args, **kwargs)
        return torch.zeros_like(out), weights

    return replaced


@pytest.mark.parametrize("name", [*FOREIGN, "softmax", "differential", "differential_v2"])
@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
def test_a_function_is_swapped_in_and_the_model_is_as_before_afterwards(any_model, name, implementation):
    model = any_model(name) if name in FOREIGN else any_model(name).double()
    model.set_attn_implementation(implementation)
    ids, mask = torch.randint(3, 61, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[0, :3] = 0
    before, names = model(ids, attention_mask=mask).logits, registered()
    calls = []
    with wrapped_attention(model, counting(calls)):
        torch.testing.assert_close(model(ids, attention_mask=mask).logits, before)
    assert len(calls) == (2 if name == "diffllama" else 1) * model.config.num_hidden_layers  # it calls twice a layer
    with wrapped_attention(model, zeroing):
        assert not torch.allclose(model(ids, attention_mask=mask).logits, before)
    assert torch.equal(model(ids, attention_mask=mask).logits, before)
    assert model.config._attn_implementation == implementation
    assert registered() == names


def test_swaps_nest_and_restore_in_order():
    model, ids = foreign_model("llama", "sdpa"), torch.randint(3, 61, (1, 9))
    before, names, calls = model(ids).logits, registered(), []
    with wrapped_attention(model, counting(calls, "outer")):
        with wrapped_attention(model, counting(calls, "inner")):
            assert torch.equal(model(ids).logits, before)
        assert calls == ["inner", "outer"] * 2
        calls.clear()
        model(ids)
        assert calls == ["outer"] * 2
    calls.clear()
    model(ids)
    assert not calls
    assert registered() == names


def test_parts_with_implementations_of_their_own_get_them_back():
    """Gemma 4 hears with eager attention only, and reads with SDPA."""
    model = built("causal", "gemma4", None, torch.float32)
    parts = [module for module in model.modules() if isinstance(module, hf.PreTrainedModel)]
    before = [part.config._attn_implementation for part in parts]
    assert {"eager", "sdpa"} <= set(before)
    with wrapped_attention(model, lambda function: function):
        assert set(before).isdisjoint(part.config._attn_implementation for part in parts)
    assert [part.config._attn_implementation for part in parts] == before


def test_an_error_inside_restores_the_model_and_is_not_replaced():
    model, ids = foreign_model("llama", "eager"), torch.randint(3, 61, (1, 9))
    before, names = model(ids).logits, registered()
    with pytest.raises(RuntimeError, match="of the caller"), wrapped_attention(model, zeroing):
        raise RuntimeError("of the caller")

    def failing(function):
        def fail(*args, **kwargs):
            raise RuntimeError("of the function")

        return fail

    with pytest.raises(RuntimeError, match="of the function"), wrapped_attention(model, failing):
        model(ids)

    def broken(function):
        raise RuntimeError("of the wrap")

    with pytest.raises(RuntimeError, match="of the wrap"), wrapped_attention(model, broken):
        pass
    assert model.config._attn_implementation == "eager"
    assert registered() == names
    assert torch.equal(model(ids).logits, before)


def test_an_implementation_registered_without_a_mask_function_can_be_swapped():
    model, ids, seen = foreign_model("llama", "sdpa"), torch.randint(3, 61, (1, 9)), []
    hf.AttentionInterface.register("maskless", interface.antiphase_attention)
    try:
        model.set_attn_implementation("maskless")
        before, names = model(ids).logits, registered()

        def wrap(function):
            def observe(module, query, key, value, mask, **kwargs):
                seen.append(mask)
                return function(module, query, key, value, mask, **kwargs)

            return observe

        with wrapped_attention(model, wrap):
            assert torch.equal(model(ids).logits, before)
        assert seen == [None, None]
        assert registered() == names
    finally:
        del hf.AttentionInterface._global_mapping["maskless"]


def test_a_model_that_never_calls_the_function_is_refused_by_name(monkeypatch):
    model = foreign_model("llama", "sdpa")
    monkeypatch.setattr(model.model, "layers", torch.nn.ModuleList())
    with (
        pytest.raises(ValueError, match=r"LlamaForCausalLM \(type llama\) never called the attention function"),
        observed(model, lambda call, heads, weights: None),
    ):
        model(torch.tensor([[1]]))
    assert model.config._attn_implementation == "sdpa"


def test_a_model_outside_the_interface_is_refused_by_name(monkeypatch):
    model, names = foreign_model("llama", "sdpa"), registered()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(ValueError, match="LlamaForCausalLM does not use"), wrapped_attention(model, zeroing):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(model, "set_attn_implementation", lambda name: None)
    with pytest.raises(ValueError, match="LlamaForCausalLM did not accept"), wrapped_attention(model, zeroing):
        pass
    assert registered() == names
