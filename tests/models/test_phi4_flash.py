"""Attention layers of Phi-4-mini-flash are V1 layers with the outputs and maps of its own code."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphase.attention.maps import layer_maps
from antiphase.base.errors import InputError
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.models.phi4_flash import phi4_flash_attention

CONFIG = {
    "model_type": "phi4flash", "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 8, "sliding_window": 3,
}  # fmt: skip


@pytest.mark.parametrize("number", [5, 17, 19])
def test_outputs_and_lambda_are_those_of_its_own_code(golden_folder, number):
    folder, golden = golden_folder("phi4_flash_attention")
    layer, given = phi4_flash_attention(str(folder), number), {}
    if number == 19:
        causal = torch.ones(37, 37, dtype=torch.bool).tril()[None, None]
        given = {"context": golden["17.input"], "attention_mask": causal}
    out, _ = layer(golden[f"{number}.input"], **given)
    assert (out - golden[f"{number}.output"]).abs().max() < 2e-6
    assert (layer.lam() - golden[f"{number}.lambda"]).abs() < 1e-6
    assert out.requires_grad is False


@pytest.fixture
def folder(tmp_path):
    """A checkpoint with layers 1, 5 and 7, and by number the layers of which it is made."""
    tensors, layers = {}, {}
    torch.manual_seed(0)
    for number in (1, 5, 7):
        layer = layers[number] = DifferentialAttentionV1(
            24, 4, num_key_value_heads=2, layer_idx=number, bias=True, sliding_window=3 if number == 1 else None
        )
        rows = "q" if number == 7 else "qkv"
        for kind in ("weight", "bias"):
            stacked = torch.cat([getattr(layer.get_submodule(f"{row}_proj"), kind) for row in rows])
            tensors[f"model.layers.{number}.attn.Wqkv.{kind}"] = stacked.detach()
            tensors[f"model.layers.{number}.attn.out_proj.{kind}"] = getattr(layer.o_proj, kind).detach()
        inner = f"model.layers.{number}.attn.inner_cross_attn."
        tensors |= {inner + name: getattr(layer, name).detach() for name in ("lambda_q1", "lambda_k1")}
        tensors |= {inner + name: getattr(layer, name).detach() for name in ("lambda_q2", "lambda_k2")}
        tensors[f"{inner}subln.weight"] = layer.head_norm.weight.detach()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path, layers


def test_windows_and_shared_keys_follow_the_layer_s_place(folder):
    path, layers = folder
    x, y = torch.randn(2, 1, 9, 24).unbind()
    for number in (1, 5):
        expected = layers[number](x)[0]
        assert (phi4_flash_attention(str(path), number)(x)[0] - expected).abs().max() < 1e-6
    later = phi4_flash_attention(str(path), 7)
    assert torch.equal(later.k_proj.weight, layers[5].k_proj.weight)
    assert torch.equal(later.v_proj.bias, layers[5].v_proj.bias)
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="cannot be combined with a context"):
        later(x, context=y, attention_mask=mask, past_key_values=object())
    for given in ({}, {"context": y}, {"attention_mask": mask}):
        with pytest.raises(ValueError, match="layer 7 reads the keys of the full layer"):
            later(x, **given)


def test_maps_of_a_layer_alone_make_its_weights(folder):
    layer = phi4_flash_attention(str(folder[0]), 1)
    x = torch.randn(1, 9, 24)
    found = layer_maps(layer, x)
    assert found.layer == 1
    assert found.maps.shape == (2, 2, 9, 9)
    assert torch.equal(found.visible, torch.ones(9, 9).tril().triu(-2).bool())
    assert torch.allclose(found.maps.sum(-1), torch.ones(()))
    assert torch.allclose(found.weights(), layer(x)[1][0], atol=1e-6)
    assert (found.lam == layer.lam()).all()


@pytest.mark.parametrize(("change", "number", "words"), [
    ({}, 4, "layer 4 has no attention"),
    ({}, 9, "layer 9 has no attention"),
    ({"model_type": "phi3"}, 1, "no folder of a Phi-4-mini-flash model"),
    ({"mb_per_layer": 4}, 1, "no folder of a Phi-4-mini-flash model"),
    ({"num_key_value_heads": 4}, 1, "Wqkv.weight has shape"),
    ({"sliding_window": None}, 1, "sliding_window must be"),
    ({}, 3, "layers.3.attn.Wqkv.weight is missing"),
])  # fmt: skip
def test_other_models_and_layers_are_refused_by_name(folder, change, number, words):
    path, _ = folder
    (path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(InputError, match=words):
        phi4_flash_attention(str(path), number)


def test_a_tensor_of_the_layer_that_has_no_place_is_refused_by_name(folder):
    path, _ = folder
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "model.layers.5.attn.gate.weight": torch.ones(2)}, path / "model.safetensors")
    phi4_flash_attention(str(path), 1)
    with pytest.raises(InputError, match=r"no place for the tensor model\.layers\.5\.attn\.gate\.weight"):
        phi4_flash_attention(str(path), 5)


def test_a_folder_that_is_missing_is_refused():
    with pytest.raises(InputError, match="Phi-4-mini-flash"):
        phi4_flash_attention("nobody/nothing", 1)
