"""Whatever reads or changes attention: on every kind of model it is right, or refuses the model in a sentence.

The oracle of DiffLlama and of a differential Llama is the same model in this package's form, where λ and both maps are
the attention function's own. Every other kind of model: ``tests/instrumentation/test_matrix.py``.
"""

import copy
from dataclasses import asdict

import pytest
import torch
import transformers as hf
from torch import Tensor

import antiphase
from antiphase.calibration.head_sensitivity import head_sensitivities
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.variants import varied
from antiphase.data.retrieval import RetrievalTask, SymbolLanguage
from antiphase.data.streams import Batch
from antiphase.data.tokenization import train_tokenizer
from antiphase.errors import InputError
from antiphase.evaluations.cancellation.measure import cancellation
from antiphase.evaluations.outliers.measure import outliers
from antiphase.evaluations.probe.measure import sinks_on_text
from antiphase.evaluations.quantization.logits import quantized_logits
from antiphase.instrumentation.hooks import wrapped_attention
from antiphase.models.conversion import convert_model
from antiphase.probing.maps import attention_maps
from antiphase.probing.rows import attention_rows
from antiphase.probing.statistics import attention_statistics
from antiphase.randomness import keyed_generator
from antiphase.scoring.allocation import allocation
from antiphase.scoring.constrained import choose_options
from antiphase.scoring.likelihood import generated_tokens
from antiphase.scoring.perplexity import perplexity

LAYERS, MAPS, N = 3, 8, 37
TASK = RetrievalTask(SymbolLanguage(9, 11, 5), needles=4, queries=2, sequence_length=N)
SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": LAYERS,
    "num_attention_heads": MAPS, "max_position_embeddings": 96,
}  # fmt: skip
SMALL_GPT2 = hf.GPT2Config(vocab_size=61, n_embd=48, n_layer=LAYERS, n_head=MAPS, n_positions=96, attn_pdrop=0.0)
SMALL_LLAMA = hf.LlamaConfig(**SIZES, num_key_value_heads=4)
SMALL_BERT = hf.BertConfig(**SIZES, attention_probs_dropout_prob=0.0)


def differential(config, auto=hf.AutoModelForCausalLM):
    return auto.from_config(antiphase.differential_config(config))


CAUSAL = {
    "differential_llama": lambda: differential(SMALL_LLAMA),
    "differential_gpt2": lambda: differential(SMALL_GPT2),
}
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
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name.lower() or "ln_" in name else 0.0, 0.3, generator=generator)
    return model.double().eval()


def batch(count=3):
    return TASK.sample(count, keyed_generator("readers"))


def words(number):
    return str(number)


def score(model, samples):
    """Log-probability of the last token."""
    ids = torch.stack(list(samples))
    return model(input_ids=ids).logits[:, -2].log_softmax(-1).gather(1, ids[:, -1:])[:, 0]


class Numbered:
    """Maps by the pairs that they are in, 2i and 2i + 1, whatever the model's own numbering."""

    def __init__(self, model):
        maps = range(model.config.get_text_config().num_attention_heads)
        is_diffllama = model.config.model_type == "diffllama"
        self.own = [n // 2 + n % 2 * MAPS // 2 if is_diffllama else n for n in maps]

    def plan(self, heads, **rule):
        return CalibrationPlan({layer: [self.own[n] for n in maps] for layer, maps in heads.items()}, **rule)

    def by_pair(self, found):
        return {(layer, n): found[layer, own] for layer, _ in found for n, own in enumerate(self.own)}


SOME = {0: [1, 2], 1: [0, 5, 7], 2: [3, 4]}
EVERY = {layer: list(range(MAPS)) for layer in range(LAYERS)}
STRONG = {"alpha": 1.5, "beta": 0.2}


def within(block, model):
    with block, torch.no_grad():
        return model(input_ids=batch().input_ids).logits


def of_statistics(model):
    found = attention_statistics(model, {"end": batch().input_ids > 9}, top=4, input_ids=batch().input_ids)
    own = Numbered(model).own
    by_map = (found.received, found.sinks, found.entropy, found.first_share, found.span_share["end"], found.top_logits)
    return [one[:, :, own] for one in by_map], vars(found.differences)


def of_search(model, method):
    samples = list(batch(8).input_ids)
    plan = antiphase.search_calibration(model, score, samples, method=method, **STRONG)
    heads = {tuple(map(int, name.split("."))): found["change"] for name, found in plan.scores["heads"].items()}
    return plan.scores["held_out_before"], plan.scores["held_out_after"], Numbered(model).by_pair(heads)


READERS = {
    **{
        f"calibrated, {mode}": lambda model, mode=mode: within(
            antiphase.calibrated(model, Numbered(model).plan(SOME, mode=mode, **STRONG)), model
        )
        for mode in ("paper", "prompt", "running")
    },
    **{
        f"quantized by {what}": lambda model, what=what: within(quantized_logits(model, 4, granularity=what), model)
        for what in ("tensor", "head", "row")
    },
    **{
        f"varied, {rule}": lambda model, rule=rule: within(
            varied(model, Numbered(model).plan(SOME, **STRONG), rule), model
        )
        for rule in ("uniform", "inverse", "temperature")
    },
    "gates": lambda model: Numbered(model).by_pair(
        head_sensitivities(model, Numbered(model).plan(EVERY, **STRONG), score, list(batch().input_ids))
    ),
    "search": lambda model: of_search(model, "exhaustive"),
    "search, cached": lambda model: of_search(model, "cached"),
    "statistics": of_statistics,
    "rows": lambda model: [vars(one) for one in attention_rows(model, batch().input_ids, batch().prompt_end[:, None])],
    "allocation": lambda model: allocation(model, batch()),
    "cancellation": lambda model: cancellation(model, batch()),
    "sinks": lambda model: {**asdict(sinks_on_text(model, batch().input_ids, words, alpha=2.0)), "heads": None},
}  # fmt: skip
every_reader = pytest.mark.parametrize("reader", READERS)


@every_reader
@pytest.mark.parametrize("name", REFUSED)
def test_encoder_decoders_are_refused_by_name(name, reader):
    model = sharp(REFUSED[name]())
    ids = batch().input_ids
    texts = {"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}
    with torch.no_grad():
        before = model(**texts).logits
    with pytest.raises(InputError, match=f"attention of a {name} model cannot be measured or changed"):
        READERS[reader](model)
    with torch.no_grad():
        assert torch.equal(model(**texts).logits, before)
    assert not any(module._forward_hooks for module in model.modules())


def assert_near(found, expected, where=""):
    """Equal but for rounding, however nested."""
    if isinstance(found, Tensor) and found.is_floating_point():
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=2e-4, atol=2e-5, equal_nan=True, msg=where)
    elif isinstance(found, Tensor):
        assert torch.equal(found, expected), where
    elif isinstance(found, dict):
        assert found.keys() == expected.keys(), where
        for name in found:
            assert_near(found[name], expected[name], f"{where} {name}")
    elif isinstance(found, (list, tuple)):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_near(one, other, f"{where} {number}")
    elif isinstance(found, float):
        counted = 5e-3 if where.endswith("near_zero") else 2e-5  # rounding moves weights across its bound
        assert found == pytest.approx(expected, rel=2e-4, abs=counted, nan_ok=True), where
    else:
        assert found == expected, where


@pytest.fixture(scope="module")
def diffllama():
    return sharp(hf.AutoModelForCausalLM.from_config(hf.DiffLlamaConfig(**SIZES, num_key_value_heads=4)))


@pytest.fixture(scope="module")
def differential_llama():
    return sharp(differential(SMALL_LLAMA))


@pytest.fixture(scope="module")
def of_this_package(diffllama, differential_llama):
    """The same models in this package's form."""
    config = antiphase.AntiphaseConfig(
        attention_type="differential", **SIZES, num_key_value_heads=4, rms_norm_eps=SMALL_LLAMA.rms_norm_eps
    )
    other = hf.AutoModelForCausalLM.from_config(config)
    weights = {name.replace(".differential", ""): tensor for name, tensor in differential_llama.state_dict().items()}
    other.load_state_dict(weights)
    return {"diffllama": convert_model(diffllama).double().eval(), "differential_llama": other.double().eval()}


def check_read_alike(reader, model, other):
    plain = within(torch.no_grad(), model)
    assert_near(plain, within(torch.no_grad(), other))
    found = READERS[reader](model)
    assert_near(found, READERS[reader](other))
    if isinstance(found, Tensor):
        assert (found - plain).abs().max() > 1e-2, "what changes nothing shows nothing"
    assert torch.equal(within(torch.no_grad(), model), plain)


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "antiphase"])
@every_reader
def test_diffllama_is_read_as_the_same_model_of_this_package(reader, implementation, diffllama, of_this_package):
    diffllama.set_attn_implementation(implementation)
    check_read_alike(reader, diffllama, of_this_package["diffllama"])


@every_reader
def test_differential_llama_is_read_as_the_same_model_of_this_package(reader, differential_llama, of_this_package):
    check_read_alike(reader, differential_llama, of_this_package["differential_llama"])


@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@pytest.mark.parametrize("name", ["diffllama", "differential_llama"])
@torch.no_grad()
def test_steps_under_calibration_are_those_of_the_same_model(name, mode, request, of_this_package):
    ids, found = batch().input_ids, []
    for model in (request.getfixturevalue(name), of_this_package[name]):
        with antiphase.calibrated(model, Numbered(model).plan(SOME, mode=mode, **STRONG)):
            cache = hf.DynamicCache(config=model.config)
            pieces = [model(input_ids=part, past_key_values=cache).logits for part in ids.tensor_split((20, 21, 22), 1)]
        found.append(torch.cat(pieces, dim=1))
    assert_near(*found)
    assert (found[0] - model(input_ids=ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["diffllama", "differential_llama"])
def test_maps_and_outliers_are_those_of_the_same_model(name, request, of_this_package):
    model, other = request.getfixturevalue(name), of_this_package[name]
    ids = batch().input_ids
    for one, two in zip(attention_maps(model, ids[:1]), attention_maps(other, ids[:1]), strict=True):
        assert_near(vars(one), vars(two))
    assert_near(asdict(outliers(model, ids)), asdict(outliers(other, ids)))
    assert {row.what for row in outliers(model, ids).rows} == {"attention logits", "hidden states"}


def test_a_function_put_in_by_others_hides_the_heads_of_these_models(differential_llama):
    with (
        pytest.raises(ValueError, match="another attention function is installed in this model"),
        wrapped_attention(differential_llama, lambda function: lambda *args, **kwargs: function(*args, **kwargs)),
    ):
        attention_statistics(differential_llama, input_ids=batch().input_ids)


@torch.no_grad()
def test_layers_without_attention_keep_their_numbers_and_are_no_part_of_a_plan():
    fields = {**SIZES, "num_key_value_heads": 4, "layer_types": ["conv", "full_attention", "full_attention"]}
    model = sharp(hf.AutoModelForCausalLM.from_config(hf.Lfm2Config(**fields)))
    ids = batch().input_ids
    plain = model(input_ids=ids).logits
    assert attention_statistics(model, input_ids=ids).layers == [1, 2]
    assert [one.layer for one in attention_rows(model, ids, batch().prompt_end[:, None])] == [1, 2]
    assert [one.layer for one in attention_maps(model, ids[:1])] == [1, 2]
    assert [row["layer"] for row in allocation(model, batch())] == [1, 2, "all"]
    found = cancellation(model, batch())
    assert [row["layer"] for row in found["layers"]] == [1, 2, "all"]
    assert {row["layer"] for row in found["heads"]} == {1, 2}
    assert all(row["maps"]["softmax"]["noise"] is not None for row in found["layers"])
    with quantized_logits(model, 3):
        assert (model(input_ids=ids).logits - plain).abs().max() > 1e-2
    with antiphase.calibrated(model, CalibrationPlan({1: [0]}, alpha=1e30)):
        torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=1e-5, atol=1e-5)
    missing = pytest.raises(InputError, match="layer 0 of Lfm2ForCausalLM has no attention that could be changed")
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
        with pytest.raises(ValueError, match="layer 1 of LlamaForCausalLM attends more than once"):
            read(model, **arguments)
    plan = CalibrationPlan({1: [0]})
    with (
        pytest.raises(ValueError, match="layer 1 of LlamaForCausalLM attends more than once"),
        antiphase.calibrated(model, plan),
    ):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="layer 1 of LlamaForCausalLM attends more than once"):
        head_sensitivities(model, plan, score, list(ids))
    with quantized_logits(model, 30):
        torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=1e-5, atol=1e-5)
    assert [one.layer for one in attention_maps(model, ids[:1])] == [0, 1, 1]


# ------------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_what_measures_outputs_works_on_differential_models_of_other_architectures(name):
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
    from antiphase.evaluations.harness.lm_eval_adapter import ProjectLM

    tokenizer = train_tokenizer(["one two three four yes no"] * 9, 300)
    config = copy.deepcopy(SMALL_GPT2 if "gpt2" in name else SMALL_LLAMA)
    config.vocab_size = len(tokenizer)
    model = sharp(differential(config)).float()
    before, after = tokenizer("one two three")["input_ids"], tokenizer(" yes no")["input_ids"]
    ((likely, _),) = ProjectLM(model, tokenizer)._loglikelihood_tokens([(("", ""), before, after)])
    scores = model(input_ids=torch.tensor([before + after])).logits[0].log_softmax(-1)
    expected = sum(float(scores[len(before) - 1 + place, token]) for place, token in enumerate(after))
    assert likely == pytest.approx(expected, rel=1e-4)
