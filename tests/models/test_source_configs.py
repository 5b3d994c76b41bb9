"""Published models that transformers does not have become ours with the function of other people's code."""

import json
import math

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from antiphase.lab.text.prepare import symbol_tokenizer
from antiphase.lab.text.retrieval import SymbolLanguage
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
    ({"n_layers": 10**9, "tensors": {}}, "n_layers must be a whole number up to 10000, got 1000000000"),
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


# ------------------------------------------------------------------------------------------ Motif


@pytest.mark.parametrize("name", ["motif_2_6b", "motif_2_12_7b"])
def test_motif_computes_what_other_peoples_code_does(tmp_path, golden_folder, name):
    folder, golden = golden_folder(name)
    config = convert(str(folder), tmp_path / "ours", dtype="float32")
    ids = golden["input_ids"]
    for implementation in ("antiphase", "eager", "sdpa"):
        model = load(tmp_path / "ours")
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found = model(ids, output_hidden_states=True)
        assert (found.logits - golden["logits"]).abs().max() < TOLERANCE
        for one, other in zip(found.hidden_states[:-1], golden["hidden_states"][:-1], strict=True):
            assert (one - other).abs().max() < TOLERANCE
    layers = [layer.self_attn for layer in model.model.layers]
    assert [layer.lam().item() for layer in layers] == pytest.approx(golden["lambda"].tolist(), abs=1e-6)
    assert config.lambda_init == pytest.approx(golden["lambda_init"].tolist())
    assert_generates_as_it_reads(tmp_path / "ours", ids[:, :9])


def test_weights_of_motif_stay_in_bf16_and_lambda_does_not(tmp_path, golden_folder):
    folder, _ = golden_folder("motif_2_12_7b")
    convert(str(folder), tmp_path / "ours")
    kinds = {name: one.dtype for name, one in load_file(tmp_path / "ours" / "model.safetensors").items()}
    assert {kind for name, kind in kinds.items() if "lambda_" in name} == {torch.float32}
    assert {kind for name, kind in kinds.items() if "lambda_" not in name} == {torch.bfloat16}


def test_motif_3_is_told_apart(tmp_path, golden_folder, refused):
    folder, _ = golden_folder("motif_3_attention")
    refused("kv_lora_rank=14 makes it a Motif-3", "convert", folder, tmp_path / "ours")


MOTIF = {
    "architectures": ["MotifForCausalLM"], "model_type": "Motif", "hidden_act": "poly_norm", "torch_dtype": "float32",
    "auto_map": {"AutoConfig": "configuration_motif.MotifConfig", "AutoModelForCausalLM": "modeling_motif.Motif"},
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "rms_norm_eps": 0.02, "attn_rms_norm_eps": 0.05, "rope_theta": 300.0,
    "rope_scaling": None, "max_position_embeddings": 32, "use_bias": False, "use_sliding_window": False,
    "sliding_window": None, "max_window_layers": 28, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {"num_attention_heads": 16, "num_noise_heads": 4, "num_key_value_heads": 4, "head_dim": 6, "k_ratio": 1}
"""Three first maps for each second one, and two second ones for each value head."""


def motif_tensors(config):
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries, keys, noise = config["num_attention_heads"], config["num_key_value_heads"], config.get("num_noise_heads")
    d = config.get("head_dim") or hidden // queries
    heads = queries // 2 if noise is None else queries - noise
    shapes = {"model.embed_tokens.weight": (words, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (words, hidden)
    for index in range(config["num_hidden_layers"]):
        p = f"model.layers.{index}."
        shapes |= {f"{p}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{p}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"{p}mlp.down_proj.weight": (hidden, inner), f"{p}self_attn.subln.weight": (2 * d,)}
        shapes |= {f"{p}mlp.act_fn.weight": (3,), f"{p}mlp.act_fn.bias": (1,)}
        shapes |= {f"{p}self_attn.lambda_{name}": (d,) for name in ("q1", "k1", "q2", "k2")}
        shapes |= {f"{p}self_attn.{name}_proj.weight": (keys * d, hidden) for name in "kv"}
        shapes[f"{p}self_attn.q_proj.weight"] = (queries * d, hidden)
        shapes[f"{p}self_attn.o_proj.weight"] = (hidden, heads * 2 * d)
    generator = torch.Generator().manual_seed(5)
    return {name: 0.6 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_motif(folder, tensors=None, **fields):
    folder.mkdir()
    config = {name: value for name, value in {**MOTIF, **fields}.items() if value != "left out"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(motif_tensors({**MOTIF, **fields}) if tensors is None else tensors, folder / "model.safetensors")
    for name in ("configuration_motif.py", "modeling_motif.py"):  # never run
        (folder / name).write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    return folder


def motif_logits(w, c, ids):
    """Head by head: grouped heads share the noise map of their stripe; λinit is that of the layer before."""
    w = {name: one.double() for name, one in w.items()}
    queries, noise, keys = c["num_attention_heads"], c.get("num_noise_heads"), c["num_key_value_heads"]
    d, length = c.get("head_dim") or c["hidden_size"] // queries, ids.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    angles = torch.arange(length)[:, None] * c["rope_theta"] ** (-2.0 * torch.arange(d // 2).double() / d)

    def turned(x):  # (B, N, maps, d)
        one, two = x.chunk(2, dim=-1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    def attention(q, k):
        return (torch.einsum("bnd,bmd->bnm", q, k) / math.sqrt(d)).masked_fill(hidden, -math.inf).softmax(-1)

    x = w["model.embed_tokens.weight"][ids]
    for index in range(c["num_hidden_layers"]):
        p = f"model.layers.{index}."
        n = normalized(x, w[f"{p}input_layernorm.weight"], c["rms_norm_eps"])
        q, k, v = ((n @ w[f"{p}self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, d)) for name in "qkv")
        q, k = turned(q), turned(k)
        one, two = (torch.exp((w[f"{p}self_attn.lambda_q{i}"] * w[f"{p}self_attn.lambda_k{i}"]).sum()) for i in (1, 2))
        initial = 0.8 - 0.6 * math.exp(-0.3 * (index - 1))
        outputs = []
        width = 2 if noise is None else queries // noise  # queries that end with one of a second map
        for group in range(queries // width):
            for member in range(width - 1):
                j = len(outputs) // (queries // width * (width - 1) // (keys // 2))
                weights = attention(q[:, :, group * width + member], k[:, :, 2 * j])
                last = attention(q[:, :, group * width + width - 1], k[:, :, 2 * j + 1])
                weights = weights - (one - two + initial) * last
                out = weights @ v[:, :, 2 * j : 2 * j + 2].flatten(2)
                outputs.append((1 - initial) * normalized(out, w[f"{p}self_attn.subln.weight"], c["attn_rms_norm_eps"]))
        x = x + torch.cat(outputs, dim=-1) @ w[f"{p}self_attn.o_proj.weight"].T
        n = normalized(x, w[f"{p}post_attention_layernorm.weight"], c["rms_norm_eps"])
        gate, up, down = (w[f"{p}mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        z, a = n @ gate, w[f"{p}mlp.act_fn.weight"]
        act = sum(a[i] * normalized(z ** (3 - i), 1.0, 1e-6) for i in range(3)) + w[f"{p}mlp.act_fn.bias"]
        x = x + (act * (n @ up)) @ down
    head = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return normalized(x, w["model.norm.weight"], c["rms_norm_eps"]) @ head.T


FORMS = {"pairs": {}, "tied": {"tie_word_embeddings": True, "num_key_value_heads": 8}, "grouped": GROUPED,
         "one noise head": {**GROUPED, "num_noise_heads": 1, "num_attention_heads": 4, "num_key_value_heads": 2},
         "as many noise heads": {**GROUPED, "num_noise_heads": 8}}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_motif_is_converted_by_its_formulas(tmp_path, form):
    tensors = motif_tensors({**MOTIF, **FORMS[form]})
    folder = write_motif(tmp_path / "theirs", tensors, **FORMS[form])
    convert(str(folder), tmp_path / "ours", dtype="float64")
    expected = motif_logits(tensors, {**MOTIF, **FORMS[form]}, IDS)
    for implementation in ("antiphase", "eager"):
        found = logits(tmp_path / "ours", IDS, torch.float64, implementation)
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"use_bias": True}, r"use_bias=True .* only False can be converted"),
    ({"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window=True"),
    ({**GROUPED, "k_ratio": 3}, r"k_ratio=3 .* only 1 can be converted"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling=.* has no known meaning"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters=.* has no known meaning"),
    ({"attention_dropout": 0.1}, "attention_dropout=0.1"), ({"hidden_act": "relu"}, "hidden_act='relu'"),
    ({"expanded": True}, "expanded=True"), ({"mystery": 3}, "mystery=3 is no known field of models of type 'Motif'"),
    ({"kv_lora_rank": 14}, "kv_lora_rank=14 makes it a Motif-3"),
    ({**GROUPED, "num_noise_heads": 3}, "num_noise_heads=3 .* must divide its num_attention_heads"),
    ({**GROUPED, "num_noise_heads": 0}, "num_noise_heads=0"),
    ({"num_attention_heads": 0}, "num_attention_heads must be a whole number of at least 1, got 0"),
    ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number of at least 1, got '2'"),
    ({"intermediate_size": "left out"}, "intermediate_size is missing"),
    ({"tensors": {"model.layers.0.self_attn.q_norm.weight": torch.ones(3)}}, "no place for .*q_norm.weight"),
    ({"tensors": {"model.layers.1.mlp.act_fn.bias": None}}, r"no weights for model\.layers\.1\.mlp\.act_fn\.bias"),
    ({"tensors": {"model.layers.1.self_attn.subln.weight": torch.ones(3)}}, r"self_attn\.subln\.weight has the shape"),
])  # fmt: skip
def test_what_is_not_expressed_of_motif_is_refused_by_name(tmp_path, refused, fields, pattern):
    changed = fields.pop("tensors", {}) if "tensors" in (fields := dict(fields)) else {}
    sizes = {**MOTIF, **(GROUPED if "num_noise_heads" in fields else {})}
    kept = {name: one for name, one in {**motif_tensors(sizes), **changed}.items() if one is not None}
    folder = write_motif(tmp_path / "theirs", kept, **fields)
    refused(pattern, "convert", folder, tmp_path / "ours")


def test_motif_may_have_fields_that_are_null_and_positions_as_transformers_writes_them(tmp_path):
    convert(str(write_motif(tmp_path / "theirs")), tmp_path / "ours")
    rope = {"rope_theta": "left out", "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}
    convert(str(write_motif(tmp_path / "other", kv_lora_rank=None, mystery=None, **rope)), tmp_path / "again")
    assert torch.equal(logits(tmp_path / "again", IDS), logits(tmp_path / "ours", IDS))


@pytest.mark.parametrize(("config", "pattern"), [
    ({"model_type": "strange", "auto_map": {"AutoConfig": "code.Config"}}, "of type 'strange'; code that lies"),
    ({"model_type": "strange"}, "knows no models of type 'strange'; a newer one may$"),
    ({"model_type": "phi4flash"}, "its attention layers alone can be read, by phi4_flash_attention"),
    ({"model": {}, "train": {}}, "this is a model of diff-mlx; run antiphase convert first"),
])  # fmt: skip
def test_models_that_only_their_own_code_could_read_are_refused_by_their_type(tmp_path, refused, config, pattern):
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(pattern, "look", tmp_path, "--text", "a", "--output", tmp_path / "look")


def test_motif_has_no_form_elsewhere_and_is_measured_once_converted(tmp_path, refused):
    folder = write_motif(tmp_path / "theirs")
    refused("has no place for what the model has in lambda_init", "convert", folder, tmp_path / "x", "--to diffllama")
    refused("--to llama takes softmax models", "convert", folder, tmp_path / "x", "--to llama")
    symbol_tokenizer(SymbolLanguage(8, 9, 10)).save_pretrained(folder)
    text = ("--text", "a", "--output", tmp_path / "look")
    refused("a model of type 'Motif'; give another, or convert it first with antiphase convert", "look", folder, *text)


def test_maps_that_heads_share_are_formed_once(tmp_path, monkeypatch):
    """Twelve first and four second maps: 16, and not 24, in a text and in a decoding step; the native kernels learn how
    many share one.
    """
    from antiphase.layers import functions

    convert(str(write_motif(tmp_path / "theirs", **GROUPED)), tmp_path / "ours")
    model = load(tmp_path / "ours")
    formed, shared = [], []

    def native(*arguments, **named):
        shared.append(named["shared"])
        return attend_cached(*arguments, **named)

    def counted(run):
        def call(query, *arguments, **named):
            formed.append(query.shape[1])
            return run(query, *arguments, **named)

        return call

    attend_cached = functions.attend_cached
    monkeypatch.setattr(functions, "attend_cached", native)
    with torch.no_grad():
        model(IDS)
    assert shared == [3] * 2
    monkeypatch.setattr(functions, "attend_cached", lambda *_, **__: None)  # as without the kernels
    for name in ("softmax_attention", "softmax_weights", "differential_attention"):
        monkeypatch.setattr(functions, name, counted(getattr(functions, name)))
    for implementation in ("antiphase", "sdpa", "eager"):
        model.set_attn_implementation(implementation)
        for tokens in (IDS, IDS[:, :1]):
            formed.clear()
            with torch.no_grad():
                model(tokens)
            assert formed == [12, 4] * 2


def test_heads_with_masks_of_their_own_do_not_share_maps(tmp_path):
    """Their second maps differ, though their queries and keys are the same."""
    convert(str(write_motif(tmp_path / "theirs", **GROUPED)), tmp_path / "ours")
    model = load(tmp_path / "ours", torch.float64)
    mask = torch.ones(1, 1, 13, 13, dtype=torch.bool).tril().repeat(1, 12, 1, 1)
    mask[:, 1, :, 2] = mask[:, 1, :, 3] = False
    mask[:, 1, torch.arange(13), torch.arange(13)] = True
    found = {}
    for implementation in ("antiphase", "eager"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found[implementation] = model(IDS, attention_mask=mask).logits
            plain = model(IDS).logits
    torch.testing.assert_close(found["antiphase"], found["eager"], rtol=1e-6, atol=1e-6)
    assert (found["eager"] - plain).abs().max() > 1e-3
