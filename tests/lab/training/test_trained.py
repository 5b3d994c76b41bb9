"""Runs that train a part of the parameters."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from antiphase.base.errors import InputError
from antiphase.lab.training.optimizer import build_optimizer
from antiphase.lab.training.run_model import build_model, starting_model
from antiphase.lab.training.trained import is_lambda, restrict
from antiphase.models.sources.tokenizers import load_tokenizer

KINDS = ["differential", "differential_v2"]


def changed(before, after):
    """Names of the tensors that differ; both have the same names."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture
def ends(run, settings, tmp_path):
    """``ends("training.trained=lora")``: weights at the start and at the end of a run."""

    def execute(*changes):
        run(tmp_path / "run", *changes)
        tokenizer = load_tokenizer(str(tmp_path / "run"), field="")
        start = build_model(settings(*changes), tokenizer, seed=settings(*changes).training.seed)
        kept = load_file(tmp_path / "run" / "model.safetensors")
        return {name: tensor for name, tensor in start.state_dict().items() if name in kept}, kept

    return execute


@pytest.mark.parametrize("kind", KINDS)
def test_lambda_alone(ends, kind):
    names = changed(*ends(f"model.attention_type={kind}", "training.trained=lambda"))
    assert names
    assert all(is_lambda(name) for name in names)


@pytest.mark.parametrize("kind", ["softmax", *KINDS])
def test_adapters_are_merged_into_the_projections(ends, tmp_path, kind):
    names = changed(*ends(f"model.attention_type={kind}", "training.trained=lora", "training.lora_rank=2"))
    assert {name.split(".")[-2] for name in names if not is_lambda(name)} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert any(is_lambda(name) for name in names) == (kind != "softmax")
    AutoModelForCausalLM.from_pretrained(tmp_path / "run")


def test_an_adapter_has_the_rank_that_was_asked_for(ends):
    before, after = ends("training.trained=lora", "training.lora_rank=3")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.linalg.matrix_rank((after[name] - before[name]).double(), rtol=1e-4) == 3


def test_only_what_is_trained_is_in_the_optimizer(settings, text_tokenizer):
    chosen = settings("training.trained=lambda")
    model = build_model(chosen, text_tokenizer, seed=0)
    restrict(model, chosen.training)
    own = {id(parameter) for name, parameter in model.named_parameters() if is_lambda(name)}
    assert {id(one) for group in build_optimizer(model, chosen.training).param_groups for one in group["params"]} == own


@pytest.mark.parametrize("trained", ["lambda", "lora"])
def test_an_interrupted_run_equals_the_whole_one(run, tmp_path, outcome, assert_identical, trained):
    def stop(step, values):
        if step == 12:
            raise KeyboardInterrupt

    change = f"training.trained={trained}"
    run(tmp_path / "whole", change)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", change, report=stop)
    run(tmp_path / "parts", change, resume=True)
    assert_identical(outcome(tmp_path / "whole"), outcome(tmp_path / "parts"))


@pytest.mark.parametrize("changes", [["model.attention_type=softmax"], ["model.lambda_form=fixed"]])
def test_without_lambda_there_is_nothing_to_train(run, tmp_path, changes):
    with pytest.raises(InputError, match=r"training\.trained=lambda needs a model that learns λ"):
        run(tmp_path / "run", *changes, "training.trained=lambda")
    assert not (tmp_path / "run").exists()


def test_embeddings_may_have_more_rows_than_the_tokenizer_has_tokens(run, settings, tmp_path):
    run(tmp_path / "plain", "training.steps=1")
    tokenizer = load_tokenizer(str(tmp_path / "plain"), field="")
    rows = len(tokenizer) + 7
    run(tmp_path / "first", f"model.vocab_size={rows}", "training.steps=2")
    assert load_file(tmp_path / "first" / "model.safetensors")["model.embed_tokens.weight"].shape[0] == rows
    starting_model(settings(f"model.vocab_size={rows}", f"training.start_from={tmp_path / 'first'}"), tokenizer)
    with pytest.raises(InputError, match=r"model\.vocab_size \(3\) is less than the tokenizer's"):
        build_model(settings("model.vocab_size=3"), tokenizer, seed=0)
