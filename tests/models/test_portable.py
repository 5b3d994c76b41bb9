"""Portable checkpoints compute the same without this package, and whatever runs Hugging Face models runs them."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

import antiphase as package
from antiphase.models import portable
from antiphase.models.merging import Merger
from antiphase.models.variants import needs
from support.models import ids_of, randomize

BLOCKED = "import sys; sys.modules['antiphase'] = None\n"
USE = """
import json, sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

folder, backends = sys.argv[1], sys.argv[2].split(",")
given = load_file(folder + "/expected.safetensors")
ids, mask = given["ids"], given["mask"]
found = {"names": {}, "off": {}}
for backend in backends:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, attn_implementation=backend)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
    found["off"][backend] = float((logits - given["logits"])[mask.bool()].abs().max())
    found["names"][backend] = [type(model).__name__, model.config._attn_implementation]
    if backend != "flex_attention":
        settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        for way in ({}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
            new = model.generate(ids[:1], attention_mask=mask[:1], **settings, **way)
            assert torch.equal(new, given["generated"]), (backend, way, new, given["generated"])
for name in ("softcap", "invented"):
    try:
        model(ids, **{name: 2.0})
    except ValueError as error:
        assert name in str(error)
    else:
        raise AssertionError(name + " was ignored")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _ in range(2):
    loss = model(ids[:1], labels=ids[:1]).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
found["losses"] = losses
model.save_pretrained(folder + "/again")
again = AutoModelForCausalLM.from_pretrained(folder + "/again", trust_remote_code=True)
assert torch.equal(again.lm_head.weight, model.lm_head.weight)
found["package"] = sys.modules.get("antiphase") is not None
print(json.dumps(found))
"""
CLASSIFY = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers import Trainer, TrainingArguments

folder = sys.argv[1]
ids = torch.arange(10, 20)[None]
found = {}
for auto in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
    model = auto.from_pretrained(folder, trust_remote_code=True)
    found[type(model).__name__] = list(model(ids).logits.shape)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
given = {"report_to": [], "use_cpu": True, "label_smoothing_factor": 0.1}
trainer = Trainer(model=model, args=TrainingArguments(output_dir=folder + "/out", **given))
smoothed = trainer.compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
log_p = model(ids).logits[:, :-1].log_softmax(-1)
expected = -0.9 * log_p.gather(-1, ids[:, 1:, None]).mean() - 0.1 * log_p.mean()
found["off"] = float((smoothed - expected).abs())
print(json.dumps(found))
"""
FORMS = {
    "softmax": {"attention_type": "softmax"},
    "differential": {"attention_type": "differential", "num_attention_heads": 8, "num_key_value_heads": 4},
    "differential_v2": {"attention_type": "differential_v2", "num_attention_heads": 8, "num_key_value_heads": 2},
    "motif": {"attention_type": "differential", "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 6,
              "num_noise_heads": 2, "hidden_act": "poly_norm", "lambda_init": [-0.01, 0.2, 0.4]},
    "window": {"attention_type": "differential", "sliding_window": 4},
    "parts": {"attention_type": "differential", "lambda_form": "head", "head_norm": False, "num_noise_heads": 2,
              "output_gate": True, "second_map": "added"},
    "across": {"attention_type": "differential_v2_across", "num_key_value_heads": 2},
    "grouped-v2": {"attention_type": "differential_v2", "num_noise_heads": 2, "num_key_value_heads": 2,
                   "output_gate": True},
    "softmax-1": {"attention_type": "softmax_one"}, "softpick": {"attention_type": "softpick"},
    "cog": {"attention_type": "cog"}, "exclusive": {"attention_type": "exclusive", "num_key_value_heads": 2},
    "dex": {"attention_type": "softmax", "dex_heads": [[0, 2], [1], []]},
    "qwen3-v1": {"attention_type": "differential", "use_qk_norm": True, "qkv_bias": True},
    "olmo2-v2": {"attention_type": "differential_v2", "use_qk_norm": True, "whole_qk_norm": True,
                 "norm_position": "after"},
    "gemma-v2": {"attention_type": "differential_v2", "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
                 "norm_type": "zero_centered_rms_norm", "embedding_multiplier": 3.0, "attention_bias": True},
    "gpt_neox": {"attention_type": "softmax", "norm_type": "layer_norm", "gated_mlp": False, "mlp_bias": True,
                 "hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
}  # fmt: skip


def saved(folder, tiny_config, form):
    """A small model in a portable folder, with inputs, its logits and what it generates."""
    model = randomize(package.AntiphaseForCausalLM(tiny_config(**FORMS[form])), 0.2).eval()
    model.save_pretrained(folder, portable=True)
    expect(folder, model)
    return model


def expect(folder, model):
    """Write inputs, the model's logits and what it generates."""
    ids = ids_of(2, 12)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
        new = model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=6, do_sample=False, pad_token_id=0)
    tensors = {"ids": ids, "mask": mask, "logits": logits.contiguous(), "generated": new}
    save_file(tensors, folder / "expected.safetensors")


def alone(python, code, folder, *arguments):
    """Run code in a process that keeps its copies of remote code in the folder; what it prints last, as JSON."""
    variables = os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), "-c", code, str(folder), *arguments], env=variables, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(found, backends):
    """The results of ``USE``."""
    assert not found["package"]
    for backend in backends:
        assert found["names"][backend] == ["AntiphaseForCausalLM", backend]
        assert found["off"][backend] < 2e-5
    first, second = found["losses"]
    assert second < first


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file as a module, in this process."""
    path = tmp_path_factory.mktemp("code") / portable.FILE
    path.write_text(portable.code(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("written_modeling", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("form", FORMS)
def test_the_file_computes_what_the_package_computes(written, tiny_config, form):
    """Forward, with padding, and backward, on each implementation that serves the form."""
    model = randomize(package.AntiphaseForCausalLM(tiny_config(**FORMS[form])), 0.2)
    ids, mask = ids_of(2, 12), torch.ones(2, 12, dtype=torch.int64)
    mask[1, -3:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    expected = model(ids, attention_mask=mask, labels=labels)
    expected.loss.backward()
    own = written._own_fields(written.AntiphaseConfig)
    fields = {name: value for name, value in model.config.to_dict().items() if name in own}
    for backend in ("eager",) if needs(model.config) else ("eager", "sdpa"):
        other = written.AntiphaseForCausalLM._from_config(
            written.AntiphaseConfig(**fields), attn_implementation=backend
        )
        assert type(other.model.layers[0].self_attn).__module__ == written.__name__
        other.load_state_dict(model.state_dict())
        found = other.eval()(ids, attention_mask=mask, labels=labels)
        found.loss.backward()
        torch.testing.assert_close(found.logits[mask.bool()], expected.logits[mask.bool()], rtol=1e-4, atol=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(other.get_parameter(name).grad, parameter.grad, rtol=1e-3, atol=1e-5, msg=name)
    other.set_attn_implementation("eager")
    weights = other(ids, output_attentions=True).attentions
    model.set_attn_implementation("eager")
    for mine, theirs in zip(weights, model(ids, output_attentions=True).attentions, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.essential
def test_without_the_package_a_model_computes_the_same(tmp_path, tiny_config):
    saved(tmp_path, tiny_config, "differential")
    check(alone(sys.executable, BLOCKED + USE, tmp_path, "eager,sdpa"), ["eager", "sdpa"])


@pytest.mark.slow
def test_without_the_package_it_classifies_and_trainer_knows_that_it_is_causal(tmp_path, tiny_config):
    saved(tmp_path, tiny_config, "differential")
    found = alone(sys.executable, BLOCKED + CLASSIFY, tmp_path)
    assert found["AntiphaseForSequenceClassification"] == [1, 2]
    assert found["AntiphaseForTokenClassification"] == [1, 10, 2]
    assert found["off"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "--attention-type differential_v2"], ids=["softmax", "differential_v2"])
def test_a_converted_qwen3_computes_without_the_package_what_it_did(tmp_path, antiphase, words):
    """``transformers``' own model says what is expected."""
    config = hf.Qwen3Config(
        vocab_size=61, hidden_size=48, intermediate_size=40, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, head_dim=10, attention_bias=True, use_sliding_window=True, sliding_window=4,
        max_window_layers=1, max_position_embeddings=96, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    theirs = randomize(hf.Qwen3ForCausalLM(config), 0.2)
    theirs.save_pretrained(tmp_path / "theirs")
    code, _, err = antiphase("convert", tmp_path / "theirs", tmp_path / "ours", "--portable", words)
    assert code == 0, err
    expect(tmp_path / "ours", theirs)
    check(alone(sys.executable, BLOCKED + USE, tmp_path / "ours", "eager,sdpa"), ["eager", "sdpa"])


def test_the_file_is_the_packages_code_and_complete(tmp_path):
    """Every name in it is defined, nothing is unused, and definitions are those of the modules."""
    import inspect

    from antiphase.layers.attention import AttentionLayer
    from antiphase.layers.differential_v2 import DifferentialAttentionV2
    from antiphase.layers.mlp import MLP
    from antiphase.models.transformer import Block

    text = portable.code()
    (tmp_path / portable.FILE).write_text(text, encoding="utf-8")
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    command = [ruff, "check", "--isolated", "--select", "E,F,W,I", "--line-length", "120", tmp_path / portable.FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "import antiphase" not in text
    assert "from antiphase" not in text
    for whole in (Block, MLP, AttentionLayer.forward, DifferentialAttentionV2.lam):
        assert inspect.getsource(whole) in text
    assert "v1_step" not in text


def test_two_functions_of_one_name_are_not_merged():
    merger = Merger("antiphase", portable.REPLACED, portable.DROPPED)
    refused = "refuse_continuous_batching"
    merger.add([("antiphase.attention.interface", refused), ("antiphase.layers.functions", "form_of")])
    merger.add([("antiphase.models.portable_parts", refused)])
    with pytest.raises(LookupError, match="two definitions have the name refuse_continuous_batching"):
        merger.text()
    with pytest.raises(LookupError, match="does not define bogus"):
        merger.add([("antiphase.layers.functions", "bogus")])


def test_with_the_package_a_portable_folder_loads_its_own_classes(tmp_path, tiny_config):
    """The kernels are used then; saved again without ``portable``, the folder names no code."""
    from transformers import AutoModelForCausalLM

    model = saved(tmp_path, tiny_config, "differential")
    for words in ({}, {"trust_remote_code": True}):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, **words)
        assert type(loaded) is package.AntiphaseForCausalLM
    assert loaded.config._attn_implementation == "antiphase"
    loaded.save_pretrained(tmp_path / "plain")
    assert "auto_map" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    assert not (tmp_path / "plain" / portable.FILE).exists()
    with pytest.raises(ValueError, match="push_to_hub"):
        model.save_pretrained(tmp_path / "pushed", portable=True, push_to_hub=True)
    card = (tmp_path / "README.md").read_text()
    assert "trust_remote_code=True" in card


def test_conversion_to_a_portable_folder(tmp_path, tiny_config, antiphase, refused):
    package.AntiphaseForCausalLM(tiny_config("softmax")).save_pretrained(tmp_path / "plain")
    words = ("--attention-type", "differential_v2", "--portable")
    antiphase("convert", str(tmp_path / "plain"), str(tmp_path / "v2"), *words)
    assert json.loads((tmp_path / "v2" / "config.json").read_text())["auto_map"] == portable.AUTO_MAP
    assert (tmp_path / "v2" / portable.FILE).read_text() == portable.code()
    refused("--portable cannot be used with a result of format llama", "convert", str(tmp_path / "plain"),
            str(tmp_path / "no"), "--to", "llama", "--portable")  # fmt: skip
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("kind", "asked", "reason"), [
    ({"attention_type": "softmax", "sink_logits": True}, "sdpa", "sink_logits cannot run"),
    ({"attention_type": "differential"}, "antiphase", "needs the package antiphase"),
])  # fmt: skip
def test_portable_code_refuses_what_it_would_compute_wrongly(tiny_config, kind, asked, reason):
    from antiphase.models import portable_parts

    with pytest.raises(ValueError, match=reason):
        portable_parts.chosen_implementation(tiny_config(**kind), asked)
    assert portable_parts.chosen_implementation(tiny_config(**kind), "eager") == "eager"
    with pytest.raises(ValueError, match="generate_batch"):
        portable_parts.refuse_continuous_batching("sdpa", is_v1=True)
