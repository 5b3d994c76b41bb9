"""Who decays, and the learning rate of each step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.lab.settings.presets import TrainingSettings
from antiphase.lab.training.optimizer import build_optimizer, learning_rate


def rates(**fields):
    settings = TrainingSettings(**{"steps": 10, "learning_rate": 1.0, "warmup_steps": 4, **fields})
    return [learning_rate(step, settings) for step in range(settings.steps)]


def test_rate_rises_in_equal_steps_to_the_peak_and_falls_in_equal_steps_to_zero():
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert rates() == pytest.approx(expected)


def test_decay_beyond_the_last_step_stops_on_the_way_down():
    assert rates(decay_steps=16)[-1] == pytest.approx(7 / 12)


def test_no_warm_up_starts_at_the_peak():
    assert rates(warmup_steps=0)[:2] == pytest.approx([1.0, 0.9])


def test_warm_up_longer_than_the_run_never_reaches_the_peak():
    assert rates(warmup_steps=20) == pytest.approx([(step + 1) / 20 for step in range(10)])


def test_warm_up_as_long_as_the_run_ends_at_the_peak():
    assert rates(warmup_steps=10)[-1] == 1.0


@given(steps=st.integers(1, 200), warmup=st.integers(0, 300), beyond=st.integers(0, 100), peak=st.floats(1e-6, 1.0))
def test_rate_stays_above_zero_and_never_above_the_peak(steps, warmup, beyond, peak):
    found = rates(steps=steps, warmup_steps=warmup, decay_steps=steps + beyond, learning_rate=peak)
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in found)
    top = max(range(steps), key=found.__getitem__)
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)


def test_matrices_decay_and_norms_and_lambda_do_not(tiny_model):
    model = tiny_model("differential")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, TrainingSettings(steps=1, weight_decay=0.3, beta1=0.8, beta2=0.7))
    decay = {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups}
    assert decay.keys() == {0.3, 0.0}
    assert decay[0.3] | decay[0.0] == set(names.values())
    assert not decay[0.3] & decay[0.0]
    spared = {name for name in names.values() if "norm" in name or "lambda_" in name}
    assert decay[0.0] == spared
    assert {name.rpartition(".")[2] for name in spared} >= {"lambda_q1", "lambda_k2", "weight"}
    assert all(group["betas"] == (0.8, 0.7) for group in optimizer.param_groups)


@pytest.mark.parametrize("kind", ["differential", "differential_v2"])
def test_parameters_of_lambda_have_their_own_multiple_of_the_rate(tiny_model, kind):
    model = tiny_model(kind)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, TrainingSettings(steps=1, lambda_rate=0.1, weight_decay=0.3))
    rates = {names[id(p)]: group["rate"] for group in optimizer.param_groups for p in group["params"]}
    assert rates.keys() == set(names.values())
    assert {name for name, rate in rates.items() if rate == 0.1} == {name for name in rates if "lambda_" in name}
    assert set(rates.values()) == {1.0, 0.1}
    decays = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert all(decays[name] == (0.3 if model.get_parameter(name).dim() >= 2 else 0.0) for name in names.values())
