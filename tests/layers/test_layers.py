"""The plain layers are PyTorch's attention and the reference, alone, with any attention function and any cache."""

import pickle
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from antiphase.base.errors import InputError
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.differential_v2 import DifferentialAttentionV2
from antiphase.layers.functions import antiphase_attention, eager_attention, join_halves, subtracting, triton_attention
from antiphase.layers.lambdas import lambda_init
from antiphase.layers.positions import rotary_positions, rotate
from antiphase.layers.registry import LAYERS
from antiphase.layers.softmax import SoftmaxAttention
from antiphase.ops.api import differential_attention

HIDDEN, MAPS, WIDTH = 40, 4, 6
VARIANTS = {
    "softmax": ("softmax", {"num_key_value_heads": 2}),
    "norm, gate, sinks and DEX": (
        "softmax", {"head_norm": True, "output_gate": True, "sink_logits": True, "dex_heads": [0, 3]}
    ),
    "V1": ("differential", {"layer_idx": 2}),
    "V1, grouped, λ by head": ("differential", {"num_noise_heads": 1, "lambda_form": "head", "output_gate": True}),
    "V1, bare": ("differential", {"head_norm": False, "head_scale": False, "lambda_form": "scalar"}),
    "V2": ("differential_v2", {"bias": True}),
    "V2, linear": ("differential_v2", {"lambda_form": "linear", "num_key_value_heads": 1}),
    "across": ("differential_v2_across", {}),
}  # fmt: skip
every_variant = pytest.mark.parametrize("name", VARIANTS)


def build(name, **more):
    """A layer in float64 with random values of every parameter."""
    kind, fields = VARIANTS[name]
    layer = LAYERS[kind](HIDDEN, MAPS, head_dim=WIDTH, **{"layer_idx": 0, **fields, **more}).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(length=9, batch=2, width=HIDDEN):
    return torch.randn(batch, length, width, dtype=torch.float64)


def maps_of(projection, x):
    return projection(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2)


# ------------------------------------------------------------------------------------------ PyTorch's attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_softmax_attention_is_multihead_attention_in_output_and_every_gradient(causal, bias):
    layer = SoftmaxAttention(HIDDEN, MAPS, layer_idx=0, is_causal=causal, bias=bias).double()
    theirs = nn.MultiheadAttention(HIDDEN, MAPS, bias=bias, batch_first=True).double()
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
        theirs.out_proj.weight.copy_(layer.o_proj.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
            theirs.out_proj.bias.copy_(layer.o_proj.bias)
    x, real = tokens(), torch.ones(2, 9, dtype=torch.bool)
    real[1, 6:] = False
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else None
    wanted, _ = theirs(x, x, x, key_padding_mask=~real, attn_mask=hidden, need_weights=False)
    found, _ = layer(x, attention_mask=real[:, None, None])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    wanted.square().sum().backward()
    found.square().sum().backward()
    gradients = torch.cat([projection.weight.grad for projection in projections])
    torch.testing.assert_close(gradients, theirs.in_proj_weight.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(layer.o_proj.weight.grad, theirs.out_proj.weight.grad, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------ the reference


@pytest.mark.parametrize(
    "function", [antiphase_attention, eager_attention, partial(antiphase_attention, impl="blockwise")]
)
@pytest.mark.parametrize("options", [{}, {"is_causal": False}, {"sliding_window": 4}, {"num_key_value_heads": 2}])
@pytest.mark.parametrize("name", ["V1", "V2"])
def test_differential_attention_is_the_reference(name, options, function):
    layer = build(name, attention=function, head_norm_eps=0.01, **options)
    x, position = tokens(), rotary_positions(torch.arange(9)[None], WIDTH)
    query, key, value = (maps_of(projection, x) for projection in (layer.q_proj, layer.k_proj, layer.v_proj))
    query, key = rotate(query, *position), rotate(key, *position)
    form = {"is_causal": options.get("is_causal", True), "impl": "reference", "return_weights": True}
    form["sliding_window"] = options.get("sliding_window")
    if name == "V1":
        wanted, weights = differential_attention(query, key, join_halves(value), layer.lam(), **form)
        wanted = wanted / torch.sqrt(wanted.square().mean(-1, keepdim=True) + 0.01) * layer.head_norm.weight
        wanted = wanted * (1 - lambda_init(2))
    else:
        lam = torch.sigmoid(layer.lambda_proj(x)).transpose(1, 2)
        wanted, weights = differential_attention(query, key, value, lam, **form)
    found, formed = layer(x, position)
    torch.testing.assert_close(found, layer.o_proj(wanted.transpose(1, 2).flatten(2)), rtol=1e-9, atol=1e-9)
    if function is eager_attention:
        torch.testing.assert_close(formed, weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_variant
def test_a_layer_in_half_precision_takes_the_positions_in_fp32(name, dtype):
    layer, x = build(name), tokens()
    position = rotary_positions(torch.arange(9)[None], WIDTH)
    with torch.no_grad():
        wanted, found = layer(x, position)[0], layer.to(dtype)(x.to(dtype), position)[0]
    assert found.dtype == dtype
    assert float((found.double() - wanted).norm() / wanted.norm()) < 0.03


def test_rotary_positions_are_those_of_llama():
    config = LlamaConfig(hidden_size=MAPS * WIDTH, num_attention_heads=MAPS, rope_theta=500.0)
    places, maps = torch.arange(7)[None] + 3, torch.randn(2, MAPS, 7, WIDTH)
    wanted = LlamaRotaryEmbedding(config)(maps, places)
    found = rotary_positions(places, WIDTH, theta=500.0)
    torch.testing.assert_close(found, tuple(wanted), rtol=1e-6, atol=1e-6)
    assert torch.equal(rotate(maps, *wanted), apply_rotary_pos_emb(maps, maps, *wanted)[0])


# ------------------------------------------------------------------------------------------ functions, caches, contexts


@pytest.mark.parametrize("name", ["softmax", "V2", "across"])
def test_a_function_of_transformers_serves_as_it_is_or_subtracted(name):
    ordinary = ALL_ATTENTION_FUNCTIONS["sdpa"]
    layer = build(name)
    x = tokens()
    wanted = layer(x)[0]
    layer.attention = subtracting(ordinary) if name == "V2" else ordinary
    torch.testing.assert_close(layer(x)[0], wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["V1", "V2"])
def test_a_function_that_does_not_subtract_is_refused(name):
    layer = build(name, attention=ALL_ATTENTION_FUNCTIONS["sdpa"])
    with pytest.raises(ValueError, match=r"gave 4 outputs for 2 heads; .* must subtract the maps"):
        layer(tokens())


class Lists:
    """The least that a cache must be."""

    def __init__(self):
        self.kept = {}

    def update(self, key, value, layer_idx):
        if layer_idx in self.kept:
            key, value = (torch.cat(pair, dim=2) for pair in zip(self.kept[layer_idx], (key, value), strict=True))
        self.kept[layer_idx] = key, value
        return key, value


@pytest.mark.parametrize("cache", [Lists, DynamicCache])
@every_variant
def test_any_cache_gives_what_one_call_gives(name, cache):
    layer, x, kept, parts = build(name), tokens(), cache(), []
    for start, end in pairwise((0, 5, 6, 9)):
        position = rotary_positions(torch.arange(start, end)[None], WIDTH)
        parts.append(layer(x[:, start:end], position, past_key_values=kept)[0])
    whole = layer(x, rotary_positions(torch.arange(9)[None], WIDTH))[0]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-7, atol=1e-7)


@every_variant
@pytest.mark.parametrize("padded", [0, 3])
def test_a_window_holds_in_single_steps_behind_a_mask_of_padding(name, padded):
    layer, x, kept, parts = build(name, sliding_window=3), tokens(), Lists(), []
    real = torch.ones(len(x), 1, 1, 9, dtype=torch.bool)
    real[0, ..., :padded] = False  # padding at the left, so that the window still counts from the end
    for place in range(9):
        mask = real[..., : place + 1]
        parts.append(layer(x[:, place : place + 1], None, mask, past_key_values=kept)[0])
    whole = layer(x, None, real)[0]
    found = torch.cat(parts, dim=1)
    torch.testing.assert_close(found[:, padded:], whole[:, padded:], rtol=1e-7, atol=1e-7)


@every_variant
def test_keys_may_come_from_another_sequence_of_another_width(name):
    layer = build(name, is_causal=False, context_size=14)
    x, context, mask = tokens(), tokens(5, width=14), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[0, ..., 3:] = False
    found = layer(x, None, mask, context=context)[0]
    changed = context.clone()
    changed[0, 3:] = 9.0
    torch.testing.assert_close(layer(x, None, mask, context=changed)[0], found)
    changed[0, 0] = 9.0
    assert (layer(x, None, mask, context=changed)[0] - found)[0].abs().min() > 0
    with pytest.raises(ValueError, match="past_key_values cannot be combined with a context"):
        layer(x, past_key_values=Lists(), context=context)


# ------------------------------------------------------------------------------------------ fresh layers, bad input


def test_a_fresh_layer_has_drawn_its_lambda_unless_it_shall_not():
    layer = DifferentialAttentionV1(256, 2, layer_idx=0)
    assert torch.cat([layer.lambda_q1, layer.lambda_k2]).std().item() == pytest.approx(0.1, rel=0.2)
    assert not DifferentialAttentionV1(16, 2, layer_idx=0, initialize=False).lambda_q1.any()
    assert torch.equal(
        SoftmaxAttention(16, 2, layer_idx=0, head_norm=True, head_norm_init=0.3).head_norm.weight, torch.full([8], 0.3)
    )


@pytest.mark.parametrize(("kind", "arguments", "said"), [
    (SoftmaxAttention, {"num_attention_heads": 3}, r"num_attention_heads \(3\) does not divide hidden_size \(40\)"),
    (SoftmaxAttention, {"hidden_size": 4.0}, "hidden_size must be a whole number of at least 1, got 4.0"),
    (SoftmaxAttention, {"sliding_window": 0}, "sliding_window must be a whole number of at least 1, got 0"),
    (SoftmaxAttention, {"layer_idx": -1}, "layer_idx must not be below 0, got -1"),
    (SoftmaxAttention, {"sink_logits": 1}, "sink_logits must be true or false, got 1"),
    (DifferentialAttentionV1, {"num_key_value_heads": 1}, "num_key_value_heads must be even"),
    (DifferentialAttentionV2, {"num_attention_heads": "4"}, "num_attention_heads must be a whole number"),
    (DifferentialAttentionV2, {"num_key_value_heads": 4}, "both maps of a head read the same key"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_named(kind, arguments, said):
    with pytest.raises(InputError, match=said):
        kind(**{"hidden_size": HIDDEN, "num_attention_heads": MAPS, "layer_idx": 0, **arguments})


ALONE = """
import sys
sys.modules["transformers"] = None  # any import of it fails
import torch
from torch import nn
from antiphase import DifferentialAttention
from antiphase.layers.positions import rotary_positions
from antiphase.layers.registry import LAYERS

class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.attend, self.head = nn.Embedding(7, 16), LAYERS[kind](16, 4, layer_idx=0), nn.Linear(16, 7)
        self.look = DifferentialAttention(16, 4, layer_idx=1)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.attend(x, rotary_positions(torch.arange(ids.shape[1])[None], 4))[0]
        return self.head(x + self.look(x))

torch.manual_seed(0)
ids = torch.tensor([[1, 2, 3, 4, 5, 6] * 3, [6, 4, 2] * 6])
for kind in LAYERS:
    model = Block(kind)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], (kind, losses)
"""


@pytest.mark.slow
def test_every_layer_learns_inside_a_bare_module_without_transformers():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_example_in_the_documentation_runs(capsys):
    page = (Path(__file__).parents[2] / "docs/huggingface.md").read_text(encoding="utf-8")
    code = page.partition("## Layers for any PyTorch model")[2].partition("```python\n")[2].partition("```")[0]
    exec(code, {})
    assert capsys.readouterr().out.startswith("torch.Size([2, 10, 64]) ")


def test_one_token_is_served_or_refused_as_two_are():
    layer = LAYERS["differential"](HIDDEN, MAPS, head_dim=WIDTH, layer_idx=0).double()
    for x in (tokens(1), tokens(2)):
        for given in ({"is_causal": False}, {"impl": "blockwise"}):
            torch.testing.assert_close(layer(x, **given)[0][:, -1], layer(x)[0][:, -1])
        with pytest.raises(ValueError, match="does not support the arguments softcap"):
            layer(x, softcap=1.0)


@pytest.mark.parametrize("function", [antiphase_attention, triton_attention, eager_attention])
def test_a_layer_can_be_pickled_with_its_function(function):
    layer = LAYERS["differential"](HIDDEN, MAPS, head_dim=WIDTH, layer_idx=0, attention=function)
    assert pickle.loads(pickle.dumps(layer)).attention is function


def test_a_norm_of_all_maps_without_its_epsilon_is_refused():
    with pytest.raises(InputError, match="whole_qk_norm needs qk_norm_eps"):
        DifferentialAttentionV1(64, 8, whole_qk_norm=True)
