"""The rule on whole maps: published code's files, and the properties that it states."""

import pytest
import torch

from antiphase.calibration import calibrate_map
from antiphase.calibration.reference import redistribute

# In file 0, head 0, the published code leaves the first detected sink alone, which is not the first token.
COMPARED = {0: [2, 3], 1: [0, 2, 3]}


@pytest.mark.parametrize("number", [0, 1])
def test_published_maps(number, golden):
    tensors, metadata = golden(f"act_official_{number}")
    found = calibrate_map(tensors["attention"], beta=float(metadata["beta"]), threshold=float(metadata["threshold"]))
    for head in COMPARED[number]:
        torch.testing.assert_close(found[0, head], tensors["calibrated"][0, head], rtol=1e-12, atol=1e-14)
    changed = [head for head in COMPARED[number] if not torch.equal(found[0, head], tensors["attention"][0, head])]
    assert changed == {0: [2], 1: [0, 2, 3]}[number]


def causal_maps(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(*shape, shape[-1], generator=generator, dtype=dtype)
    mask = torch.ones(shape[-1], shape[-1], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)


@pytest.mark.parametrize("beta", [0.1, 0.4, 1.0])
def test_rows_sum_to_one_and_sinks_are_cut_to_beta(beta):
    weights = causal_maps(2, 3, 40)
    found = calibrate_map(weights, beta=beta, alpha=2.0)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    sinks = weights.sum(-2) / torch.arange(40, 0, -1) > 2.0 / 40
    sinks[..., 0] = False
    assert sinks.any()
    mixed = ~torch.isclose((weights * ~sinks.unsqueeze(-2)).sum(-1), torch.zeros((), dtype=torch.float64))
    ratio = found / weights
    for b, h, i, j in (sinks.unsqueeze(-2) & mixed.unsqueeze(-1) & (weights > 0)).nonzero().tolist():
        assert ratio[b, h, i, j].item() == pytest.approx(beta)


def test_others_rise_in_proportion():
    weights = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    sinks = torch.tensor([[True, False, False]])
    found = redistribute(weights, sinks, beta=0.4)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.48, 0.32]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_that_lies_on_sinks_stays(dtype):
    tiny = torch.finfo(dtype).tiny / 4
    weights = torch.tensor([[1.0, 0.0], [1.0, tiny], [0.0, 0.0]], dtype=dtype)
    found = redistribute(weights, torch.tensor([[True, False]]), beta=0.4)
    assert torch.equal(found, weights)


def test_the_first_token_is_no_sink():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.2, 0.0], [0.8, 0.1, 0.1]]).double()
    assert torch.equal(calibrate_map(weights, beta=0.4, alpha=1.5), weights)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"beta": 0.4}, "alpha or threshold"), ({"beta": 0.4, "alpha": 5.0, "threshold": 0.1}, "alpha or threshold"),
    ({"beta": 0.0, "alpha": 5.0}, "beta"), ({"beta": 1.5, "alpha": 5.0}, "beta"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_map(causal_maps(1, 5), **arguments)
    with pytest.raises(ValueError, match="two equal dimensions"):
        calibrate_map(torch.ones(3, 4), beta=0.4, alpha=5.0)
