"""Other architectures with differential attention: what they compute, how they are built, saved and refused."""

import pickle
import subprocess
import sys
import warnings

import pytest
import torch
import transformers as hf

import antiphase
from antiphase.base.errors import InputError
from antiphase.layers.differential import DifferentialHeads
from support.models import ids_of, randomize

SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 8,
    "pad_token_id": 0, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 4}
DECODERS = {
    "llama": hf.LlamaConfig(**GROUPED),
    "mistral": hf.MistralConfig(**GROUPED, sliding_window=5),
    "qwen2": hf.Qwen2Config(**GROUPED),
    "qwen3": hf.Qwen3Config(**GROUPED, head_dim=6),
    "gpt2": hf.GPT2Config(
        vocab_size=61, n_embd=48, n_layer=3, n_head=8, n_positions=64, attn_pdrop=0.0, pad_token_id=0
    ),
}
BERT = hf.BertConfig(**SIZES, attention_probs_dropout_prob=0.0)
every_decoder = pytest.mark.parametrize("name", DECODERS)


def built(config, auto=hf.AutoModelForCausalLM):
    return randomize(auto.from_config(antiphase.differential_config(config)), 0.2)


def test_a_differential_llama_is_the_model_of_this_project():
    theirs = built(hf.LlamaConfig(**GROUPED, rms_norm_eps=1e-6))
    fields = {name: value for name, value in GROUPED.items() if name != "pad_token_id"}
    ours = antiphase.AntiphaseForCausalLM(antiphase.AntiphaseConfig(attention_type="differential", **fields)).eval()
    ours.load_state_dict({name.replace(".differential.", "."): tensor for name, tensor in theirs.state_dict().items()})
    ids = ids_of(2, 19)
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=1e-4, atol=1e-4)


@every_decoder
def test_decoding_with_a_cache_and_padding_equals_one_forward(name):
    model = built(DECODERS[name])
    ids, mask = ids_of(2, 12), torch.ones(2, 12, dtype=torch.int64)
    mask[0, :4] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    one, other = (model.generate(ids, attention_mask=mask, use_cache=cached, **options) for cached in (True, False))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", [*DECODERS, "bert"])
def test_a_saved_model_comes_back_equal(tmp_path, name):
    config, auto = (BERT, hf.AutoModelForMaskedLM) if name == "bert" else (DECODERS[name], hf.AutoModelForCausalLM)
    model, ids = built(config, auto), ids_of(2, 9)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert hf.AutoConfig.from_pretrained(tmp_path).model_type == f"differential_{config.model_type}"
    half = auto.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for n, p in half.named_parameters() if "lambda" in n} == {torch.float32}
    assert half(ids).logits.dtype == torch.bfloat16


@pytest.mark.essential
@pytest.mark.slow
def test_a_saved_model_loads_in_a_new_process(tmp_path):
    built(DECODERS["gpt2"]).save_pretrained(tmp_path)
    code = (
        "import antiphase, sys\nfrom transformers import AutoModelForCausalLM\n"
        "print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "DifferentialGPT2LMHeadModel"


def test_other_heads_are_known_too():
    for auto, config in ((hf.AutoModel, DECODERS["llama"]), (hf.AutoModelForSequenceClassification, BERT)):
        assert type(auto.from_config(antiphase.differential_config(config))).__name__.startswith("Differential")


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_it_learns(name):
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(antiphase.differential_config(DECODERS[name]))
    ids = ids_of(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(25):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        assert all(p.grad is not None for n, p in model.named_parameters() if "differential" in n)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1


def test_initial_values_are_the_papers():
    model = hf.AutoModelForCausalLM.from_config(
        antiphase.differential_config(hf.LlamaConfig(**{**GROUPED, "head_dim": 64}))
    )
    vectors = torch.cat([parameter for name, parameter in model.named_parameters() if "lambda" in name])
    assert vectors.std().item() == pytest.approx(0.1, rel=0.15)
    assert all((p == 1).all() for n, p in model.named_parameters() if "head_norm" in n)


@pytest.mark.parametrize("name", [*DECODERS, "bert"])
def test_lambda_is_drawn_where_a_checkpoint_has_none(tmp_path, name):
    """The heads are within a model of transformers' own, which knows nothing of λ."""
    config, auto = (BERT, hf.AutoModelForMaskedLM) if name == "bert" else (DECODERS[name], hf.AutoModelForCausalLM)
    auto.from_config(config).save_pretrained(tmp_path / "plain")
    model = auto.from_pretrained(tmp_path / "plain", config=antiphase.differential_config(config))
    with torch.device("meta"):
        empty = auto.from_config(antiphase.differential_config(config))
    empty.to_empty(device="cpu")
    for parameter in empty.parameters():
        parameter.data.fill_(7.0)
    empty.init_weights()
    for one in (model, empty):
        heads = [module for module in one.modules() if isinstance(module, DifferentialHeads)]
        drawn = torch.cat([vector for module in heads for vector in module._vectors()])
        assert 0.06 < float(drawn.std()) < 0.15
        assert all(bool((module.head_norm.weight == 1).all()) for module in heads)


@pytest.mark.parametrize("implementation", ["antiphase_inside", "eager"])
def test_a_decoder_that_is_not_causal_sees_later_tokens(implementation):
    config = hf.LlamaConfig(**GROUPED, is_causal=False)
    model = built(config)
    model.set_attn_implementation(implementation)
    ids = ids_of(2, 9)
    other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % 61], dim=1)
    assert float((model(ids).logits - model(other).logits)[:, 0].abs().max()) > 1e-3


def test_the_head_norms_epsilon_is_the_given_one():
    """Outputs as small as √ε show it."""
    found = []
    for eps in (1e-5, 0.05):
        config = antiphase.differential_config(DECODERS["llama"], head_norm_eps=eps)
        model = randomize(hf.AutoModelForCausalLM.from_config(config), 0.2)
        norms = [module for module in model.modules() if isinstance(module, DifferentialHeads)]
        assert {module.head_norm.eps for module in norms} == {eps}
        found.append(model(ids_of(2, 9)).logits)
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["flex_attention", "antiphase"])
def test_implementations_that_know_no_lambda_are_refused_wherever_they_are_asked_for(name):
    pattern = f"cannot run with attn_implementation='{name}'; choose antiphase_inside or eager"
    with pytest.raises(ValueError, match=pattern):
        hf.AutoModelForCausalLM.from_config(antiphase.differential_config(DECODERS["llama"]), attn_implementation=name)
    model = built(DECODERS["llama"])
    with pytest.raises(ValueError, match=pattern):
        model.set_attn_implementation(name)
    model = built(DECODERS["llama"])
    model.model.set_attn_implementation(name)  # a plain LlamaModel, which knows of nothing
    eagerly = torch.compiler.set_stance("force_eager")  # masks of flex_attention would be compiled for half a minute
    with eagerly, pytest.raises(ValueError, match=pattern):
        model(ids_of(1, 5))


def test_self_and_cross_attention_of_a_layer_have_the_lambda_init_of_its_depth():
    config = hf.GPT2Config(n_embd=48, n_layer=3, n_head=8, attn_pdrop=0.0, add_cross_attention=True)
    model = hf.AutoModelForCausalLM.from_config(antiphase.differential_config(config))
    for depth, block in enumerate(model.transformer.h):
        for attention in (block.attn, block.crossattention):
            assert attention.differential.lambda_init == pytest.approx(0.8 - 0.6 * 2.718281828 ** (-0.3 * depth))


def test_configurations_can_be_pickled():
    config = antiphase.differential_config(DECODERS["qwen2"])
    assert pickle.loads(pickle.dumps(config)).to_dict() == config.to_dict()


def test_a_model_can_be_pickled_for_another_process(tmp_path):
    model, ids = built(DECODERS["qwen3"]), ids_of(1, 7)
    with torch.no_grad():
        expected = model(ids).logits
    torch.save({"model": model, "ids": ids, "expected": expected}, tmp_path / "saved.pt")
    for kind in (hf.AutoModelForSequenceClassification, hf.AutoModel):
        other = type(kind.from_config(model.config))
        assert pickle.loads(pickle.dumps(other)) is other
    code = (
        f"import torch; saved = torch.load({str(tmp_path / 'saved.pt')!r}, weights_only=False); m = saved['model']\n"
        "torch.testing.assert_close(m(saved['ids']).logits, saved['expected'])\n"
        "assert m.model.layers[0].self_attn.config.whole is m.config\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_checkpoint_lacks_is_drawn_as_the_architecture_draws_it(tmp_path):
    model = hf.AutoModelForCausalLM.from_config(antiphase.differential_config(DECODERS["gpt2"]))
    given = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("c_proj.weight")}
    model.save_pretrained(tmp_path, state_dict=given)
    layer = hf.AutoModelForCausalLM.from_pretrained(tmp_path).transformer.h[0]
    factor = (2 * model.config.n_layer) ** -0.5  # GPT-2 draws these smaller
    assert layer.mlp.c_proj.weight.std().item() == pytest.approx(factor * model.config.initializer_range, rel=0.15)


def test_dropout_of_weights_is_switched_off_with_a_warning():
    with pytest.warns(UserWarning, match="attn_pdrop is set to 0"):
        config = antiphase.differential_config(hf.GPT2Config(n_embd=48, n_layer=1, n_head=4))
    assert config.attn_pdrop == 0.0
    model = hf.AutoModelForCausalLM.from_config(config).train()
    model(ids_of(1, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        antiphase.differential_config(DECODERS["gpt2"])


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        (
            hf.GPTNeoXConfig(),
            "type 'gpt_neox' cannot be made differential; known: bert, gpt2, llama, mistral, qwen2, qwen3",
        ),
        (hf.LlamaConfig(**{**SIZES, "num_attention_heads": 3}), "num_attention_heads must be even .*, got 3"),
        (hf.LlamaConfig(**SIZES, num_key_value_heads=1), "num_key_value_heads must be even .*, got 1"),
    ],
)
def test_unsupported_architectures_are_refused_by_name(config, pattern):
    with pytest.raises(InputError, match=pattern):
        antiphase.differential_config(config)


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan")])
def test_an_epsilon_that_is_not_above_zero_is_refused(eps):
    with pytest.raises(InputError, match="head_norm_eps must be above 0"):
        antiphase.differential_config(hf.LlamaConfig(**SIZES), head_norm_eps=eps)
