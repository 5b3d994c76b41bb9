"""The attention layers are those of the paper and of the official differential code."""

import math

import pytest
import torch
import transformers as hf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.layers.lambdas import lambda_init
from antiphase.models.attention import attention_layer
from support.layers import formula, random_layer, rotary

# ------------------------------------------------------------------------------------------ λ


def test_lambda_init_follows_the_schedule_of_the_paper():
    # 0.8 - 0.6·exp(-0.3·(l - 1)) for l = 1, 2, 3, 12, 28; computed by hand
    expected = {1: 0.2, 2: 0.3555091, 3: 0.4707130, 12: 0.7778699, 28: 0.7998179}
    for layer, value in expected.items():
        assert lambda_init(layer - 1) == pytest.approx(value, abs=1e-6)


def test_lambda_is_a_difference_of_exponentials_of_dot_products(tiny_config):
    layer = attention_layer(tiny_config(), 1)
    assert layer.lam().item() == pytest.approx(lambda_init(1))  # vectors of zeros
    with torch.no_grad():
        for index, name in enumerate(("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")):
            getattr(layer, name).copy_(torch.arange(6.0) / 10 - 0.1 * index)
    first = math.exp(sum(a / 10 * (a / 10 - 0.1) for a in range(6)))
    second = math.exp(sum((a / 10 - 0.2) * (a / 10 - 0.3) for a in range(6)))
    assert layer.lam().item() == pytest.approx(first - second + lambda_init(1), rel=1e-6)
    assert layer.lam().shape == ()


def test_lambda_stays_fp32_under_autocast_and_in_half_precision(tiny_config):
    layer = attention_layer(tiny_config(), 0)
    torch.nn.init.normal_(layer.lambda_q1)
    torch.nn.init.normal_(layer.lambda_k1)
    expected = layer.lam()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.lam().dtype == torch.float32
        assert torch.equal(layer.lam(), expected)
    assert layer.to(torch.bfloat16).lam().dtype == torch.float32


# ------------------------------------------------------------------------------------------ the paper's equations


@pytest.mark.parametrize("implementation", ["eager", "antiphase", "sdpa"])
@pytest.mark.parametrize("key_maps", [8, 4, 2])
def test_a_layer_computes_the_equations_of_the_paper(tiny_config, key_maps, implementation):
    eps = 0.05  # large, so that the ε of any other norm would show
    config = tiny_config(num_key_value_heads=key_maps, head_norm_eps=eps, rms_norm_eps=1e-7)
    layer = random_layer(config, 2, implementation)
    x = torch.randn(7, 48, dtype=torch.float64)
    out, _ = layer(x[None], rotary(config.head_dim, 7))
    torch.testing.assert_close(out[0], formula(layer, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("implementation", ["eager", "antiphase", "sdpa"])
@pytest.mark.parametrize("key_maps", [4, 2, 1])
def test_a_v2_layer_computes_its_equations(tiny_config, key_maps, implementation):
    layer = random_layer(tiny_config("differential_v2", num_key_value_heads=key_maps), 1, implementation)
    assert layer.o_proj.weight.shape == (48, 24)
    assert {name.partition(".")[0] for name, _ in layer.named_parameters()} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "lambda_proj"
    }  # fmt: skip
    x = torch.randn(7, 48, dtype=torch.float64)
    out, _ = layer(x[None], rotary(6, 7))
    torch.testing.assert_close(out[0], formula(layer, x), rtol=1e-10, atol=1e-10)


def test_any_registered_function_serves_v2_and_is_called_once(tiny_model):
    """What knows nothing of differential attention gets all maps in one ordinary call, without λ."""
    calls = []

    def ordinary(module, query, key, value, mask, **kwargs):
        calls.append((query.shape[1], key.shape[1], value.shape, "lam" in kwargs))
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **kwargs)

    ids = torch.randint(3, 61, (2, 9))
    hf.AttentionInterface.register("ordinary", ordinary)
    hf.AttentionMaskInterface.register("ordinary", hf.AttentionMaskInterface._global_mapping["sdpa"])
    try:
        found = tiny_model("differential_v2", attn_implementation="ordinary")(ids).logits
    finally:
        del hf.AttentionInterface._global_mapping["ordinary"], hf.AttentionMaskInterface._global_mapping["ordinary"]
    assert calls == [(8, 4, (2, 4, 9, 6), False)] * 3
    torch.testing.assert_close(found, tiny_model("differential_v2")(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention"])
def test_v1_refuses_backends_whose_masks_it_cannot_read(tiny_model, name):
    with pytest.raises(ValueError, match=f"cannot run with attn_implementation='{name}'; choose antiphase"):
        tiny_model("differential").set_attn_implementation(name)


# ------------------------------------------------------------------------------------------ golden tensors


@pytest.mark.parametrize("implementation", ["eager", "antiphase"])
@pytest.mark.parametrize("name", ["unilm_diffattn_mha", "unilm_diffattn_gqa", "unilm_softmax_gqa"])
def test_a_layer_equals_the_official_code_in_output_and_every_gradient(tiny_config, golden, name, implementation):
    golden, settings = golden(name)
    width = 2 * golden["cos"].shape[1]
    maps, key_maps = (len(golden[f"param.{projection}.weight"]) // width for projection in ("q_proj", "k_proj"))
    config = tiny_config(
        "softmax" if "softmax" in name else "differential", hidden_size=int(settings["embed_dim"]),
        num_attention_heads=maps, num_key_value_heads=key_maps, num_hidden_layers=int(settings["depth"]) + 1,
    )  # fmt: skip
    config._attn_implementation = implementation
    layer = attention_layer(config, int(settings["depth"])).double()
    names = {"out_proj": "o_proj", "subln": "head_norm"}

    def halves(key, tensor):
        """Rotary channels from (even, odd) neighbours to the two halves of rotate-half."""
        if key.startswith(("q_proj", "k_proj")):
            return tensor.view(-1, width // 2, 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        return tensor

    def ours(prefix):
        found = {}
        for key, tensor in golden.items():
            if key.startswith(prefix) and key != "grad.x":
                key = key.removeprefix(prefix)
                home, dot, rest = key.partition(".")
                found[names.get(home, home) + dot + rest] = halves(key, tensor)
        return found

    layer.load_state_dict(ours("param."))
    x = golden["x"].clone().requires_grad_()
    position = tuple(torch.cat([golden[which]] * 2, dim=-1)[None] for which in ("cos", "sin"))
    out, _ = layer(x, position)
    out.backward(golden["cotangent"])

    def assert_near(found, expected, what):
        error = (found - expected).abs().max() / expected.abs().max()
        assert error < 2e-6, f"{what}: {error:.1e} of the largest entry"

    assert_near(out.detach(), golden["out"], "output")
    assert_near(x.grad, golden["grad.x"], "gradient of x")
    expected = ours("grad.")
    # the committed file has no gradient of the last projection: output and projection determine it
    assert dict(layer.named_parameters()).keys() - {"o_proj.weight"} <= set(expected)
    for key, gradient in expected.items():
        assert_near(layer.get_parameter(key).grad, gradient, f"gradient of {key}")
