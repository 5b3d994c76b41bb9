"""The profile of a training step counts what it should."""

import pytest
import torch

from antiphase.lab.speed.model import training_step
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from benchmarks.training_step import LENGTH, PRODUCT, REST, kind_of, shares, utilisation


@pytest.fixture
def model():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential", vocab_size=61, **sizes))


def test_every_operator_of_the_package_has_its_kind_forward_and_backward(model):
    step = training_step(model, torch.randint(0, 61, (1, 40)), is_half=False)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    names = {event.key for event in profile.key_averages()}
    own = {name for name in names if "antiphase" in name and not name.startswith("autograd::engine")}  # which calls it
    for words in ("antiphase::native_attention", "GeneratedBackwardFor_antiphase_native_attention"):
        assert {kind_of(name) for name in own if name.startswith(words)} == {"attention"}
    assert REST not in set(map(kind_of, own)), own
    found = shares(step)
    assert sum(found.values()) == pytest.approx(1)
    assert found["attention"] > 0


def test_utilisation_is_one_for_a_step_as_fast_as_its_products(model):
    """By hand: 2 for each weight of a product, and both maps and the values of each pair of tokens, three times."""
    weights = 2 * (4 * 32 * 32 + 3 * 32 * 48) + 32 * 61
    pairs = 2 * (LENGTH + 1) / 2 * (4 * 8 + 32)
    operations = 3 * 2 * (weights + pairs) * LENGTH
    assert utilisation(model, operations / (2 * PRODUCT**3)) == pytest.approx(1)
