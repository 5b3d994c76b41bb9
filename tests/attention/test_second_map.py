"""Second maps removed, or exchanged with the first: against whole eager passes in fp64 with λ or weights changed."""

import pytest
import torch
import transformers as hf

import antiphase
from antiphase.attention.second_map import has_second_map, second_map
from support.models import SIZES, foreign_model, randomize

OWN = {
    "V1": {}, "V1 without head norm": {"head_norm": False}, "V1 and gate": {"output_gate": True},
    "V1 with a window": {"layer_types": ["sliding_attention"] * 3, "sliding_window": 5},
    "V1 with shared noise": {"num_key_value_heads": 4, "num_noise_heads": 2},
    "V1 that adds": {"second_map": "added"}, "V2": {"attention_type": "differential_v2"},
}  # fmt: skip
EVERY = [*OWN, "inside", "diffllama"]


@pytest.fixture
def build(tiny_model):
    def make(name, implementation):
        if name == "diffllama":
            return foreign_model(name, "sdpa").double()
        if name == "inside":
            torch.manual_seed(0)
            config = antiphase.differential_config(hf.LlamaConfig(**SIZES))
            return randomize(hf.AutoModelForCausalLM.from_config(config).eval()).double()
        fields = {"attention_type": "differential", **OWN[name]}
        return tiny_model(fields.pop("attention_type"), **fields, attn_implementation=implementation).double()

    return make


def attention_of(model):
    return [layer.self_attn for layer in model.model.layers]


def without_lambda(attention):
    """λ = 0 with everything else as it is."""
    if hasattr(attention, "differential"):
        attention.differential.lam = lambda: torch.zeros((), dtype=torch.float64)
    elif hasattr(attention, "_extra"):
        own = attention._extra
        attention._extra = lambda hidden: {**own(hidden), "lam": torch.zeros_like(own(hidden)["lam"])}
    else:  # λ is 0 without vectors and λinit, whose factor 1 - λinit goes into the projection
        for vector in (attention.lambda_q1, attention.lambda_k1, attention.lambda_q2, attention.lambda_k2):
            torch.nn.init.zeros_(vector)
        attention.o_proj.weight.data *= 1 - attention.lambda_init
        attention.lambda_init = 0.0


def with_maps_exchanged(attention, name):
    """The projections of the two maps of each head in each other's place."""
    width = attention.head_dim
    chosen = [attention.q_proj] if name == "V2" else [attention.q_proj, attention.k_proj]
    for projection in chosen:
        for parameter in projection.parameters():
            if name == "diffllama":
                parameter.data = parameter.data.unflatten(0, (2, -1)).flip(0).flatten(0, 1)
            else:
                parameter.data = parameter.data.unflatten(0, (-1, 2, width)).flip(1).flatten(0, 2)


def pair(build, name):
    """A model, and the same in fp64 throughout; DiffLlama's eager softmax is in fp32."""
    return build(name, "antiphase"), build(name, "sdpa" if name == "diffllama" else "eager")


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("layers", [[1], [0, 1]])
@pytest.mark.parametrize("name", EVERY)
def test_a_removed_second_map_is_lambda_zero(build, name, layers):
    model, eager = pair(build, name)
    ids = torch.randint(3, 61, (2, 13))
    whole = logits(eager, ids)
    for layer in layers:
        without_lambda(attention_of(eager)[layer])
    with second_map(model, "removed", layers):
        found = logits(model, ids)
    torch.testing.assert_close(found, logits(eager, ids), rtol=1e-9, atol=1e-9)
    assert (found - whole).abs().max() > 1e-3
    torch.testing.assert_close(logits(model, ids), whole, rtol=1e-9, atol=1e-9)  # as before


@pytest.mark.parametrize("layers", [[1], [0, 1]])
@pytest.mark.parametrize("name", [name for name in EVERY if name != "V1 with shared noise"])
def test_exchanged_maps_are_exchanged_projections(build, name, layers):
    model, eager = pair(build, name)
    ids = torch.randint(3, 61, (2, 13))
    whole = logits(eager, ids)
    for layer in layers:
        with_maps_exchanged(attention_of(eager)[layer], name)
    with second_map(model, "exchanged", layers):
        found = logits(model, ids)
    torch.testing.assert_close(found, logits(eager, ids), rtol=1e-9, atol=1e-9)
    assert (found - whole).abs().max() > 1e-3


def test_models_and_layers_without_one_are_refused(tiny_model):
    assert has_second_map(tiny_model("differential"))
    assert has_second_map(tiny_model("differential", second_map="added"))
    without = tiny_model("differential", second_map="none")
    for model in (tiny_model("softmax"), tiny_model("differential_v2_across"), without):
        assert not has_second_map(model)
        with (
            pytest.raises(ValueError, match="has no second map, so it cannot be removed"),
            second_map(model, "removed", [0]),
        ):
            pass
