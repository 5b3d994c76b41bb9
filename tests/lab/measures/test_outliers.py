"""Outliers: the largest and the median of attention logits and hidden states, against whole tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antiphase.lab.measures.outliers import measure as module
from antiphase.lab.measures.outliers.measure import channel_kurtosis, outliers
from antiphase.ops.statistics import histogram_median, kurtosis, power_sums, size_histogram


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60))
def test_the_median_of_a_histogram_is_within_one_percent(values):
    exact = sorted(values)[(len(values) + 1) // 2 - 1]
    found = histogram_median(size_histogram(torch.tensor(values)))
    assert found == pytest.approx(exact, rel=0.01)


def test_an_empty_histogram_has_no_median():
    assert histogram_median(size_histogram(torch.zeros(0))) != histogram_median(size_histogram(torch.zeros(0)))


DISTRIBUTIONS = {
    "normal": (lambda count: torch.randn(count), 3.0), "uniform": (lambda count: torch.rand(count), 1.8),
    "sign": (lambda count: torch.randint(0, 2, (count,)) * 2.0 - 1.0, 1.0),
    "Laplace": (lambda count: torch.distributions.Laplace(0.0, 1.0).sample((count,)), 6.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_kurtosis_is_that_of_known_distributions_wherever_they_lie(name):
    draw, expected = DISTRIBUTIONS[name]
    values = draw(400_000).double()
    assert kurtosis(power_sums(values)) == pytest.approx(expected, rel=0.03)
    for moved in (values, 100 * values - 700):
        parts = moved.split(70_001)
        found = kurtosis(torch.stack([power_sums(part) for part in parts]).sum(0))
        assert found == pytest.approx(stats.kurtosis(moved.numpy(), fisher=False), rel=1e-6)


def test_kurtosis_of_equal_values_or_none_does_not_exist():
    for values in (torch.full((7,), 0.1), torch.zeros(9), torch.zeros(0)):
        assert kurtosis(power_sums(values)) != kurtosis(power_sums(values))


@given(st.integers(2, 50), st.integers(1, 50))
def test_kurtosis_over_channels_is_the_width_over_how_many_are_alike(width, alike):
    """Of k equal channels of d, the others zero: (k/d) / (k/d)² = d / k."""
    alike = min(alike, width)
    squares = torch.zeros(width, dtype=torch.float64)
    squares[:alike] = 17.0
    assert channel_kurtosis(squares) == pytest.approx(width / alike)


@pytest.mark.parametrize("at_once", [1 << 14, 25])
def test_tails_of_planted_hidden_states_are_those_of_the_closed_forms(at_once, tiny_model, monkeypatch):
    """Layer 0 gives normal values, layer 1 one channel alone, layer 2 all channels alike but for their signs."""
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", at_once)
    model, width = tiny_model("softmax"), 48
    only = torch.zeros(width)
    only[5] = 4.0
    planted = [
        lambda out: torch.randn(out.shape), lambda out: only.expand(out.shape),
        lambda out: torch.randint(0, 2, out.shape) * 6.0 - 3.0,
    ]  # fmt: skip
    for layer, give in zip(model.model.layers, planted, strict=True):
        layer.register_forward_hook(lambda module, args, out, give=give: give(out))
    rows = {(row.what, row.layer): row for row in outliers(model, torch.randint(1, 61, (12, 90))).rows}
    found = [rows["hidden states", str(layer)] for layer in range(3)]
    share = 1 / width  # of values that are not zero: kurtosis of a coin of that probability
    alone = (1 - 3 * share * (1 - share)) / (share * (1 - share))
    for row, tail, channels in zip(found, (3.0, alone, 1.0), (1.0, width, 1.0), strict=True):
        assert row.kurtosis == pytest.approx(tail, rel=0.05)
        assert row.channel_kurtosis == pytest.approx(channels, rel=0.05)
    for name in ("kurtosis", "channel_kurtosis"):
        assert getattr(rows["hidden states", "all"], name) == pytest.approx(
            sum(getattr(row, name) for row in found) / 3
        )
    assert rows["attention logits", "0"].channel_kurtosis is None


@pytest.mark.parametrize("at_once", [1 << 14, 25])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "softmax", "differential"])
def test_hidden_states_are_those_of_the_layers(kind, at_once, any_model, monkeypatch):
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", at_once)
    model = any_model(kind)
    ids = torch.randint(1, 61, (3, 23))
    seen = []
    layers = model.transformer.h if kind == "gpt2" else model.model.layers
    handles = [layer.register_forward_hook(lambda m, a, out: seen.append(out[0] if isinstance(out, tuple) else out))
               for layer in layers]  # fmt: skip
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    rows = [row for row in outliers(model, ids).rows if row.what == "hidden states"]
    assert [row.layer for row in rows] == ["all", *map(str, range(len(layers)))]
    for row, sizes in zip(rows, [torch.stack(seen), *seen], strict=True):
        ordered = sizes.abs().flatten().sort(descending=True).values
        for place, value in row.top.items():
            assert value == pytest.approx(ordered[int(place) - 1].item(), rel=1e-5)
        assert row.median == pytest.approx(ordered.median().item(), rel=0.02)
        if row.layer != "all":
            assert row.kurtosis == pytest.approx(stats.kurtosis(sizes.flatten().double(), fisher=False), rel=1e-4)
            channels = sizes.double().square().mean((0, 1)).sqrt()
            moments = [(channels**power).mean().item() for power in (4, 2)]
            assert row.channel_kurtosis == pytest.approx(moments[0] / moments[1] ** 2, rel=1e-4)
    assert set(rows[0].top) == {"1", "2", "3", "10", "100"}
