"""Maps by segments and maps of a span are those of the whole maps, which are never formed."""

import pytest
import torch
import transformers as hf

from antiphase.attention import long_maps
from antiphase.attention.long_maps import segment_maps, span_maps
from antiphase.attention.maps import attention_maps
from support.models import SIZES, randomize

IDS = torch.randint(3, 61, (1, 37), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["softmax", "differential", "differential_v2", "diffllama", "gemma2", "window"])
def model(request, tiny_model):
    """In fp64: weights are the exponentials of scores that rounding moves by more than the weights' own."""
    return single(request, tiny_model).double()


def single(request, tiny_model):
    if request.param == "diffllama":
        return randomize(hf.DiffLlamaForCausalLM(hf.DiffLlamaConfig(**SIZES)))
    if request.param == "gemma2":  # which changes its scores
        config = hf.Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=0.5, sliding_window=7)
        return randomize(hf.Gemma2ForCausalLM(config))
    if request.param == "window":
        return tiny_model("softmax", sliding_window=7)
    return tiny_model(request.param)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(long_maps, "ROWS", 12)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_segments_sum_over_keys_and_average_over_queries(model, size):
    whole, found = attention_maps(model, IDS), segment_maps(model, IDS, size)
    assert [(one.layer, one.part) for one in found] == [
        (one.layer, part) for one in whole for part in ("segments", "peaks")
    ]
    for layer, expected in enumerate(whole):
        weights, (segments, peaks) = expected.weights(), found[2 * layer : 2 * layer + 2]
        pieces = [piece.split(size, -1) for piece in weights.split(size, -2)]
        means = torch.stack([torch.stack([cell.sum(-1).mean(-1) for cell in row], -1) for row in pieces], -2)
        largest = torch.stack([torch.stack([cell.abs().amax((-1, -2)) for cell in row], -1) for row in pieces], -2)
        torch.testing.assert_close(segments.weights(), means, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(peaks.weights(), largest, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(segments.maps[:, 0].sum(-1), torch.ones(segments.maps.shape[0], len(pieces)))
        seen = [[cell.any() for cell in row.split(size, -1)] for row in expected.visible.split(size)]
        assert torch.equal(segments.visible, torch.tensor(seen))
        assert torch.equal(peaks.visible, segments.visible)
        assert (segments.lam is None) == (expected.lam is None)


def test_a_span_has_the_weights_of_its_queries_on_its_keys(model):
    whole, found = attention_maps(model, IDS), span_maps(model, IDS, range(20, 35), range(3, 24))
    for expected, one in zip(whole, found, strict=True):
        torch.testing.assert_close(one.weights(), expected.weights()[:, 20:35, 3:24], rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(one.maps, expected.maps[:, :, 20:35, 3:24], rtol=1e-5, atol=2e-6)
        assert torch.equal(one.visible, expected.visible[20:35, 3:24])
        assert one.part == "span"


def test_a_learned_sink_takes_its_share_of_every_row(tiny_model):
    model = tiny_model("softmax", sink_logits=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sink" in name:
                parameter.fill_(2.0)
    whole, found = attention_maps(model, IDS), segment_maps(model, IDS, 5)
    assert found[0].maps.sum(-1).min() < 0.9
    torch.testing.assert_close(found[0].maps.sum(-1)[:, 0, 0], whole[0].maps.sum(-1)[:, 0, :5].mean(-1))


def test_a_second_map_that_counts_for_nothing_stays_a_map(tiny_model):
    model = tiny_model("differential", second_map="none")
    for found, whole in zip(segment_maps(model, IDS, 5)[::2], attention_maps(model, IDS), strict=True):
        assert (found.lam == 0).all()
        torch.testing.assert_close(found.maps.sum(-1), torch.ones(found.maps.shape[:3]))
        torch.testing.assert_close(found.weights()[:, 1, 0], whole.maps[:, 0, 5:10, :5].sum(-1).mean(-1))


@pytest.mark.parametrize("lam", [(0.2, 0.6), (-0.2, -0.6), (-0.2, 0.4)])
def test_a_segment_weights_the_second_map_by_lambda_of_one_sign_alone(lam):
    maps = torch.tensor([[[[0.5, 0.5], [0.5, 0.5]], [[0.4, 0.6], [0.8, 0.2]]]])
    sums, mean, _, _ = long_maps._segments((maps, torch.tensor([lam]), torch.ones(2, 2, dtype=torch.bool)), 1)
    assert (sums >= 0).all()
    exact = maps[0, 0] - torch.tensor(lam)[:, None] * maps[0, 1]
    found = sums[0, 0] - mean * sums[0, 1]
    is_exact = torch.allclose(found, exact.mean(0), atol=1e-6)
    assert is_exact == (lam[0] * lam[1] > 0)
