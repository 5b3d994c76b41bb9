"""Whatever a model is, options, choices, losses and answers are those of texts that are read alone, whole, unpadded."""

import copy
import re
from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import antiphase
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.lab.measures.long_context.measure import losses_by_position
from antiphase.lab.scoring import likelihood, probes
from antiphase.lab.scoring.beginnings import alike, counts_padding, is_padded, is_read_in_parts
from antiphase.lab.scoring.constrained import choose_options
from antiphase.lab.scoring.likelihood import generated_tokens, score_options
from antiphase.lab.scoring.probes import check_causal, generates
from support.models import BASE, LONGROPE, SIZES, randomize
from zoo.architectures import config_of, small

ENCODER = {**BASE, "num_attention_heads": 4, "max_position_embeddings": 64, "is_decoder": True}
TEXT_DECODER = {
    "vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 24, "max_position_embeddings": 64, "is_decoder": True,
    "is_encoder_decoder": False,
}  # fmt: skip
SMALL_GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
PLAIN = {
    "llama": hf.LlamaConfig(**SIZES),
    "mistral, a window": hf.MistralConfig(**SIZES, sliding_window=4),
    "gpt2, learned positions": hf.GPT2Config(**SMALL_GPT2),
    "opt, positions of the mask": hf.OPTConfig(vocab_size=61, hidden_size=32, word_embed_proj_dim=32, ffn_dim=24,
                                               num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64),
    "bert, a cache of another class": hf.MegatronBertConfig(**ENCODER),
    "mixture of experts": hf.MixtralConfig(**SIZES, num_local_experts=2),
}  # fmt: skip
"""Read in parts and in padded batches."""
UNPADDED = {
    "bart": hf.BartConfig(**TEXT_DECODER),
    "blenderbot": hf.BlenderbotConfig(**TEXT_DECODER),
    "trocr": hf.TrOCRConfig(**{name: value for name, value in TEXT_DECODER.items() if "encoder" not in name}),
    "roberta": hf.RobertaConfig(**ENCODER, pad_token_id=1),
    "roformer": hf.RoFormerConfig(**ENCODER),
}
"""Read in parts, but not in padded batches."""
WHOLE = {
    "longrope": hf.Phi3Config(**SIZES, max_position_embeddings=64, original_max_position_embeddings=16,
                              rope_parameters=LONGROPE),
    "dynamic": hf.LlamaConfig(**SIZES, max_position_embeddings=8, rope_parameters=DYNAMIC),
    "bart with a small encoder, whose layers its cache has": hf.BartConfig(**TEXT_DECODER | {"encoder_layers": 1}),
    "mamba2": hf.Mamba2Config(**BASE | {"num_hidden_layers": 2}, num_heads=4, head_dim=16, state_size=8, n_groups=1,
                              chunk_size=8),
    "rwkv": hf.RwkvConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
    "layers of attention and of states": hf.Qwen3NextConfig(
        **SIZES | LAYERS, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8,
        shared_expert_intermediate_size=8),
    "layers of both": hf.FalconH1Config(**SIZES, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8),
    "moshi": config_of("causal", "moshi"),
    "git, whose mask has places for an image in a cache": config_of("causal", "git"),
    "prophetnet, several predictions per token": config_of("causal", "prophetnet"),
    "deepseek v3.2, the tokens that score highest": config_of("causal", "deepseek_v32"),
    "doge, where equal tokens score alike": config_of("causal", "doge"),
}  # fmt: skip
"""Read neither in parts nor, some of them, in padded batches."""
AHEAD = {
    "cpmant": hf.CpmAntConfig(vocab_size=61, hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=24,
                              num_hidden_layers=2),
    "xlnet": hf.XLNetConfig(vocab_size=61, d_model=32, n_layer=2, n_head=4, d_inner=24),
    "xlm": hf.XLMConfig(vocab_size=61, emb_dim=32, n_layers=2, n_heads=4, pad_index=60),
    "bert": hf.BertConfig(**ENCODER | {"is_decoder": False}),
}  # fmt: skip
"""See the tokens that they should predict."""
CONFIGS = PLAIN | UNPADDED | WHOLE
SINGLE = {
    "mixture of experts", "layers of attention and of states", "deepseek v3.2, the tokens that score highest",
}  # fmt: skip
"""Experts are multiplied in fp32 at most."""
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 6, 6, 18], [11, 12], [21, 22, 23], [24, 25]]
OPTIONS = [[[3], [4, 5, 6, 7]], [[7, 8], [7, 9], [3, 4, 5, 6]], [[30, 31], [30]], [[4, 5, 6], [7]]]


@pytest.fixture(params=CONFIGS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    torch.manual_seed(3)
    built = randomize(hf.AutoModelForCausalLM.from_config((CONFIGS | AHEAD)[kind]), 0.2)
    return built if kind in SINGLE else built.double()


@pytest.fixture
def fresh(model):
    """The model before it has read a long text, from which RoPE of the kind "dynamic" keeps its frequencies."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        model(input_ids=torch.arange(3, 50)[None], use_cache=False)
    return found


@torch.no_grad()
def logs_of(model, text):
    """Log-probabilities (N, vocabulary) after each token of a text, by a model that has read no other."""
    return copy.deepcopy(model)(input_ids=torch.tensor([text]), use_cache=False).logits[0].double().log_softmax(-1)


def greedy(model, prompt, count):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(int(logs_of(model, text)[-1].argmax()))
    return text[len(prompt) :]


def test_how_each_is_read(kind, model):
    assert is_read_in_parts(model) == (kind not in WHOLE)
    if kind not in WHOLE:
        assert is_padded(model) == (kind in PLAIN)
    assert kind not in UNPADDED or counts_padding(model)


@pytest.mark.parametrize("kind", [kind for kind in WHOLE if "score" in kind])
def test_a_model_that_chooses_tokens_reads_each_text_as_it_is(model):
    assert not is_padded(model)
    assert not is_read_in_parts(model)
    assert not generates(model)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_options(model, fresh, order):
    with torch.no_grad():
        found = score_options(model, [PROMPTS[row] for row in order], [OPTIONS[row] for row in order])
    for row, scores in zip(order, found, strict=True):
        prompt = PROMPTS[row]
        for option, likely, is_greedy in zip(OPTIONS[row], scores.log_likelihood, scores.is_greedy, strict=True):
            logs = logs_of(fresh, prompt + option[:-1])[len(prompt) - 1 :]
            expected = logs.gather(1, torch.tensor(option)[:, None]).sum()
            assert likely.item() == pytest.approx(expected.item(), abs=1e-4)
            assert bool(is_greedy) == (logs.argmax(-1).tolist() == option)


def test_choices(model, fresh):
    found = choose_options(model, PROMPTS, OPTIONS)
    for prompt, options, chosen in zip(PROMPTS, OPTIONS, found, strict=True):
        written = []
        while True:
            longer = [option for option in options if option[: len(written)] == written and len(option) > len(written)]
            logs = logs_of(fresh, prompt + written)[-1]
            if written in options and int(logs.argmax()) not in {option[len(written)] for option in longer}:
                break
            written = [*written, max(sorted({option[len(written)] for option in longer}), key=lambda i: logs[i])]
            left = [option for option in options if option[: len(written)] == written]
            if len(left) == 1:
                written = left[0]
                break
        assert options[chosen] == written


def test_losses_by_position(model, fresh):
    ids = torch.randint(3, 61, (2, 33), generator=torch.Generator().manual_seed(1))
    for text, losses in zip(ids.tolist(), losses_by_position(model, ids, chunk=8), strict=True):
        expected = -logs_of(fresh, text)[:-1].gather(1, torch.tensor(text)[1:, None])[:, 0]
        torch.testing.assert_close(losses, expected.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_lengths_beyond_those_that_a_model_is_asked_about_count(kind):
    """Positions change only after more tokens than the model is asked to read."""
    end = probes.TOKENS + 8
    rope = {"longrope": LONGROPE, "dynamic": DYNAMIC}[kind]
    config = hf.Phi3Config(**SIZES, max_position_embeddings=64, original_max_position_embeddings=end,
                           rope_parameters=rope) if kind == "longrope" else hf.LlamaConfig(
                           **SIZES, max_position_embeddings=end, rope_parameters=rope)  # fmt: skip
    model = randomize(hf.AutoModelForCausalLM.from_config(config), 0.2)
    text = torch.randint(3, 61, (1, end + 12), generator=torch.Generator().manual_seed(1))
    expected = -logs_of(model, text[0].tolist())[:-1].gather(1, text[0, 1:, None])[:, 0]
    torch.testing.assert_close(losses_by_position(model, text, chunk=8)[0], expected.float(), atol=1e-4, rtol=1e-4)


FAR = {
    "doge": {"keep_window_size": 40, "max_position_embeddings": 128},
    "moshi": {"sliding_window": 40, "max_position_embeddings": 128},
    "minimax_m3_vl_text": {"index_block_size": 40, "index_topk_blocks": 2},
    "mistral": {"sliding_window": 40},
}
"""Windows and choices that ``TOKENS`` do not reach; the last model is read in parts and padded all the same."""


@pytest.mark.parametrize("name", FAR)
def test_windows_and_choices_beyond_what_a_model_is_asked_to_read(name):
    config = small(CONFIG_MAPPING[name], **FAR[name])
    config.is_decoder = True
    torch.manual_seed(1)
    model = randomize(hf.AutoModelForCausalLM.from_config(config), 0.2)
    settings = config.to_dict()
    texts = [torch.randint(21, 60, (length,)).tolist() for length in (125, 61, 83)]
    assert is_read_in_parts(model) == (name == "mistral")
    assert config.to_dict() == settings
    expected = -logs_of(model, texts[0])[:-1].gather(1, torch.tensor(texts[0])[1:, None])[:, 0]
    losses = losses_by_position(model, torch.tensor(texts[:1]), chunk=31)[0]
    torch.testing.assert_close(losses, expected.float(), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        scores = score_options(model, texts, [[[30]]] * len(texts))
    for text, own in zip(texts, scores, strict=True):
        assert own.log_likelihood.item() == pytest.approx(logs_of(model, text)[-1, 30].item(), abs=1e-4)


def test_a_model_that_cannot_be_asked_with_a_shorter_window_is_read_as_it_is(monkeypatch):
    model = randomize(hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=40)), 0.2)
    forward = model.forward

    def refusing(*args, **kwargs):
        if model.config.sliding_window != 40:
            raise ValueError("the window is part of the weights")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", refusing)
    assert not is_padded(model)
    assert not is_read_in_parts(model)
    assert model.config.sliding_window == 40


@pytest.mark.parametrize("chunk", [4096, 5])
def test_answers(kind, model, fresh, chunk, monkeypatch):
    monkeypatch.setattr(likelihood, "CHUNK", chunk)
    model.generation_config.eos_token_id = None
    count = 1 if kind in ("longrope", "dynamic") else 6  # later, keys are kept as they were when they were cached
    found = generated_tokens(model, PROMPTS, longest=count)
    assert found == [greedy(fresh, prompt, count) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", AHEAD)
def test_a_model_that_sees_what_it_should_predict_is_refused_by_name(kind, model):
    ids = torch.tensor(PROMPTS[:1])
    measured = {
        "log-likelihoods of options": lambda: score_options(model, PROMPTS, OPTIONS),
        "choices between options": lambda: choose_options(model, PROMPTS, OPTIONS),
        "losses by position": lambda: losses_by_position(model, ids),
        "greedy answers": lambda: generated_tokens(model, PROMPTS, longest=2),
    }
    for name, measure in measured.items():
        with pytest.raises(ValueError, match=f"{name} of models of type {kind} mean nothing, .*; choose a causal lang"):
            measure()


def test_dropout_is_not_taken_for_a_look_ahead():
    model = hf.AutoModelForCausalLM.from_config(hf.GPT2Config(**SMALL_GPT2, attn_pdrop=0.5)).train()
    check_causal(model, "losses")
    assert model.training


class Unheard(hf.BlenderbotForCausalLM):
    """One that nothing was said about yet."""


def test_what_a_model_does_not_serve_is_said_once_and_asked_once(caplog):
    model = randomize(Unheard(UNPADDED["blenderbot"]), 0.2)
    read = []
    model.register_forward_pre_hook(lambda module, args, given: read.append(1), with_kwargs=True)
    for _ in range(2):
        assert alike(model, [[1], [2, 3], [4]]) == [[0, 2], [1]]
    assert len(read) == 7  # two lengths for choices of tokens; alone, padded, and three texts alone
    assert [record.getMessage() for record in caplog.records if "Unheard" in record.getMessage()] == [
        "Unheard counts padding as text, so texts of unequal lengths are read one length at a time"
    ]
    assert alike(model, [[1], [2]]) == [[0, 1]]


def test_a_model_that_cannot_read_says_so_itself(tiny_model):
    model = tiny_model("softmax")
    model.model.layers[0].forward = lambda *args, **kwargs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        is_padded(model)


def test_a_model_without_logits_of_its_own_is_asked_again_when_it_has_learned(tiny_model):
    model = randomize(hf.AutoModelForCausalLM.from_config(UNPADDED["bart"]), 0.2)
    head = model.get_output_embeddings()
    kept = head.weight.data.clone()
    head.weight.data.zero_()
    assert is_padded(model)
    head.weight.data.copy_(kept)
    assert not is_padded(model)


OWN_ATTENTION = ("mamba2", "rwkv", "trocr", "roformer", "git", "prophetnet", "bert", "deepseek", "doge")
"""How those begin whose attention no block can change."""


@pytest.mark.grid
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("measured", ["options", "choices", "answers"])
@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if not kind.startswith(OWN_ATTENTION)])
@torch.no_grad()
def test_calibration_that_changes_nothing_measures_the_same_or_is_refused_by_name(kind, model, measured, is_known):
    """Also where the model was never asked how it may be read before its attention was changed."""
    model.generation_config.eos_token_id = None
    measure = {
        "options": lambda: torch.cat([one.log_likelihood for one in score_options(fresh, PROMPTS, OPTIONS)]),
        "choices": lambda: torch.tensor(choose_options(fresh, PROMPTS, OPTIONS)),
        "answers": lambda: torch.tensor(generated_tokens(fresh, PROMPTS, longest=6)),
    }[measured]
    fresh = copy.deepcopy(model)
    expected = measure()
    if not is_known:
        fresh = copy.deepcopy(model)
    layer = 0 if "encoder" in kind else 1
    refused = {
        "options": ("longrope", "dynamic", "bart with a small", "moshi", "layers of"),
        "answers": ("longrope", "roberta", "bart with a small", "moshi"),
    }
    with calibrated(fresh, CalibrationPlan({layer: [0, 1]}, alpha=1e30)):
        if kind.startswith(refused["answers" if measured == "answers" else "options"]):
            with pytest.raises(ValueError, match=r"^(models of type|positions of this) \w+ .*; "):
                measure()
        else:
            torch.testing.assert_close(measure(), expected, atol=1e-4, rtol=1e-4)


def test_calibrated_attention_is_read_as_before(tiny_model):
    model = tiny_model("softmax")
    with calibrated(model, CalibrationPlan({0: [1]})):
        assert generates(model)
        assert not is_read_in_parts(model)
        assert is_padded(model)
    assert is_read_in_parts(model)
    assert set(probes._answers[model].values()) == {True}


@pytest.mark.parametrize(
    ("used", "asked"),
    [
        (r"\bpast_key_values=|\bprefill_chunk_size=", r"\bis_read_in_parts\("),
        (r"(?<!def )\bpadded\(", r"\b(batches|alike)\(|\bcounts_padding\("),
        (r"\battention_mask=", r"\b(batches|alike)\("),
    ],
    ids=["caches", "padding", "masks"],
)
def test_what_divides_a_text_or_pads_a_batch_asks(used, asked):
    """Of all that measures by forward passes of its own; what asks the model is exempt."""
    root = Path(antiphase.__file__).parent
    rooms = ("scoring", "measures", "text", "studies")
    files = [file for name in rooms for file in (root / "lab" / name).rglob("*.py")]
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}
    using = {name for name, text in texts.items() if re.search(used, text)} - {
        "lab/scoring/probes.py",
        "lab/scoring/padding.py",
    }
    assert using
    assert [name for name in using if not re.search(asked, texts[name])] == []
