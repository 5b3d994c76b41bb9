"""Complete models: training step, prefill and generation of ours and of Llama and DiffLlama of equal width and depth.

V2 has smaller projections of keys, values and outputs, and so fewer parameters.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    StaticCache,
)

from antiphase.attention.caches import CACHE
from antiphase.attention.interface import NAME, TRITON
from antiphase.base.records import Record
from antiphase.lab.speed.attention import check_suite, suite_of
from antiphase.lab.speed.pieces import Piece, Pieces, at_once
from antiphase.lab.speed.timing import paired_times, ratios
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM

OURS, OURS_V2, SOFTMAX = "antiphase differential", "antiphase differential_v2", "antiphase softmax"
LLAMA, DIFFLLAMA = "Llama", "DiffLlama"
SOFTMAX_ON_SDPA, LLAMA_ON_OURS = "antiphase softmax, SDPA", "Llama, antiphase"
"""The same models with PyTorch's attention, and Llama with this package's."""
SOFTMAX_ON_FLASH = "antiphase softmax, flash"
"""The same model with PyTorch's FlashAttention-2; on a GPU of compute capability 9, PyTorch takes cuDNN's attention."""
COMPILED = ", compiled"
PAIRS = ((OURS, SOFTMAX), (OURS_V2, SOFTMAX), (OURS, LLAMA), (OURS, DIFFLLAMA), (DIFFLLAMA, LLAMA))
PAIRS_ON_GPU = (*PAIRS, (OURS, SOFTMAX_ON_FLASH), (OURS_V2, SOFTMAX_ON_FLASH))
PAIRS_ON_CPU = ((OURS, SOFTMAX_ON_SDPA), (OURS_V2, SOFTMAX_ON_SDPA), (LLAMA_ON_OURS, LLAMA), *PAIRS)
COMPILED_STEPS = tuple(
    (one + COMPILED, other + COMPILED) for one in (OURS, OURS_V2) for other in (SOFTMAX, SOFTMAX_ON_FLASH)
)
COMPILED_DECODING = tuple(pair for pair in COMPILED_STEPS if pair[1] == SOFTMAX + COMPILED)
"""A cache of fixed size needs a mask, which FlashAttention-2 cannot take."""
WITHOUT_MASK = {"full_attention": None}
"""Masks of a compiled model. Left to transformers, PyTorch before 2.14 would form one of all pairs."""
SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 682, "num_hidden_layers": 6, "num_attention_heads": 8,
    "tie_word_embeddings": True,
}  # fmt: skip
SIZES_ON_GPU: dict[str, Any] = {
    **SIZES, "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12,
}  # fmt: skip
"""About 110M parameters, maps of width 64."""
NEW_TOKENS = 32


@dataclass(frozen=True)
class Setting:
    """How models are timed on a kind of device."""

    sizes: dict[str, Any]
    lengths: Sequence[int]
    tokens: int
    """Tokens per training step, for any sequence length."""
    attention: str = NAME
    """Attention implementation of differential layers."""
    is_half: bool = False
    """Whether training uses autocast to bf16, and prefill and generation use bf16 models; else fp32."""
    is_compiled: bool = False
    """Whether compiled models are timed as well."""
    pairs: Sequence[tuple[str, str]] = PAIRS
    """Models to time, each with its baseline."""

    @property
    def width(self) -> int:
        """Width of a map."""
        width: int = self.sizes["hidden_size"] // self.sizes["num_attention_heads"]
        return width


def setting_of(device: str) -> Setting:
    """Small models on a CPU, the fused kernels on a GPU."""
    if torch.device(device).type == "cuda":
        return Setting(SIZES_ON_GPU, (2048, 4096), 16384, TRITON, is_half=True, is_compiled=True, pairs=PAIRS_ON_GPU)
    return Setting(SIZES, (256, 512, 1024, 2048), 2048, pairs=PAIRS_ON_CPU)


def benchmark_model(
    *,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    setting: Setting | None = None,
    piece: Piece = at_once,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Benchmark complete models. A training step is forward, backward and AdamW. Generation is greedy, one sequence.

    Args:
        setting: how models are timed; None means the default of the device.
        piece: runs the pieces of the work; the record names those that were skipped.

    Raises:
        RuntimeError: the error of the fused kernels is larger than the tolerance rule allows; incorrect code is not
            timed.
    """
    started = time.perf_counter()
    setting = setting or setting_of(device)
    if quick and setting.is_compiled:  # which takes most of the time
        setting = replace(setting, lengths=setting.lengths[-1:])
    elif quick and len(setting.lengths) > 2:
        setting = replace(setting, lengths=setting.lengths[::2])
    done = Pieces(piece)
    checked: list[dict[str, Any]] = []
    if setting.attention == TRITON:
        say("checking correctness")
        checked = done.rows("gate", partial(check_suite, suite_of("cuda", quick=quick), seed, device))
        if not checked:
            setting = replace(setting, lengths=())
    rounds, seconds = (7, 12.0) if quick else (15, 60.0)
    models = models_of(seed, setting, device)
    comparison = _Comparison(setting, device, done, rounds, seconds, say)
    comparison.run(models, torch.Generator().manual_seed(seed))
    return Record(
        kind="benchmark-model",
        values={
            "gate": checked,
            "rows": comparison.rows,
            "parameters": {name: model.num_parameters() for name, model in models.items()},
            "left_out": done.left_out,
        },
        config={
            **setting.sizes, "width": setting.width, "tokens": setting.tokens, "new_tokens": NEW_TOKENS,
            "rounds": rounds, "quick": quick, "device": device,
        },
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )  # fmt: skip


Make = Callable[[], Mapping[str, Callable[[], object]]]
"""Builds the calls to time, by name of the model."""


class _Comparison:
    """Paired timing of models; results are in ``rows``."""

    def __init__(
        self, setting: Setting, device: str, done: Pieces, rounds: int, seconds: float, say: Callable[[str], None]
    ) -> None:
        self.setting, self.device, self.done, self.say = setting, device, done, say
        self.rounds, self.seconds = rounds, seconds
        self.rows: list[dict[str, Any]] = []

    def run(self, models: Mapping[str, PreTrainedModel], generator: torch.Generator) -> None:
        """Run all tasks at all lengths."""
        setting, pairs = self.setting, self.setting.pairs
        compiled_pairs = (COMPILED_STEPS, COMPILED_DECODING) if setting.is_compiled else ((), ())
        trained, decoded = (
            {name: model for name, model in models.items() if any(name + COMPILED in pair for pair in wanted)}
            for wanted in compiled_pairs
        )
        for length in setting.lengths:
            ids = self._tokens(setting.tokens // length, length, generator)
            self._add("training step", length, partial(_steps, models, ids, setting), pairs)
            if trained:
                steps = partial(_steps, trained, ids, setting, is_compiled=True)
                self._add("training step", length, steps, COMPILED_STEPS)
        if setting.is_half:
            for model in models.values():
                model.to(torch.bfloat16)
        for length in setting.lengths:
            prompt = self._tokens(1, length, generator)
            for task, way in (("prefill", _prefill), ("tokens generated", decoding)):
                self._add(task, length, partial(_calls, way, models, prompt), pairs)
            if decoded:
                ways = partial(_calls, compiled_decoding, decoded, prompt, COMPILED)
                self._add("tokens generated", length, ways, COMPILED_DECODING)

    def _tokens(self, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(0, self.setting.sizes["vocab_size"], (count, length), generator=generator).to(self.device)

    def _add(self, task: str, length: int, make: Make, pairs: Sequence[tuple[str, str]]) -> None:
        name = f"{task}, {length:,} tokens{COMPILED if _are_compiled(pairs) else ''}"
        self.rows += self.done.rows(name, partial(self._timed, task, length, make, pairs))

    def _timed(self, task: str, length: int, make: Make, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        self.say(f"timing {task}, {length:,} tokens")
        with fresh_compiler() if _are_compiled(pairs) else nullcontext():
            times = paired_times(
                make(), rounds=self.rounds, seconds=self.seconds, warm_up=3 if self.setting.is_compiled else 1,
                device=self.device,
            )  # fmt: skip
        about = {
            "task": task, "length": length, "dtype": "bfloat16" if self.setting.is_half else "float32",
            "width": self.setting.width,
        }  # fmt: skip
        return [{**about, **ratios(times, one, other)} for one, other in pairs]


def _are_compiled(pairs: Sequence[tuple[str, str]]) -> bool:
    return all(name.endswith(COMPILED) for pair in pairs for name in pair)


def _steps(
    models: Mapping[str, PreTrainedModel], ids: torch.Tensor, setting: Setting, *, is_compiled: bool = False
) -> dict[str, Callable[[], object]]:
    """A training step of each model by name."""
    found = {}
    for name, model in models.items():
        made, masks = (compiled(model), WITHOUT_MASK) if is_compiled else (model, None)
        step = training_step(made, ids, is_half=setting.is_half, masks=masks)
        found[name + COMPILED * is_compiled] = _on_its_backend(name, step)
    return found


def _calls(
    way: Callable[[PreTrainedModel, torch.Tensor], Callable[[], object]],
    models: Mapping[str, PreTrainedModel],
    prompt: torch.Tensor,
    ending: str = "",
) -> dict[str, Callable[[], object]]:
    """The call to time for each model after a prompt."""
    found = {}
    for name, model in models.items():
        with _backend(name):  # some ways run the model once before
            found[name + ending] = _on_its_backend(name, way(model, prompt))
    return found


def _on_its_backend(name: str, run: Callable[[], object]) -> Callable[[], object]:
    """A call of a model with the backend of PyTorch's attention that its name demands."""

    def call() -> object:
        with _backend(name):
            return run()

    return call if name == SOFTMAX_ON_FLASH else run


def _backend(name: str) -> AbstractContextManager[Any]:
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if name == SOFTMAX_ON_FLASH else nullcontext()


def models_of(seed: int, setting: Setting, device: str) -> dict[str, PreTrainedModel]:
    """Models of equal size; V2 has as many maps and half as many key-value heads, its own default."""
    sizes = {**setting.sizes, "max_position_embeddings": max(setting.lengths, default=0) + NEW_TOKENS}
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        models: dict[str, PreTrainedModel] = {
            OURS: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential", **sizes)),
            OURS_V2: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential_v2", **sizes)),
            SOFTMAX: AntiphaseForCausalLM(AntiphaseConfig(attention_type="softmax", **sizes)),
            LLAMA: LlamaForCausalLM(LlamaConfig(**sizes)),
            DIFFLLAMA: DiffLlamaForCausalLM(DiffLlamaConfig(**sizes)),
        }
    timed = {name for pair in setting.pairs for name in pair}
    others = (SOFTMAX_ON_SDPA, SOFTMAX, "sdpa"), (SOFTMAX_ON_FLASH, SOFTMAX, "sdpa"), (LLAMA_ON_OURS, LLAMA, NAME)
    for name, like, attention in others:
        if name in timed:
            models[name] = copy.deepcopy(models[like])
            models[name].set_attn_implementation(attention)
    for name in (OURS, OURS_V2):
        models[name].set_attn_implementation(setting.attention)
    return {name: model.to(device) for name, model in models.items()}


def compiled(model: PreTrainedModel, mode: str | None = None) -> Any:
    """The model compiled for one input shape, in a mode of ``torch.compile``."""
    return torch.compile(model, dynamic=False, mode=mode)


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler's count of variants within the block; beyond its limit, code silently runs uncompiled."""
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            yield
    finally:
        torch._dynamo.reset()


def training_step(
    model: Any, ids: torch.Tensor, *, is_half: bool, masks: Mapping[str, None] | None = None
) -> Callable[[], torch.Tensor]:
    """A repeatable training step (forward, backward and AdamW) that returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> torch.Tensor:
        model.train()
        # around the forward pass of a single step, because autocast keeps its copies of weights until it ends
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=is_half):
            loss: torch.Tensor = model(input_ids=ids, attention_mask=masks, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return run


def _prefill(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        model.eval()
        return model(input_ids=prompt, use_cache=True, logits_to_keep=1, **{CACHE: DynamicCache()}).logits

    return run


def decoding(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    """Steps of one token after a cached prompt; the cache is cropped to the prompt after each round."""
    cache = DynamicCache()
    with torch.no_grad():
        model.eval()
        model(input_ids=prompt, use_cache=True, **{CACHE: cache}, logits_to_keep=1)

    @torch.no_grad()
    def run() -> object:
        model.eval()
        token = prompt[:, -1:]
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=token, use_cache=True, **{CACHE: cache}, logits_to_keep=1).logits
            token = logits[:, -1:].argmax(-1)
        cache.crop(-NEW_TOKENS)
        return token

    return run


def compiled_decoding(model: PreTrainedModel, prompt: torch.Tensor) -> Callable[[], object]:
    """The same with a compiled step and the cache of fixed size that it needs.

    The compiler's mode is that of transformers' ``generate`` with such a cache: on a GPU a step becomes a CUDA graph.
    """
    length = prompt.shape[1]
    cache = StaticCache(model.config, max_cache_len=length + NEW_TOKENS)
    positions = [torch.tensor([[length + n]], device=prompt.device) for n in range(NEW_TOKENS)]
    with torch.no_grad():
        model.eval()
        model(input_ids=prompt, use_cache=True, **{CACHE: cache}, logits_to_keep=1)
    step = compiled(model, "reduce-overhead")

    @torch.no_grad()
    def run() -> object:
        token = prompt[:, -1:]
        for place in positions:
            torch.compiler.cudagraph_mark_step_begin()
            logits = step(
                input_ids=token, position_ids=place, use_cache=True, **{CACHE: cache}, logits_to_keep=1
            ).logits
            token = logits[:, -1:].argmax(-1)
        for layer in cache.layers:
            layer.cumulative_length.fill_(length)  # later keys are not visible and are overwritten
        return token

    return run
