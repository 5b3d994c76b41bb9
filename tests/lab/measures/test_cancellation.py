"""Two maps and their difference: pairs whose common mode is known, and sizes that weights made by hand confirm."""

import math

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from antiphase.base.randomness import keyed_generator
from antiphase.lab.measures.cancellation import measure as module
from antiphase.lab.measures.cancellation.measure import cancellation
from antiphase.lab.scoring.allocation import allocation
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from support.models import SIZES

TASK = RetrievalTask(SymbolLanguage(9, 11, 5), needles=4, queries=2, sequence_length=37)


def batch(count=5):
    return TASK.sample(count, keyed_generator("test"))


@pytest.fixture
def tiny_mistral():
    """Random Mistral models of equal weights, by their window."""

    def build(window):
        torch.manual_seed(2)
        return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)).eval()

    return build


def equal_maps(model):
    """Both maps of a head ask the same and look at the same keys."""
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            for projection in (attention.q_proj, attention.k_proj):
                pairs = projection.weight.unflatten(0, (-1, 2, attention.head_dim))
                pairs[:, 1] = pairs[:, 0]


@pytest.mark.parametrize("lam", [0.8, 0.25])
def test_equal_maps_are_all_common_mode(tiny_model, lam):
    model = tiny_model("differential", lambda_form="fixed", lambda_init=lam)
    equal_maps(model)
    found = cancellation(model, batch())
    assert len(found.heads) == 3 * 4
    for row in [*found.heads, *found.layers]:
        assert row.correlation == pytest.approx(1.0, abs=1e-5)
        assert row.cancelled == pytest.approx(1 - (1 - lam) / (1 + lam), abs=1e-6)
        assert row.negative_share == pytest.approx(0.0, abs=1e-9)
    maps = found.layers[-1].maps
    for figure in ("effective_keys", "near_zero", "noise", "answer"):
        assert getattr(maps["first"], figure) == pytest.approx(getattr(maps["second"], figure), rel=1e-4)
        assert getattr(maps["difference"], figure) == pytest.approx(getattr(maps["first"], figure), rel=1e-4)


def test_maps_that_attend_to_different_keys_have_nothing_in_common(tiny_model, monkeypatch):
    model = tiny_model("differential", lambda_form="fixed", lambda_init=0.5)
    own = module.attention_rows

    def apart(model, ids, positions):
        for found in own(model, ids, positions):
            found.maps.zero_()
            found.maps[:, :, 0, :, 0] = 1.0
            found.maps[:, :, 1, :, 1] = 1.0
            yield found

    monkeypatch.setattr(module, "attention_rows", apart)
    row = cancellation(model, batch()).layers[-1]
    assert row.cancelled == pytest.approx(0.0, abs=1e-12)
    assert row.negative_share == pytest.approx(0.5 / 1.5)
    assert -0.2 < row.correlation < 0  # -1 / (keys - 1), mean over queries
    assert row.maps["first"].effective_keys == pytest.approx(1.0)
    shares = torch.tensor([1 / 1.5, 0.5 / 1.5])
    assert row.maps["difference"].effective_keys == pytest.approx(math.exp(torch.special.entr(shares).sum()))


def test_small_weights_are_counted_among_the_keys_that_a_query_sees():
    layer = module._Layer(0)
    maps = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 1, 4)
    visible = torch.tensor([True, True, False, False]).view(1, 1, 1, 4)
    layer.add(maps, None, visible, torch.ones(1, 1), torch.ones(1, 1))
    assert float(layer.mean("softmax near_zero")) == 0.5
    assert float(layer.mean("softmax effective_keys")) == 1.0


@torch.no_grad()
def test_keys_outside_of_a_sliding_window_do_not_count(tiny_mistral):
    """Queries see 8 of 37 keys; those that all maps must leave out would make maps look alike, and small."""
    data = batch(6)
    whole, window = (cancellation(tiny_mistral(size), data).layers[-1] for size in (None, 8))
    assert window.correlation < 0.5
    assert window.maps["softmax"].near_zero == 0
    ids, found = data.input_ids, []
    ends = (data.prompt_end[:, None] * torch.linspace(0.5, 1.0, module.QUERIES)).round().long()
    model = tiny_mistral(8)
    model.set_attn_implementation("eager")
    for maps in model(ids, output_attentions=True).attentions:
        pairs = maps.double().unflatten(1, (-1, 2))
        for row, places in enumerate(ends.tolist()):
            for place in places:
                for both in pairs[row, :, :, place, max(0, place - 7) : place + 1]:
                    found.append(torch.corrcoef(both)[0, 1])
    assert window.correlation == pytest.approx(torch.stack(found).mean().item(), rel=1e-3)
    assert whole.correlation != pytest.approx(window.correlation, rel=1e-3)


def test_uniform_maps_have_no_correlation_and_no_small_weight(tiny_model):
    model = tiny_model("differential")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    found = batch()
    row = cancellation(model, found).layers[0]
    assert row.correlation is None
    assert row.maps["first"].near_zero == 0
    seen = (found.prompt_end[:, None] * torch.linspace(0.5, 1.0, module.QUERIES)).round() + 1
    assert row.maps["first"].effective_keys == pytest.approx(seen.mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "differential_v2_across"])
def test_sizes_of_outputs_are_those_of_eager_weights(tiny_model, kind):
    model = tiny_model(kind, attn_implementation="eager").double()
    found, data = cancellation(model, batch(1)), batch(1)
    values = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, args, out: values.append(out[0]))
    weights = model(data.input_ids, output_attentions=True, use_cache=False).attentions
    rows = {(row.layer, row.head): row for row in found.heads}
    for number, (map_, value) in enumerate(zip(weights, values, strict=True)):
        width = 12 if kind == "differential" else 6
        heads = value.unflatten(-1, (-1, width))  # (N, value heads, width)
        for head, weight in enumerate(map_[0]):
            own = heads[:, head // (map_.shape[1] // heads.shape[1])]
            out = (weight.double() @ own).square().mean().sqrt().item()
            row = rows[number, head]
            assert row.output_rms == pytest.approx(out, rel=1e-4)
            assert row.output_to_value == pytest.approx(out / own.square().mean().sqrt().item(), rel=1e-4)


def test_noise_is_that_of_the_allocation_and_batches_change_nothing(tiny_model, monkeypatch):
    model, data = tiny_model("differential"), batch(7)
    whole = cancellation(model, data)
    spans = next(row["spans"] for row in allocation(model, data) if (row["layer"], row["map"]) == (1, "difference"))
    found = whole.layers[1].maps["difference"]
    assert found.noise == pytest.approx(spans["other_needles"]["share"] + spans["filler"]["share"])
    assert found.answer == pytest.approx(spans["answer"]["share"])
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 1)
    for one, other in zip(cancellation(model, data).heads, whole.heads, strict=True):
        assert vars(one) == pytest.approx(vars(other), rel=1e-4)


def test_models_without_pairs_show_neighbours_and_no_difference(tiny_model):
    found = cancellation(tiny_model("softmax"), batch())
    maps = found.layers[-1].maps
    assert set(maps) == {"softmax", "first", "second"}
    for figure in ("effective_keys", "near_zero"):
        assert getattr(maps["softmax"], figure) == pytest.approx(
            (getattr(maps["first"], figure) + getattr(maps["second"], figure)) / 2
        )
    assert maps["first"].noise is None
    assert 0 < maps["softmax"].noise < 1
    assert found.layers[-1].cancelled is None
    assert -1 <= found.layers[-1].correlation <= 1
    assert len(found.heads) == 3 * 8  # sizes are told of every map
    assert [row.correlation is None for row in found.heads[:8]] == [False] * 4 + [True] * 4
    odd = tiny_model("softmax", num_attention_heads=3, num_key_value_heads=3, head_dim=6)
    found = cancellation(odd, batch())
    assert set(found.layers[0].maps) == {"softmax"}
    assert found.heads[2].output_rms > 0
