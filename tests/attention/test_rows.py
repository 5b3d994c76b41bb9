"""Rows of attention equal those of the whole map, in any model, without the whole map."""

import pytest
import torch
import transformers as hf

from antiphase.attention.rows import attention_rows
from support.attention import Largest
from support.models import SIZES, foreign_model, randomize

POSITIONS = torch.tensor([[12, 0, 5], [3, 12, 7]])


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def rows_of(whole, positions):
    """(B, heads, P, M) from the whole map (B, heads, N, M)."""
    return torch.stack([whole[row][:, positions[row]] for row in range(len(positions))])


@pytest.mark.parametrize(("kind", "key_maps"), [
    *((kind, count) for kind in ("softmax", "differential") for count in (8, 4, 2)), ("differential_v2", 4),
    ("differential_v2", 2),
])  # fmt: skip
@pytest.mark.parametrize("implementation", ["antiphase", "eager", "sdpa"])
def test_rows_equal_the_weights_that_eager_attention_shows(tiny_model, kind, key_maps, implementation):
    ids = torch.randint(3, 61, (2, 13))
    eager = tiny_model(kind, num_key_value_heads=key_maps, attn_implementation="eager").double()
    whole = eager(ids, output_attentions=True).attentions
    model = tiny_model(kind, num_key_value_heads=key_maps, attn_implementation=implementation).double()
    layers = attention_rows(model, ids, POSITIONS)
    assert len(layers) == 3
    for found, expected in zip(layers, whole, strict=True):
        assert_near(found.weights(), rows_of(expected, POSITIONS))
        heads, maps = (8, 1) if kind == "softmax" else (4, 2)
        assert found.maps.shape == (2, heads, maps, 3, 13)
        assert_near(found.maps.sum(-1), torch.ones(2, heads, maps, 3, dtype=torch.float64))
        assert (found.maps >= 0).all()
        assert (found.lam is None) == (kind == "softmax")
    assert model.config._attn_implementation == implementation


def test_rows_of_a_layer_that_changes_its_scores_are_those_of_its_own_map():
    ids = torch.randint(3, 61, (2, 13))
    config = hf.Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=0.1, sliding_window=4)
    model = randomize(hf.Gemma2ForCausalLM(config).double())
    whole = model(ids, output_attentions=True).attentions
    for found, expected in zip(attention_rows(model, ids, POSITIONS), whole, strict=True):
        assert torch.equal(found.maps[:, :, 0], rows_of(expected, POSITIONS))
        assert torch.equal(found.visible, rows_of(expected > 0, POSITIONS)[:, :1])


def test_a_window_given_to_the_function_narrows_the_rows():
    """Implementations without a mask (flash attention) get the window as an argument."""
    from transformers import AttentionInterface, AttentionMaskInterface

    from antiphase.layers.functions import antiphase_attention

    ids = torch.randint(3, 61, (2, 13))
    AttentionInterface.register("windowed", antiphase_attention)
    AttentionMaskInterface.register("windowed", lambda *args, **kwargs: None)
    try:
        (first, _), (plain, _) = (
            attention_rows(foreign_model("mistral", how), ids, POSITIONS) for how in ("windowed", "sdpa")
        )
    finally:
        del AttentionInterface._global_mapping["windowed"], AttentionMaskInterface._global_mapping["windowed"]
    assert torch.equal(first.maps > 0, plain.maps > 0)
    assert (first.maps > 0)[0, 0, 0].sum(-1).tolist() == [4, 1, 4]


@pytest.mark.parametrize("kind", ["softmax", "differential"])
def test_no_tensor_is_quadratic_in_the_length(tiny_model, kind):
    length = 700
    model = tiny_model(kind, max_position_embeddings=length)
    positions = torch.tensor([[length - 1, 17]])
    with Largest() as largest:
        layers = attention_rows(model, torch.randint(3, 61, (1, length)), positions)
    assert all(found.maps.numel() == 8 * 2 * length for found in layers)
    assert largest.size <= 8 * length * 12  # rows, keys repeated by head, or values
    assert largest.size < length**2 / 7

    eager = tiny_model(kind, max_position_embeddings=length, attn_implementation="eager")
    with Largest() as whole:
        eager(torch.randint(3, 61, (1, length)))
    assert whole.size >= 8 * length**2  # the measure sees a map where there is one
