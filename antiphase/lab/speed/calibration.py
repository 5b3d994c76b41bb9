"""Calibrated attention against plain attention, memory of probing, and a search of heads against plain prefills."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from antiphase.attention.caches import CACHE
from antiphase.attention.calls import AttentionCall, kind_of
from antiphase.attention.forward_pass import ForwardPass
from antiphase.attention.statistics import attention_statistics
from antiphase.base.records import Record
from antiphase.calibration.apply import Calibration, calibrated
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.search import each_alone
from antiphase.lab.scoring.likelihood import score_options
from antiphase.lab.speed.memory import peak_of
from antiphase.lab.speed.timing import paired_times, ratios
from antiphase.ops.statistics import Visibility, layer_statistics

CALIBRATED, PLAIN, PROBING = "calibrated", "plain", "probing"
HEADS, WIDTH, BATCH = 16, 64, 2
LENGTHS = (1024, 2048, 4096)
SHARES = (0.0, 0.05, 0.2)
"""Shares of keys that are sinks."""
PADDING = 0.1
"""Share of padding in the second sequence."""
MODES = ("prompt", "paper", "running")
NEW_TOKENS = 16
"""Decoding steps per round; the cache grows with the rounds."""
PROBED = 16384
"""Number of tokens in the probed text."""
SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": HEADS * WIDTH, "intermediate_size": 2752, "num_hidden_layers": 4,
    "num_attention_heads": HEADS, "max_position_embeddings": PROBED,
}  # fmt: skip


SEARCHED: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
"""The model in which every head is tried alone."""
PROMPTS, PROMPT_LENGTHS = 24, (8, 57)
"""How many, and their smallest length and the one above the largest."""
SEARCH_TASK = "search, every head tried alone"
SHARED, HEADS_TIMES = "lower layers run once", "heads × a plain prefill"


def benchmark_calibration(
    *, quick: bool = False, seed: int = 0, say: Callable[[str], None] = lambda message: None
) -> Record:
    """Time a layer's prefill and a model's decoding steps at several shares of sinks; measure peak memory; fp32."""
    started = time.perf_counter()
    lengths = LENGTHS[:1] if quick else LENGTHS
    rounds, seconds = (5, 6.0) if quick else (15, 20.0)
    rows: list[dict[str, Any]] = []

    def compare(task: str, length: int, work: dict[str, Callable[[], object]], baseline: str) -> None:
        say(f"timing {task}, {length:,} tokens")
        times = paired_times(work, rounds=rounds, seconds=seconds)
        for name in work:
            if name != baseline:
                rows.append({**_what(task, length), **ratios(times, name, baseline)})

    for length in lengths:
        for share in SHARES:
            calls = {name: layer_call(length, name, length, share, seed) for name in (CALIBRATED, PLAIN)}
            compare(f"prefill of a layer, {100 * share:g} % sinks", length, calls, PLAIN)
    for length in lengths:
        with ExitStack() as stack:
            steps = {PLAIN: _steps(stack, length, None, seed)}
            steps |= {f"{CALIBRATED}, {mode}": _steps(stack, length, mode, seed) for mode in MODES}
            compare("decoding steps of a model", length, steps, PLAIN)
    say("timing a search of heads")
    search = {"task": SEARCH_TASK, **ratios(
        paired_times(search_calls(seed), rounds=3 if quick else 7), SHARED, HEADS_TIMES
    )}  # fmt: skip
    memory = []
    for length in lengths:
        task = f"prefill of a layer, {100 * SHARES[1]:g} % sinks"
        say(f"measuring memory: {task}, {length:,} tokens")
        for name in (PLAIN, CALIBRATED):
            found = peak_of(layer_call, name, length, SHARES[1], seed, what=f"{name}, {task}")
            memory.append({**_what(task, length), "scheme": name, "bytes": found})
    probed = LENGTHS[-1] if quick else PROBED
    say(f"measuring memory: a forward pass and probing, {probed:,} tokens")
    for name in (PLAIN, PROBING):
        found = peak_of(forward_call, name, probed, seed, what=f"{name}, a forward pass")
        memory.append({**_what("forward pass of a model", probed), "scheme": name, "bytes": found})
    return Record(
        kind="benchmark-calibration",
        values={"rows": rows, "memory": memory, "search": [search]},
        config={
            **SIZES, "heads": HEADS, "width": WIDTH, "batch": BATCH, "padding": PADDING, "new_tokens": NEW_TOKENS,
            "rounds": rounds, "quick": quick,
        },
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _what(task: str, length: int) -> dict[str, Any]:
    return {"task": task, "dtype": "float32", "length": length, "width": WIDTH}


class _Layer(nn.Module):
    """A layer that has only the attributes that transformers' attention functions use."""

    is_causal, layer_idx, num_key_value_groups = True, 0, 1

    def __init__(self) -> None:
        super().__init__()
        self.config = LlamaConfig(**SIZES)
        self.eval()


@dataclass(frozen=True)
class LayerInputs:
    """The arguments that a layer passes to its attention function, and which tokens are real."""

    query: Tensor
    """(B, heads, N, d), stored token by token as projections produce them, like key and value."""
    key: Tensor
    value: Tensor
    mask: Tensor
    """(B, 1, N, N), as transformers builds it."""
    real: Tensor
    """(B, N)."""


def layer_inputs(length: int, seed: int) -> LayerInputs:
    """Random inputs; the second sequence is padded on the left. Equal seeds give equal inputs."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(BATCH, length, HEADS, WIDTH, generator=generator).transpose(1, 2) for _ in range(3)
    )
    real = torch.ones(BATCH, length, dtype=torch.bool)
    real[1:, : int(PADDING * length)] = False
    return LayerInputs(query, key, value, sdpa_mask(BATCH, length, length, attention_mask=real), real)


def threshold(given: LayerInputs, share: float) -> float:
    """The α above which this share of the real keys receives attention."""
    length = given.real.shape[1]
    if share == 0:
        return float(length)
    found = layer_statistics(
        given.query[:, :, None, None], given.key[:, :, None], Visibility(given.real[:, None, None]),
        scale=WIDTH**-0.5, real=given.real,
    )  # fmt: skip
    # a sink receives more than α / N, where N is the sequence's own number of tokens
    multiples = found.maps.received[:, :, 0, 0] * given.real.sum(1)[:, None, None]
    multiples = multiples.transpose(1, 2)[given.real].flatten()  # (real keys · heads,)
    place = max(1, round((1 - share) * len(multiples)))
    return float(multiples.kthvalue(place).values)


def layer_call(limit: int, scheme: str, length: int, share: float, seed: int) -> Callable[[], object]:
    """A layer's own call, or the calibrated one with a threshold that makes this share of its keys sinks."""
    given = layer_inputs(min(length, limit), seed)
    layer = _Layer()
    calibration = Calibration(CalibrationPlan({0: range(HEADS)}, alpha=threshold(given, share)))
    tensors, arguments = (given.query, given.key, given.value, given.mask), {"scaling": WIDTH**-0.5}
    plain = partial(sdpa_attention_forward, layer, *tensors, **arguments)

    @torch.no_grad()
    def run() -> object:
        if scheme == PLAIN:
            return plain()
        forward = ForwardPass(real=given.real)
        return calibration(AttentionCall(layer, 0, kind_of(layer), *tensors, arguments, own=plain, forward=forward))

    return run


def _model(seed: int, sizes: dict[str, Any] | None = None) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**(sizes or SIZES))).eval()


def search_calls(seed: int) -> dict[str, Callable[[], object]]:
    """A search over every head, and as many plain evaluations of its samples.

    Raises:
        RuntimeError: the search does not find what it finds without sharing layers.
    """
    model = _model(seed, SEARCHED)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(*PROMPT_LENGTHS, (PROMPTS,), generator=generator).tolist()
    prompts = [torch.randint(0, 4096, (length,), generator=generator).tolist() for length in lengths]
    options = [[[1], [2, 3]]] * PROMPTS
    maps = SEARCHED["num_attention_heads"]
    heads = [(layer, head) for layer in range(SEARCHED["num_hidden_layers"]) for head in range(maps)]
    rule = {"alpha": 2.0, "beta": 0.4, "mode": "prompt"}

    @torch.no_grad()
    def score() -> Tensor:
        return torch.stack([found.log_likelihood for found in score_options(model, prompts, options)])

    def search(*, shares_lower: bool = True) -> list[Tensor | None]:
        return [found for _, found in each_alone(model, heads, rule, score, shares_lower=shares_lower)]

    for one, other in zip(search(), search(shares_lower=False), strict=True):
        if one is None or other is None or not torch.allclose(one, other, atol=1e-4, rtol=0):
            raise RuntimeError("a search that shares lower layers finds other scores than one that does not")
    return {SHARED: search, HEADS_TIMES: lambda: [score() for _ in heads]}


def _steps(stack: ExitStack, length: int, mode: str | None, seed: int) -> Callable[[], object]:
    """Steps of one token after a cached prompt, with every head calibrated until the stack is closed, or none."""
    model = _model(seed)
    if mode is not None:
        every = {layer: range(HEADS) for layer in range(SIZES["num_hidden_layers"])}
        stack.enter_context(calibrated(model, CalibrationPlan(every, mode=mode)))
    prompt = torch.randint(0, SIZES["vocab_size"], (1, length), generator=torch.Generator().manual_seed(seed))
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=prompt, use_cache=True, **{CACHE: cache}, logits_to_keep=1)

    @torch.no_grad()
    def run() -> object:
        token = prompt[:, -1:]
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=token, use_cache=True, **{CACHE: cache}, logits_to_keep=1).logits
            token = logits[:, -1:].argmax(-1)
        return token

    return run


def forward_call(limit: int, scheme: str, length: int, seed: int) -> Callable[[], object]:
    """A forward pass of a model without its head over one text, or the statistics of its attention."""
    model = _model(seed).base_model
    length = min(length, limit)
    ids = torch.randint(0, SIZES["vocab_size"], (1, length), generator=torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def run() -> object:
        if scheme == PROBING:
            return attention_statistics(model, input_ids=ids)
        return model(input_ids=ids, use_cache=False).last_hidden_state

    return run
