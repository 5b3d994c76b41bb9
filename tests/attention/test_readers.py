"""Whatever reads or changes attention: on every kind of model it is right, or refuses the model in a sentence.

What is right is the matter of ``tests/attention/test_matrix.py``; here stands what is refused, or not usual.
"""

import copy

import pytest
import torch
import transformers as hf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as llama

import antiphase
from antiphase.attention.calls import DIFFLLAMA, SOFTMAX, kind_of
from antiphase.attention.hooks import wrapped_attention
from antiphase.attention.last_tokens import LastTokens
from antiphase.attention.maps import attention_maps
from antiphase.attention.rows import attention_rows
from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.calibration.head_sensitivity import head_sensitivities
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.variants import varied
from antiphase.lab.measures.cancellation.measure import cancellation
from antiphase.lab.measures.look.maps import Maps
from antiphase.lab.measures.probe.measure import sinks_on_text
from antiphase.lab.measures.quantization.logits import quantized_logits
from antiphase.lab.scoring.allocation import allocation
from antiphase.lab.scoring.constrained import choose_options
from antiphase.lab.scoring.likelihood import generated_tokens
from antiphase.lab.scoring.perplexity import perplexity
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from antiphase.lab.text.streams import Batch
from antiphase.lab.text.tokenization import train_tokenizer
from support.models import randomize

LAYERS, MAPS, N = 3, 8, 37
TASK = RetrievalTask(SymbolLanguage(9, 11, 5), needles=4, queries=2, sequence_length=N)
SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": LAYERS,
    "num_attention_heads": MAPS, "max_position_embeddings": 96,
}  # fmt: skip
SMALL_GPT2 = hf.GPT2Config(vocab_size=61, n_embd=48, n_layer=LAYERS, n_head=MAPS, n_positions=96, attn_pdrop=0.0)
SMALL_LLAMA = hf.LlamaConfig(**SIZES, num_key_value_heads=4)


def differential(config, auto=hf.AutoModelForCausalLM):
    return auto.from_config(antiphase.differential_config(config))


CAUSAL = {
    "differential_llama": lambda: differential(SMALL_LLAMA), "differential_gpt2": lambda: differential(SMALL_GPT2),
}  # fmt: skip
REFUSED = {
    "bart": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(vocab_size=61, d_model=48, encoder_layers=3, decoder_layers=3, encoder_attention_heads=MAPS,
                   decoder_attention_heads=MAPS, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=96)
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=61, d_model=48, d_kv=6, d_ff=24, num_layers=LAYERS, num_heads=MAPS)
    ),
    "antiphase_sequence_to_sequence": lambda: hf.AutoModelForSeq2SeqLM.from_config(
        antiphase.SequenceToSequenceConfig(
            vocab_size=61, source_vocab_size=61, hidden_size=48, num_hidden_layers=LAYERS, num_attention_heads=MAPS,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    ),
}  # fmt: skip


def sharp(model):
    """In fp64, with attention that is far from uniform."""
    return randomize(model).double()


def batch(count=3):
    return TASK.sample(count, keyed_generator("readers"))


def score(model, samples):
    """Log-probability of the last token."""
    ids = torch.stack(list(samples))
    return model(input_ids=ids).logits[:, -2].log_softmax(-1).gather(1, ids[:, -1:])[:, 0]


PLAN = CalibrationPlan({0: [1, 2], 1: [0, 5, 7], 2: [3, 4]}, alpha=1.5, beta=0.2)


def within(block, model):
    with block, torch.no_grad():
        return model(input_ids=batch().input_ids).logits


READERS = {
    "calibrated": lambda model: within(antiphase.calibrated(model, PLAN), model),
    "quantized": lambda model: within(quantized_logits(model, 4), model),
    "varied": lambda model: within(varied(model, PLAN, "uniform"), model),
    "gates": lambda model: head_sensitivities(model, PLAN, score, list(batch().input_ids)),
    "search": lambda model: antiphase.search_calibration(model, score, list(batch(8).input_ids)),
    "search, cached": lambda model: antiphase.search_calibration(
        model, score, list(batch(8).input_ids), method="cached"
    ),
    "statistics": lambda model: attention_statistics(model, input_ids=batch().input_ids),
    "rows": lambda model: attention_rows(model, batch().input_ids, batch().prompt_end[:, None]),
    "allocation": lambda model: allocation(model, batch()), "cancellation": lambda model: cancellation(model, batch()),
    "sinks": lambda model: sinks_on_text(model, batch().input_ids, str, alpha=2.0),
}  # fmt: skip
every_reader = pytest.mark.parametrize("reader", READERS)


@pytest.mark.parametrize("reader", [reader for reader in READERS if reader != "sinks"])  # which reads the encoder
@pytest.mark.parametrize("name", REFUSED)
def test_encoder_decoders_are_refused_by_name(name, reader):
    model = sharp(REFUSED[name]())
    ids = batch().input_ids
    texts = {"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}
    with torch.no_grad():
        before = model(**texts).logits
    with pytest.raises(InputError, match=f"attention of models of type {name} cannot be measured or changed"):
        READERS[reader](model)
    with torch.no_grad():
        assert torch.equal(model(**texts).logits, before)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_function_put_in_by_others_hides_the_heads_of_these_models():
    differential_llama = sharp(differential(SMALL_LLAMA))
    with (
        pytest.raises(ValueError, match="another attention function is installed in this model"),
        wrapped_attention(differential_llama, lambda function: lambda *args, **kwargs: function(*args, **kwargs)),
    ):
        attention_statistics(differential_llama, input_ids=batch().input_ids)


@torch.no_grad()
def test_layers_without_attention_keep_their_numbers_and_are_not_part_of_a_plan():
    fields = {**SIZES, "num_key_value_heads": 4, "layer_types": ["conv", "full_attention", "full_attention"]}
    model = sharp(hf.AutoModelForCausalLM.from_config(hf.Lfm2Config(**fields)))
    ids = batch().input_ids
    plain = model(input_ids=ids).logits
    assert attention_statistics(model, input_ids=ids).layers == [1, 2]
    assert [one.layer for one in attention_rows(model, ids, batch().prompt_end[:, None])] == [1, 2]
    assert [one.layer for one in attention_maps(model, ids[:1])] == [1, 2]
    assert [row["layer"] for row in allocation(model, batch())] == [1, 2, "all"]
    found = cancellation(model, batch())
    assert [row.layer for row in found.layers] == [1, 2, "all"]
    assert {row.layer for row in found.heads} == {1, 2}
    assert all(row.maps["softmax"].noise is not None for row in found.layers)
    with quantized_logits(model, 3):
        assert (model(input_ids=ids).logits - plain).abs().max() > 1e-2
    with antiphase.calibrated(model, CalibrationPlan({1: [0]}, alpha=1e30)):
        torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=1e-5, atol=1e-5)
    missing = pytest.raises(
        InputError, match=r"layer 0 of Lfm2ForCausalLM \(type lfm2\) has no attention that could be changed"
    )
    with missing, antiphase.calibrated(model, CalibrationPlan({0: [0], 1: [0]})):
        model(input_ids=ids)


@torch.no_grad()
def test_a_layer_that_attends_twice_is_refused_by_what_tells_layers_apart():
    """As in models that go through their layers again and again."""
    model = sharp(hf.AutoModelForCausalLM.from_config(SMALL_LLAMA))
    model.model.layers[2] = model.model.layers[1]
    ids = batch().input_ids
    plain = model(input_ids=ids).logits
    for read in (attention_statistics, attention_rows):
        arguments = {"input_ids": ids} if read is attention_statistics else {"input_ids": ids, "positions": ids[:, :1]}
        with pytest.raises(ValueError, match=r"layer 1 of LlamaForCausalLM \(type llama\) attends more than once"):
            read(model, **arguments)
    plan = CalibrationPlan({1: [0]})
    with (
        pytest.raises(ValueError, match=r"layer 1 of LlamaForCausalLM \(type llama\) attends more than once"),
        antiphase.calibrated(model, plan),
    ):
        model(input_ids=ids)
    with pytest.raises(ValueError, match=r"layer 1 of LlamaForCausalLM \(type llama\) attends more than once"):
        head_sensitivities(model, plan, score, list(ids))
    with quantized_logits(model, 30):
        torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=1e-5, atol=1e-5)
    assert [one.layer for one in attention_maps(model, ids[:1])] == [0, 1, 1]


def test_a_kind_is_known_by_its_class_and_not_by_the_names_of_attributes():
    layer = hf.AutoModelForCausalLM.from_config(hf.DiffLlamaConfig(**SIZES)).model.layers[0].self_attn
    assert kind_of(layer) is DIFFLLAMA
    assert kind_of(type("Extended", (type(layer),), {})(layer.config, 0)) is DIFFLLAMA
    stranger = sharp(hf.AutoModelForCausalLM.from_config(SMALL_LLAMA)).model.layers[0].self_attn
    stranger.lambda_init = 0.8
    assert kind_of(stranger) is SOFTMAX
    stranger.differential = torch.nn.Linear(2, 2)
    assert kind_of(stranger) is SOFTMAX


@torch.no_grad()
def test_a_stranger_that_attends_twice_with_the_same_queries_is_refused(monkeypatch):
    """Only DiffLlama's second call is the other half of the first."""
    model, ids = sharp(hf.AutoModelForCausalLM.from_config(SMALL_LLAMA)), batch().input_ids
    eager = llama.eager_attention_forward

    def twice(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        first, second = (
            function(self, query, keys, value, attention_mask, dropout=0.0, scaling=self.scaling)[0]
            for keys in (key, -key)
        )
        return self.o_proj((first - second).flatten(2)), None

    monkeypatch.setattr(llama.LlamaAttention, "forward", twice)
    with pytest.raises(ValueError, match=r"layer 0 of LlamaForCausalLM \(type llama\) attends more than once"):
        attention_statistics(model, input_ids=ids)


# ------------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_measurements_of_outputs_work_on_differential_models_of_other_architectures(name):
    model = sharp(CAUSAL[name]())
    ids = batch().input_ids
    log_probabilities = model(input_ids=ids).logits.log_softmax(-1)
    losses = -log_probabilities[:, :-1].gather(2, ids[:, 1:, None])
    assert perplexity(model, Batch(ids, ids))["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)

    prompts = [row[:length].tolist() for row, length in zip(ids, (20, 13, 20), strict=True)]
    for prompt, found in zip(prompts, generated_tokens(model, prompts, longest=5), strict=True):
        written = list(prompt)
        for _ in range(5):
            written.append(int(model(input_ids=torch.tensor([written])).logits[0, -1].argmax()))
        assert found == written[len(prompt) :]
    options = [[[3], [4], [5]]] * 3
    expected = [max((3, 4, 5), key=model(input_ids=torch.tensor([one])).logits[0, -1].tolist().__getitem__) - 3
                for one in prompts]  # fmt: skip
    assert choose_options(model, prompts, options) == expected


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_downstream_tasks_work_on_differential_models_of_other_architectures(name):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra: pip install 'antiphase[harness]'")
    from antiphase.lab.measures.harness.lm_eval_adapter import ProjectLM

    tokenizer = train_tokenizer(["one two three four yes no"] * 9, 300)
    config = copy.deepcopy(SMALL_GPT2 if "gpt2" in name else SMALL_LLAMA)
    config.vocab_size = len(tokenizer)
    model = sharp(differential(config)).float()
    before, after = tokenizer("one two three")["input_ids"], tokenizer(" yes no")["input_ids"]
    ((likely, _),) = ProjectLM(model, tokenizer)._loglikelihood_tokens([(("", ""), before, after)])
    scores = model(input_ids=torch.tensor([before + after])).logits[0].log_softmax(-1)
    expected = sum(float(scores[len(before) - 1 + place, token]) for place, token in enumerate(after))
    assert likely == pytest.approx(expected, rel=1e-4)


# ------------------------------------------------------------------------------------------ ways of calling a model


def opt():
    return sharp(
        hf.OPTForCausalLM(
            hf.OPTConfig(vocab_size=61, hidden_size=48, word_embed_proj_dim=48, ffn_dim=24, num_hidden_layers=LAYERS,
                         num_attention_heads=MAPS, max_position_embeddings=96, attention_dropout=0.0)
        )
    )  # fmt: skip


@torch.no_grad()
def test_a_language_model_that_passes_its_base_model_by_is_guarded_too(monkeypatch):
    """OPT's calls its decoder itself."""
    model, ids = opt(), batch().input_ids
    del model.model.decoder.layers[2]
    missing = pytest.raises(
        InputError, match=r"layer 2 of OPTForCausalLM \(type opt\) has no attention that could be changed"
    )
    with antiphase.calibrated(model, PLAN), missing:
        model(input_ids=ids)
    monkeypatch.setattr(model.model.decoder, "layers", torch.nn.ModuleList())
    with quantized_logits(model, 4), pytest.raises(ValueError, match="never called the attention function"):
        model(input_ids=ids)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["prompt", "running"])
@pytest.mark.parametrize("return_dict", [True, False])
def test_the_cache_of_such_a_model_carries_its_sinks(mode, return_dict):
    model, ids = opt(), batch().input_ids
    plan = CalibrationPlan(PLAN.heads, 1.5, 0.2, mode)
    with antiphase.calibrated(model, plan):
        whole = model(input_ids=ids).logits[:, -1]
        start = model(input_ids=ids[:, :-1], use_cache=True, return_dict=return_dict)
        step = model(input_ids=ids[:, -1:], past_key_values=start[1]).logits[:, -1]
    if mode == "running":
        torch.testing.assert_close(step, whole, rtol=1e-6, atol=1e-6)
    assert (step - model(input_ids=ids).logits[:, -1]).abs().max() > 1e-3


@torch.no_grad()
def test_changed_outputs_are_contiguous_as_those_of_transformers_are(monkeypatch):
    """JetMoE's layers call view on them."""
    fields = {**SIZES, "num_key_value_heads": 4, "kv_channels": 6, "num_local_experts": 2, "num_experts_per_tok": 2}
    model, seen = sharp(hf.JetMoeForCausalLM(hf.JetMoeConfig(**fields))), []
    for block in (antiphase.calibrated(model, PLAN), quantized_logits(model, 4), varied(model, PLAN, "uniform")):
        with block, monkeypatch.context() as patched:
            name = model.config._attn_implementation
            changed = ALL_ATTENTION_FUNCTIONS[name]

            def attend(*args, changed=changed, **kwargs):
                outputs, weights = changed(*args, **kwargs)
                seen.append(outputs.is_contiguous())
                return outputs, weights

            patched.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, attend)
            model(input_ids=batch().input_ids)
    assert seen == [True] * 3 * LAYERS


@torch.no_grad()
def test_layers_that_share_an_attention_module_have_the_models_numbers():
    """Zamba2's shared modules have the number -1."""
    kinds = ["mamba", "mamba", "hybrid"] * 2
    config = hf.Zamba2Config(
        **{**SIZES, "num_hidden_layers": 6}, layers_block_type=kinds, num_mem_blocks=1, n_mamba_heads=8,
        mamba_headdim=12, mamba_d_state=8, mamba_ngroups=1, chunk_size=8,
    )  # fmt: skip
    torch.manual_seed(3)
    model = hf.Zamba2ForCausalLM(config).eval()
    ids = batch().input_ids
    plain = model(input_ids=ids, use_cache=False).logits
    maps = attention_maps(model, ids[:1])
    assert [one.layer for one in maps] == [2, 5]
    assert Maps("zamba2", config, {}, maps).without_attention == [0, 1, 3, 4]
    found = attention_statistics(model, input_ids=ids[:1])
    assert found.layers == [2, 5]
    for index, one in enumerate(maps):
        entropy = torch.special.entr(one.maps[:, 0]).sum(-1).mean(-1)
        torch.testing.assert_close(found.entropy[index][0], entropy, rtol=1e-3, atol=1e-4)
    heads = {2: [0, 1], 5: [1]}
    with antiphase.calibrated(model, CalibrationPlan(heads, alpha=1e30)):
        torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, plain, rtol=1e-4, atol=1e-4)
    with antiphase.calibrated(model, CalibrationPlan(heads, alpha=0.5, beta=0.1)):
        assert (model(input_ids=ids, use_cache=False).logits - plain).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("first", ["sliding_attention", "full_attention"])
def test_layers_with_and_without_a_window_may_share_one_mask(first):
    """A mask of four dimensions counts as it stands in every layer, whatever window a layer declares."""
    second = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}[first]
    config = hf.Qwen2Config(
        **SIZES, num_key_value_heads=4, use_sliding_window=True, sliding_window=7, layer_types=[first, second, first]
    )
    model, ids = sharp(hf.Qwen2ForCausalLM(config)), batch().input_ids
    mask = torch.ones(N, N, dtype=torch.bool).tril().expand(len(ids), 1, N, N)
    plain = model(input_ids=ids, attention_mask=mask).logits
    with antiphase.calibrated(model, CalibrationPlan(PLAN.heads, alpha=1e30)):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, plain, rtol=1e-5, atol=1e-5)
    with quantized_logits(model, 40):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, plain, rtol=1e-5, atol=1e-5)


def test_an_encoder_alone_is_measured_though_its_configuration_is_a_pairs():
    encoder = sharp(REFUSED["bart"]()).get_encoder()
    assert encoder.config.is_encoder_decoder
    ids = batch().input_ids
    encoder.set_attn_implementation("eager")
    weights = encoder(ids, output_attentions=True).attentions
    entropy = torch.stack([torch.special.entr(one).sum(-1).mean(-1) for one in weights])
    found = attention_statistics(encoder, input_ids=ids)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-5, atol=1e-6)


COMPRESSED = hf.DeepseekV4Config(
    vocab_size=61, hidden_size=48, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=8,
    layer_types=["compressed_sparse_attention"],
    head_dim=8, q_lora_rank=24, num_experts_per_tok=2, n_routed_experts=4, n_shared_experts=1, sliding_window=5,
    max_position_embeddings=96, o_groups=2, o_lora_rank=16, index_n_heads=2, index_head_dim=8, index_topk=64,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
"""Layers that attend to compressed keys besides the tokens' own."""


@pytest.mark.parametrize("reader", [
    lambda model, ids: attention_rows(model, ids, torch.tensor([[3, 11]])),
    lambda model, ids: attention_maps(model, ids),
    lambda model, ids: LastTokens(model, ids, torch.tensor([[N - 3, N - 2]])),
])  # fmt: skip
def test_keys_that_are_no_tokens_are_refused(reader):
    model = hf.DeepseekV4ForCausalLM(COMPRESSED).eval()
    with pytest.raises(
        ValueError, match=r"^DeepseekV4Attention attends to \d+ keys with 37 queries; keys that are not"
    ):
        reader(model, batch(1).input_ids)
