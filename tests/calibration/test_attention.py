"""Calibrated attention of one call, against the rule on whole maps: rounding, rows that look at sinks, steps."""

import math

import pytest
import torch
from transformers import DynamicCache

import antiphase
from antiphase.attention.calls import AttentionCall, kind_of
from antiphase.attention.forward_pass import ForwardPass
from antiphase.attention.selected_maps import ChosenMaps
from antiphase.calibration import CalibrationPlan
from antiphase.calibration.apply import Calibration, CalibrationState, calibrated
from antiphase.calibration.attention import attend, calibrated_step, correct
from antiphase.calibration.reference import redistribute


@pytest.mark.grid
@pytest.mark.parametrize("logit", [0, 10, 20, 60])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_error_is_that_of_eager_attention_at_the_same_dtype(dtype, width, logit):
    """Error ≤ 2 × (eager's + one rounding), both against fp64, all heads, in the root of mean squares.

    ``logit``: of one more sink, for all queries; it takes nearly all of their weight.
    """
    torch.manual_seed(2)
    query, key, value = (torch.randn(1, 4, 300, width, dtype=torch.float64) for _ in range(3))
    key[:, :, 7] *= 3  # a key that many queries look at
    scale = width**-0.5
    query[..., 0], key[..., 0] = 4.0, 0.0
    key[:, :, 11, 0] = logit / 4 / scale
    query, key, value = (t.to(dtype) for t in (query, key, value))

    class Layer(torch.nn.Module):
        layer_idx, is_causal = 0, True
        config = antiphase.AntiphaseConfig(attention_type="softmax")

    plan = CalibrationPlan(heads={0: [0, 1, 2, 3]}, alpha=3.0, beta=0.4)

    def fast(*tensors):
        layer, forward = Layer(), ForwardPass(state=CalibrationState())
        call = AttentionCall(
            layer, 0, kind_of(layer), *tensors, None, {"scaling": scale}, own=lambda: None, forward=forward
        )
        return Calibration(plan)(call)

    def eager(q, k, v):
        scores = (q @ k.mT).to(torch.float64 if q.dtype == torch.float64 else torch.float32) * scale
        weights = torch.softmax(scores.masked_fill(~torch.ones(300, 300).tril().bool(), -math.inf), -1)
        new = antiphase.calibration.calibrate_map(weights, alpha=3.0, beta=0.4)
        assert (weights.sum(-2)[..., 1:] / torch.arange(299, 0, -1) > 3.0 / 300).any()
        return (new.to(v.dtype) @ v).transpose(1, 2)

    true = eager(*(t.double() for t in (query, key, value)))
    rounding = (true.to(dtype).double() - true).square().mean().sqrt()
    error, usual = ((f(query, key, value).double() - true).square().mean().sqrt() for f in (fast, eager))
    assert error <= 2 * (usual + rounding)


@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_rows_that_look_at_sinks_by_any_share(share):
    """Rows under and over the bound from which they are formed, and rows with sinks alone, which stay as they are."""
    generator = torch.Generator().manual_seed(4)
    query, key = torch.zeros(1, 1, 1, 40, 8), torch.zeros(1, 1, 40, 8)
    query[..., 0] = 1.0
    for sink in (3, 21):  # each takes the share that it would have beside 38 other keys; 1: others underflow to 0
        key[..., sink, 0] = 300.0 if share == 1 else math.log(share / 2 / (1 - share) * 38)
    maps = ChosenMaps(
        query=query.double(), key=key.double(), value=torch.randn(1, 1, 40, 8, generator=generator).double(),
        mask=None, is_causal=False, sliding_window=None, scale=1.0 if share < 1 else 10.0, places=torch.arange(40),
        before=torch.tensor([0]), chosen=torch.ones(1, 1, 1, dtype=torch.bool),
        real=torch.ones(1, 40, dtype=torch.bool),
    )  # fmt: skip
    weights = maps.weights()
    sinks = torch.zeros(1, 1, 1, 40, dtype=torch.bool)
    sinks[..., [3, 21]] = True
    torch.testing.assert_close(weights[..., [3, 21]].sum(-1), torch.full((1, 1, 1, 40), share).double())
    expected = redistribute(weights, sinks.unsqueeze(-2), beta=0.4) @ maps.value.unsqueeze(2)
    torch.testing.assert_close(correct(maps, attend(maps), sinks, beta=0.4), expected, rtol=1e-9, atol=1e-9)


def test_a_step_that_sees_no_key_gives_zeros_and_one_that_sees_sinks_alone_stays():
    generator = torch.Generator().manual_seed(6)
    query, key, value = (torch.randn(3, 1, n, 5, 8, generator=generator).double() for n in (2, 1, 1))
    query, key, value = query[..., :1, :], key[:, :, 0], value[:, :, 0]
    others = torch.tensor([1.0, 0, 1, 0, 1]).double().expand(3, 1, 2, 5)
    mask = torch.tensor([[True] * 5, [False] * 5, [False, True, False, True, False]])[:, None, None]
    found = calibrated_step(query, key, value, others, mask, scale=0.5, beta=0.3)
    scores = (query * 0.5 @ key.unsqueeze(2).mT).masked_fill(~mask.unsqueeze(1), -math.inf)
    weights = torch.softmax(scores, -1)
    expected = redistribute(weights[:1], others[:1].unsqueeze(-2) == 0, beta=0.3) @ value[:1].unsqueeze(2)
    torch.testing.assert_close(found[:1], expected)
    assert not found[1].any()
    torch.testing.assert_close(found[2:], weights[2:] @ value[2:].unsqueeze(2))


def test_the_first_token_that_a_cache_still_has_is_not_the_first_one():
    def maps(before):
        return ChosenMaps(
            query=torch.zeros(2, 1, 1, 1, 4), key=torch.zeros(2, 1, 5, 4), value=torch.zeros(2, 1, 5, 4), mask=None,
            is_causal=True, sliding_window=None, scale=1.0, places=torch.tensor([4]), before=torch.tensor(before),
            chosen=torch.ones(1, 1, 1, dtype=torch.bool),
            real=torch.tensor([[True] * 5, [False, False, True, True, True]]),
        )  # fmt: skip

    assert maps([0, 0]).first.tolist() == [0, 2]
    assert maps([3, 0]).first.tolist() == [-1, 2]


@torch.no_grad()
def test_a_cache_with_sums_of_attention_cannot_be_cropped(any_model):
    model, cache = any_model("llama"), DynamicCache()
    plan = CalibrationPlan(heads={0: [0, 1]}, alpha=1.2, beta=0.4, mode="running")
    with calibrated(model, plan):
        model.base_model(input_ids=torch.randint(1, 61, (1, 30)), past_key_values=cache, use_cache=True)
        with pytest.raises(ValueError, match='cannot be cropped under calibration in mode "running"'):
            cache.crop(-3)
