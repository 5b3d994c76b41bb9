"""Published models that transformers does not have become ours with the function of other people's code."""

import json
import math

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from antiphase.data.prepare import symbol_tokenizer
from antiphase.data.retrieval import SymbolLanguage
from antiphase.models.checkpoints import convert

IDS = torch.randint(3, 61, (2, 13), generator=torch.Generator().manual_seed(4))
TOLERANCE = 1e-4


def load(folder, dtype=torch.float32):
    return hf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def logits(folder, ids, dtype=torch.float32, implementation="antiphase"):
    model = load(folder, dtype)
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(ids).logits


def assert_generates_as_it_reads(folder, ids):
    """With a cache that grows, one of fixed length and none: the same tokens, which reading the whole text chooses."""
    model = load(folder, torch.float64)
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, use_cache=False, **settings)
    with torch.no_grad():
        chosen = model(expected[:, :-1]).logits.argmax(-1)[:, ids.shape[1] - 1 :]
    assert torch.equal(expected[:, ids.shape[1] :], chosen)
    for way in ({}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(model.generate(ids, **settings, **way), expected), way


# ------------------------------------------------------------------------------------------ diff-mlx


@pytest.mark.parametrize(("name", "kind", "back"), [
    ("diff", "differential", "diffllama"), ("vanilla", "softmax", "llama"),
])  # fmt: skip
def test_the_public_pair_computes_what_its_own_code_does(tmp_path, golden_folder, name, kind, back):
    folder, golden = golden_folder(f"diff_mlx/{name}")
    config = convert(str(folder), tmp_path / "ours")
    assert config.attention_type == kind
    for implementation in ("antiphase", "eager", "sdpa"):
        found = logits(tmp_path / "ours", golden["input_ids"], implementation=implementation)
        assert (found - golden["logits"]).abs().max() < TOLERANCE
    assert_generates_as_it_reads(tmp_path / "ours", golden["input_ids"][:, :9])
    convert(str(tmp_path / "ours"), tmp_path / "theirs", to=back)
    found = logits(tmp_path / "theirs", golden["input_ids"], implementation="eager")
    assert (found - golden["logits"]).abs().max() < TOLERANCE


MLX = {
    "dim": 24, "n_layers": 2, "n_heads_vanilla": 6, "qk_head_dim": 4, "vocab_size": 61, "mlp_intermediate": 20,
    "block_size": 32, "rope_base": 300.0, "rms_eps": 0.03, "tie_embeddings": True, "amp_dtype": "bfloat16",
}  # fmt: skip


def mlx_tensors(kind, **sizes):
    """Random weights under the names of diff-mlx, with the optimizer's state."""
    c = {**MLX, **sizes}
    width, inner = c["n_heads_vanilla"] * c["qk_head_dim"], c["mlp_intermediate"]
    shapes = {"tok_embed.weight": (c["vocab_size"], c["dim"]), "final_norm.scale": (c["dim"],)}
    for index in range(c["n_layers"]):
        block = f"blocks.{index}."
        shapes |= {f"{block}attn.{name}_proj.weight": (width, c["dim"]) for name in "qkv"}
        shapes |= {f"{block}attn.o_proj.weight": (c["dim"], width), f"{block}mlp.down.weight": (c["dim"], inner)}
        shapes |= {f"{block}mlp.{name}.weight": (inner, c["dim"]) for name in ("gate", "up")}
        shapes |= {f"{block}{name}.scale": (c["dim"],) for name in ("norm_attn", "norm_mlp")}
        if kind == "diff":
            shapes |= {f"{block}attn.lambda_{name}": (c["qk_head_dim"],) for name in ("q1", "k1", "q2", "k2")}
            shapes[f"{block}attn.subln.scale"] = (2 * c["qk_head_dim"],)
    generator = torch.Generator().manual_seed(3)
    found = {f"model.{name}": 0.6 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    moments = {f"opt.{name}.{one}": torch.zeros(shape) for name, shape in shapes.items() for one in "mv"}
    return {**found, **moments, "opt.step": torch.tensor(7)}


def write_mlx(folder, kind="diff", tree=None, tensors=None, **fields):
    folder.mkdir()
    given = {"model": {**MLX, **fields}, "train": {"peak_lr": 1e-3}} if tree is None else tree
    (folder / "config.json").write_text(json.dumps(given))
    save_file(mlx_tensors(kind) if tensors is None else tensors, folder / "latest.safetensors")
    save_file({"nothing": torch.ones(2)}, folder / "another.safetensors")  # such as an earlier step
    return folder


def normalized(x, weight, eps):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def mlx_logits(tensors, kind, ids):
    """The formulas of diff-mlx, map by map: neighbouring channels are rotated, pairs of maps are neighbours."""
    w = {name.removeprefix("model."): one.double() for name, one in tensors.items() if name.startswith("model.")}
    d, maps, eps, length = MLX["qk_head_dim"], MLX["n_heads_vanilla"], MLX["rms_eps"], ids.shape[1]
    angles = torch.arange(length)[:, None] * MLX["rope_base"] ** (-2.0 * torch.arange(d // 2).double() / d)
    turn = torch.polar(torch.ones_like(angles), angles)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = w["tok_embed.weight"][ids]
    for index in range(MLX["n_layers"]):
        p = f"blocks.{index}."
        n = normalized(x, w[f"{p}norm_attn.scale"], eps)
        q, k, v = ((n @ w[f"{p}attn.{name}_proj.weight"].T).unflatten(-1, (maps, d)) for name in "qkv")
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * turn[:, None]).flatten(-2)
            for t in (q, k)
        )
        a = (torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(d)).masked_fill(hidden, -math.inf).softmax(-1)
        if kind == "diff":
            one, two = (
                torch.exp((w[f"{p}attn.lambda_q{i}"] * w[f"{p}attn.lambda_k{i}"]).sum()) for i in (1, 2)
            )  # fmt: skip
            initial = 0.8 - 0.6 * math.exp(-0.3 * index)
            a, v = a[:, ::2] - (one - two + initial) * a[:, 1::2], v.flatten(2).unflatten(-1, (maps // 2, 2 * d))
            out = torch.einsum("bhnm,bmhe->bnhe", a, v)
            out = (1 - initial) * normalized(out, w[f"{p}attn.subln.scale"], eps)
        else:
            out = torch.einsum("bhnm,bmhe->bnhe", a, v)
        x = x + out.flatten(2) @ w[f"{p}attn.o_proj.weight"].T
        n = normalized(x, w[f"{p}norm_mlp.scale"], eps)
        gate, up, down = (w[f"{p}mlp.{name}.weight"].T for name in ("gate", "up", "down"))
        x = x + (silu(n @ gate) * (n @ up)) @ down
    return normalized(x, w["final_norm.scale"], eps) @ w["tok_embed.weight"].T


@pytest.mark.parametrize("kind", ["diff", "vanilla"])
def test_diff_mlx_is_converted_by_its_formulas(tmp_path, kind):
    """The optimizer's state, and files beside the last checkpoint, are not read."""
    tensors = mlx_tensors(kind)
    tensors["opt.blocks.0.mlp.up.weight.v"] = torch.full((1,), math.nan)
    convert(str(write_mlx(tmp_path / "theirs", kind, tensors=tensors)), tmp_path / "ours", dtype="float64")
    found = logits(tmp_path / "ours", IDS, torch.float64)
    torch.testing.assert_close(found, mlx_logits(tensors, kind, IDS), rtol=1e-6, atol=1e-6)
    stored = load_file(tmp_path / "ours" / "model.safetensors")
    assert not [name for name in stored if name.startswith("opt.") or "lm_head" in name]


def test_a_model_without_a_tokenizer_gets_the_one_that_is_named(tmp_path, antiphase, refused):
    source = write_mlx(tmp_path / "theirs")
    words = symbol_tokenizer(SymbolLanguage(8, 9, 10))
    words.save_pretrained(tmp_path / "words")
    code, _, err = antiphase("convert", source, tmp_path / "ours", "--tokenizer", tmp_path / "words")
    assert code == 0, err
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("key1 number2").input_ids == words("key1 number2").input_ids
    again = ("convert", tmp_path / "ours", tmp_path / "again", "--tokenizer", tmp_path / "words")
    refused(r"has a tokenizer \(tokenizer.json\); leave out --tokenizer", *again)
    symbol_tokenizer(SymbolLanguage(40, 40, 40)).save_pretrained(tmp_path / "many")
    refused("^antiphase: --tokenizer .*many", "convert", source, tmp_path / "more", "--tokenizer", tmp_path / "many")


def without(name):
    return {key: one for key, one in mlx_tensors("diff").items() if key != name}


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"window": 8}, r"window=8 is no known field of models of type 'diff_mlx'"),
    ({"attention_type": "softmax"}, r"attention_type='softmax' is no known field"),
    ({"tie_embeddings": False}, r"tie_embeddings=False .* only True can be converted"),
    ({"dim": "24"}, "hidden_size must be a whole number"),
    ({"rope_base": None}, "rope_theta must be a number above 0, got None"),
    ({"tree": {"model": {**MLX}, "train": {}, "data": {}}}, "the fields model and train alone, got data"),
    ({"tree": {"model": {"dim": 24}, "train": {}}}, r"cannot be used \(n_layers is missing\)"),
    ({"tensors": without("model.blocks.1.attn.lambda_k2")}, r"no weights for model\.blocks\.1\.attn\.lambda_k2"),
    ({"tensors": without("model.blocks.1.mlp.up.weight")}, r"no weights for model\.blocks\.1\.mlp\.up\.weight"),
    ({"tensors": mlx_tensors("diff") | {"model.head.weight": torch.ones(61, 24)}}, "no place for model.head.weight"),
    ({"tensors": mlx_tensors("diff", mlp_intermediate=21)}, r"model\.blocks\.0\.mlp\.down\.weight has the shape"),
])  # fmt: skip
def test_what_diff_mlx_does_not_have_is_refused_by_name(tmp_path, refused, fields, pattern):
    source = write_mlx(tmp_path / "theirs", **fields)
    refused(pattern, "convert", source, tmp_path / "ours")
