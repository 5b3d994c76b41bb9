"""What people do with Hugging Face models works with these, on real calls."""

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, StaticCache, Trainer, TrainingArguments, pipeline
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from antiphase import AntiphaseForCausalLM, differential_config
from antiphase.attention.caches import CACHE
from antiphase.attention.interface import antiphase_mask
from antiphase.lab.lineage.models.configs import RecurrentConfig, VanillaConfig
from antiphase.lab.lineage.models.recurrent import RecurrentForCausalLM
from antiphase.lab.lineage.models.vanilla import VanillaForCausalLM
from antiphase.lab.text.prepare import symbol_tokenizer
from antiphase.lab.text.retrieval import SymbolLanguage
from support.models import ids_of

KINDS = ["softmax", "differential", "differential_v2"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def causal_models(tiny_model):
    """One model of every class that predicts the next token, in fp64."""
    llama = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    yield tiny_model("differential").double()
    yield AutoModelForCausalLM.from_config(differential_config(llama)).double()
    yield RecurrentForCausalLM(RecurrentConfig(vocab_size=64, embedding_size=16, hidden_size=16)).double()
    yield VanillaForCausalLM(
        VanillaConfig(vocab_size=64, hidden_size=16, num_attention_heads=2, is_causal=True)
    ).double()


def test_the_trainer_shifts_labels_when_it_smooths_them(tiny_model, tmp_path):
    ids = ids_of(2, 13)
    for model in causal_models(tiny_model):
        settings = TrainingArguments(output_dir=str(tmp_path), label_smoothing_factor=1e-12, report_to=[], use_cpu=True)
        trainer = Trainer(model=model.eval(), args=settings)
        found = trainer.compute_loss(model, {"input_ids": ids, "labels": ids})
        torch.testing.assert_close(found.double(), model(ids, labels=ids).loss.double(), rtol=1e-6, atol=1e-6)


def test_a_loss_of_ones_own_is_used(tiny_model):
    """Set on the model, or in a subclass as a method or a property."""
    config, ids = tiny_model("softmax").config, ids_of(1, 9)

    class Method(AntiphaseForCausalLM):
        def loss_function(self, logits, labels, vocab_size, **kwargs):
            return logits.sum() * 0 + 7

    class Property(AntiphaseForCausalLM):
        @property
        def loss_function(self):
            return lambda logits, labels, vocab_size, **kwargs: logits.sum() * 0 + 7

    assert Method(config)(ids, labels=ids).loss == Property(config)(ids, labels=ids).loss == 7
    model = AntiphaseForCausalLM(config)
    model.loss_function = lambda logits, labels, vocab_size, **kwargs: logits.sum() * 0 + 8
    assert model(ids, labels=ids).loss == 8
    assert AntiphaseForCausalLM(config)(ids, labels=ids).loss < 7


GREEDY = {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.slow
@every_kind
def test_assisted_generation_gives_the_tokens_of_greedy_generation(tiny_model, kind):
    model = tiny_model(kind).double()
    assistant = tiny_model("softmax", num_hidden_layers=1).double()
    ids = ids_of(1, 7)
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    for helper in (assistant, model):  # one that is mostly wrong, one that is always right
        found = model.generate(ids, attention_mask=mask, assistant_model=helper, **GREEDY)
        assert torch.equal(found, expected)


@every_kind
def test_the_first_layers_can_draft(tiny_model, kind):
    model = tiny_model(kind, num_hidden_layers=3).double()
    ids = ids_of(1, 7)
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(model.generate(ids, attention_mask=mask, assistant_early_exit=1, **GREEDY), expected)
    assert model.config.num_hidden_layers == 3


@pytest.mark.parametrize("portable", [False, True])
def test_only_the_first_process_writes_the_card_and_the_code(tiny_model, tmp_path, portable):
    model = tiny_model("differential")
    model.save_pretrained(tmp_path, portable=portable, is_main_process=False)
    assert list(tmp_path.iterdir()) == []
    model.save_pretrained(tmp_path, portable=portable, is_main_process=True)
    assert (tmp_path / "README.md").is_file()
    assert (tmp_path / "modeling_antiphase.py").is_file() == portable


@pytest.mark.slow
@every_kind
def test_the_decoding_step_compiles_with_a_static_cache(tiny_model, kind):
    model = tiny_model(kind)
    ids = ids_of(2, 12)
    expected = model(ids).logits
    cache = StaticCache(model.config, max_cache_len=16)
    with torch.no_grad():
        model(ids[:, :8], past_key_values=cache, position_ids=torch.arange(8)[None])
        step = torch.compile(model, fullgraph=True, backend="eager")
        for place in range(8, 12):
            found = step(ids[:, place : place + 1], past_key_values=cache, position_ids=torch.tensor([[place]])).logits
            torch.testing.assert_close(found[:, 0], expected[:, place], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["differential", pytest.param("vanilla", marks=pytest.mark.slow)])
def test_a_compiled_model_needs_no_mask_of_all_pairs(tiny_model, kind, monkeypatch):
    """Causality alone is no mask, unless the caller's positions could tell several texts apart."""
    torch.compiler.reset()  # after too many compilations in other tests nothing more would be compiled
    masks = []

    def remembered(*args, **kwargs):
        masks.append(antiphase_mask(*args, **kwargs))
        return masks[-1]

    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "antiphase", remembered)
    if kind == "vanilla":
        sizes = {"vocab_size": 64, "hidden_size": 16, "num_attention_heads": 2, "is_causal": True}
        model = VanillaForCausalLM(VanillaConfig(**sizes, attn_implementation="antiphase")).eval()
    else:
        model = tiny_model(kind)
    model, ids = model.double(), ids_of(2, 12)
    for positions, has_mask in ((None, False), (torch.arange(12)[None], True)):
        masks.clear()
        found = torch.compile(model, backend="eager")(ids, position_ids=positions).logits
        assert [mask is not None for mask in masks] == [has_mask]
        torch.testing.assert_close(found, model(ids).logits)


@pytest.mark.parametrize("kind", [pytest.param("softmax", marks=pytest.mark.slow), "differential_v2"])
def test_continuous_batching_gives_the_tokens_of_each_prompt_alone(tiny_model, kind):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = tiny_model(kind, attn_implementation="sdpa")
    prompts = [ids_of(9)[:n].tolist() for n in (9, 4, 6)]
    # a cache of its own size would fill the machine's memory
    sizes = ContinuousBatchingConfig(use_cuda_graph=False, num_blocks=16, block_size=32, max_batch_tokens=32)
    expected = [
        model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64), **GREEDY)
        for prompt in prompts
    ]
    if CACHE == "cache":  # its layers add to the cache of continuous batching themselves
        with pytest.raises(ValueError, match=r"needs transformers before 5\.24; use generate"):
            model.generate_batch(prompts, GenerationConfig(**GREEDY), sizes)
        return
    found = model.generate_batch(prompts, GenerationConfig(**GREEDY), sizes)
    tokens = {tuple(result.prompt_ids): result.generated_tokens for result in found.values()}
    assert tokens == {
        tuple(prompt): row[0, len(prompt) :].tolist() for row, prompt in zip(expected, prompts, strict=True)
    }


def test_continuous_batching_of_v1_is_refused_and_never_wrong(tiny_model):
    from antiphase.attention.interface import differential_function

    with pytest.raises(ValueError, match="serves softmax and differential_v2 models; use generate"):
        differential_function("paged|sdpa")
    model = tiny_model("differential")
    model.config._attn_implementation = "paged|sdpa"
    with pytest.raises(ValueError, match="serves softmax and differential_v2 models; use generate"):
        model(ids_of(1, 5))


@every_kind
def test_lora_trains_its_own_weights_only_and_merges(tiny_model, kind):
    model, ids = tiny_model(kind), ids_of(4, 11)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(8):
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    adapted.eval().double()  # the norm of heads makes much of a rounding where a head's output nearly cancels
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-9, atol=1e-9)
    changed = {name for name, tensor in merged.state_dict().items() if not torch.equal(tensor, before[name].double())}
    assert changed == {name for name in before if name.endswith(("q_proj.weight", "v_proj.weight"))}


@every_kind
def test_the_trainer_trains_and_saves(tiny_model, tmp_path, kind):
    model = tiny_model(kind)
    row = ids_of(13)
    data = [{"input_ids": row, "labels": row} for _ in range(8)]
    before = model(row[None], labels=row[None]).loss.item()
    settings = TrainingArguments(
        output_dir=str(tmp_path / "trainer"), max_steps=6, per_device_train_batch_size=4, learning_rate=5e-2,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=settings, train_dataset=data)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    after = loaded(row[None], labels=row[None]).loss.item()
    assert after < before - 0.5
    torch.testing.assert_close(after, model.eval()(row[None], labels=row[None]).loss.item(), rtol=1e-5, atol=1e-5)


@every_kind
def test_the_pipeline_generates_from_a_saved_folder(tiny_model, tmp_path, kind):
    language = SymbolLanguage(8, 9, 42)
    tiny_model(kind).save_pretrained(tmp_path)
    symbol_tokenizer(language).save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path), device="cpu")
    (found,) = generate("key1 n2 w3", max_new_tokens=4, do_sample=False)
    tokenizer = symbol_tokenizer(language)
    prompt = tokenizer("key1 n2 w3", return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    assert found["generated_text"] == "key1 n2 w3" + tokenizer.decode(expected[0, 3:], skip_special_tokens=True)
    assert expected.shape[1] > 3


@every_kind
def test_a_device_map_places_the_model(tiny_model, tmp_path, kind):
    model, ids = tiny_model(kind), ids_of(1, 9)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map={"": "cpu"}).eval()
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_kind
def test_loading_in_half_precision_keeps_lambda_vectors_in_fp32(tiny_model, tmp_path, kind, dtype):
    model, ids = tiny_model(kind), ids_of(1, 9)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    for name, parameter in loaded.named_parameters():
        is_vector = ".lambda_q" in name or ".lambda_k" in name
        assert parameter.dtype == (torch.float32 if is_vector else dtype), name
        if is_vector:
            assert torch.equal(parameter, model.get_parameter(name)), name
    out = loaded(ids).logits
    assert out.dtype == dtype
    loaded.save_pretrained(tmp_path / "half")
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float64).eval()(ids).logits
    eager = AutoModelForCausalLM.from_pretrained(tmp_path / "half", attn_implementation="eager").eval()(ids).logits
    allowed = (eager - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
    assert (out - exact).abs().max() <= 2 * allowed
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert again.dtype == dtype
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name
        assert parameter.dtype == loaded.get_parameter(name).dtype, name
    fresh = AutoModelForCausalLM.from_config(model.config, dtype=dtype)
    assert {n: p.dtype for n, p in fresh.named_parameters()} == {n: p.dtype for n, p in loaded.named_parameters()}
