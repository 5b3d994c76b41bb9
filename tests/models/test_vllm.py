"""vLLM itself serves models of this package: the tokens and log-probabilities are those of transformers.

Only where vLLM is installed; ``python -m tools.served`` makes an environment with it and runs these tests there.
"""

import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from antiphase import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.models import transformer
from support.models import randomize

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
pytest.importorskip("vllm", reason="vLLM is not installed")

SIZES = {
    "vocab_size": 503, "hidden_size": 96, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 8,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOWS = {"sliding_window": 19, "layer_types": ["sliding_attention", "full_attention"]}
KINDS = {
    "softmax": {"attention_type": "softmax", "num_key_value_heads": 4, "tie_word_embeddings": True, **WINDOWS},
    "V1": {"attention_type": "differential", "num_key_value_heads": 4},
    "V1, wide": {"attention_type": "differential", "head_dim": 40, **WINDOWS},
    "V1 with PolyNorm": {"attention_type": "differential", "head_dim": 32, "hidden_act": "poly_norm"},
    "V1, as Motif": {
        "attention_type": "differential", "num_noise_heads": 2, "num_key_value_heads": 4, "hidden_act": "poly_norm",
        "lambda_init": [0.3, 0.7], **WINDOWS,
    },
    "V2": {"attention_type": "differential_v2", "num_key_value_heads": 2},
    "V2, wide": {
        "attention_type": "differential_v2", "num_noise_heads": 2, "output_gate": True, "use_qk_norm": True,
        "head_dim": 64, "embedding_multiplier": 3.0, "attention_bias": True,
    },
}  # fmt: skip
NEW = 40


def folder_of(kind, path):
    torch.manual_seed(0)
    randomize(AntiphaseForCausalLM(AntiphaseConfig(**SIZES, **KINDS[kind]))).save_pretrained(path)
    return path


def prompts():
    """32 of lengths 1 to 139; they share beginnings, some of them whole blocks of the cache."""
    choose = random.Random(0)
    tokens = range(3, SIZES["vocab_size"])
    shared = choose.choices(tokens, k=96)
    return [shared[: choose.choice((0, 40, 96))] + choose.choices(tokens, k=choose.randint(1, 43)) for _ in range(32)]


def engine(path, **settings):
    """With so few blocks of the cache that texts wait for each other, and prompts read in parts."""
    from vllm import LLM

    return LLM(
        str(path), skip_tokenizer_init=True, dtype="float32", max_model_len=192, block_size=32,
        **{"num_gpu_blocks_override": 16, "max_num_batched_tokens": 48, "max_num_seqs": 8, **settings},
        enforce_eager=True, disable_log_stats=False, kv_cache_memory_bytes=2**26,
    )  # fmt: skip


def served(llm, texts, **sampling):
    """The new tokens of each text, and their log-probabilities."""
    from vllm import SamplingParams

    asked = [
        SamplingParams(max_tokens=NEW, logprobs=0, ignore_eos=True, detokenize=False, seed=seed, **sampling)
        for seed in (range(len(texts)) if sampling["temperature"] else [None] * len(texts))
    ]
    outputs = [one.outputs[0] for one in llm.generate([{"prompt_token_ids": text} for text in texts], asked)]
    tokens = [list(one.token_ids) for one in outputs]
    found = [[row[token].logprob for token, row in zip(one.token_ids, one.logprobs, strict=True)] for one in outputs]
    return tokens, torch.tensor(found)


@torch.no_grad()
def expected(model, texts, new):
    """Log-probabilities of all tokens (texts, NEW, vocabulary) where ``new`` stand behind the texts."""
    return torch.stack([
        model(torch.tensor([text + more])).logits[0, len(text) - 1 : -1]
        for text, more in zip(texts, new, strict=True)
    ]).log_softmax(-1)  # fmt: skip


def greedy_as_in_transformers(llm, texts, model):
    tokens, found = served(llm, texts, temperature=0.0)
    rows = expected(model, texts, tokens)
    assert rows.argmax(-1).tolist() == tokens
    torch.testing.assert_close(found, rows.amax(-1), atol=1e-3, rtol=0)
    return tokens


def counters(llm):
    return {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_probabilities_are_those_of_transformers(kind, tmp_path):
    """Batches that change, prompts read in parts, beginnings that are in the cache, and texts that lose their place."""
    llm = engine(folder_of(kind, tmp_path))
    greedy_as_in_transformers(llm, prompts(), AntiphaseForCausalLM.from_pretrained(tmp_path).eval())
    seen = counters(llm)
    assert seen["vllm:prefix_cache_hits"] > 0
    assert seen["vllm:num_preemptions"] > 0


@pytest.mark.parametrize("kind", ["softmax", "V1", "V1 with PolyNorm", "V2"])
def test_two_processes_divide_the_heads_and_seeds_draw_the_same_tokens(kind, tmp_path, monkeypatch):
    """Prompts are read whole: vLLM 0.32 on a CPU has an error for a prompt with a seed that it reads in parts."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # which two processes need on one memory node
    llm = engine(folder_of(kind, tmp_path), tensor_parallel_size=2, max_num_batched_tokens=2048)
    texts, model = prompts(), AntiphaseForCausalLM.from_pretrained(tmp_path).eval()
    greedy = greedy_as_in_transformers(llm, texts, model)
    drawn, found = served(llm, texts, temperature=1.0)
    assert drawn != greedy
    own = expected(model, texts, drawn).gather(-1, torch.tensor(drawn)[..., None])[..., 0]
    torch.testing.assert_close(found, own, atol=1e-3, rtol=0)
    assert served(llm, texts, temperature=1.0)[0] == drawn


def test_what_would_be_served_wrongly_is_refused_by_name(tmp_path, capfd):
    config = AntiphaseConfig(**SIZES, attention_type="softmax", sink_logits=True)
    AntiphaseForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError):
        engine(tmp_path)
    assert "InputError: sink_logits cannot be served" in "".join(capfd.readouterr())


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification"])
def test_a_classifier_is_refused_by_name(head, tmp_path, capfd):
    model = getattr(transformer, f"AntiphaseFor{head}")
    model(AntiphaseConfig(**SIZES, attention_type="softmax")).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError):
        engine(tmp_path)
    assert f"InputError: AntiphaseFor{head} cannot be served" in "".join(capfd.readouterr())


@contextmanager
def server(folder, log):
    """The OpenAI interface: a function that completes a prompt of token ids.

    Nothing there imports this package but vLLM, by the entry point. It is started as a module, because the command
    ``vllm`` of ``vllm-cpu`` 0.32 looks for a package named vllm.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "own",
        "--dtype", "float32", "--max-model-len", "192", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "4M",
        "--port", address.rpartition(":")[2],
    ]  # fmt: skip

    def ask(path, fields=None):
        body = None if fields is None else json.dumps({"model": "own", **fields}).encode()
        request = urllib.request.Request(f"http://{address}{path}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read() or b"null")

    def complete(text):
        fields = {"prompt": text, "max_tokens": NEW, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        return ask("/v1/completions", fields)["choices"][0]["token_ids"]

    with log.open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        for _ in range(300):
            assert running.poll() is None, log.read_text()
            try:
                ask("/health")
                break
            except OSError:
                time.sleep(1)
        yield complete
    finally:
        running.terminate()
        running.wait(60)


@torch.no_grad()
def test_a_server_answers_two_hundred_requests_and_the_same_after_a_restart(tmp_path, text_tokenizer):
    text_tokenizer.save_pretrained(folder_of("V1", tmp_path / "model"))
    model, texts = AntiphaseForCausalLM.from_pretrained(tmp_path / "model").eval(), prompts()
    model.generation_config.eos_token_id = None
    new = [model.generate(torch.tensor([text]), max_new_tokens=NEW)[0, len(text) :].tolist() for text in texts]
    with server(tmp_path / "model", tmp_path / "log") as complete, ThreadPoolExecutor(8) as eight:
        numbers = [number % 32 for number in range(200)]
        answers = eight.map(complete, [texts[number] for number in numbers])
        assert list(answers) == [new[number] for number in numbers]
    with server(tmp_path / "model", tmp_path / "log") as complete:
        assert [complete(text) for text in texts[:8]] == new[:8]
