"""How texts may be read: whole or in parts, alone or padded in a batch, and their common beginning only once.

Whatever divides a text or pads a batch asks here: what a configuration says, and what the model does with a few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.attention.interface import REPLACEMENT_PREFIX
from antiphase.lab.scoring.probes import continues, takes_padding
from antiphase.lab.scoring.states import carries_state, check_no_state

PADDING = 0.1
"""Share of a batch that may be padding."""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Words in types of RoPE whose frequencies depend on the number of tokens that are read."""


def shared_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Number of tokens that all prompts begin with, leaving at least one token of each."""
    shortest = min(map(len, prompts)) - 1
    first = prompts[0]
    for prompt in prompts[1:]:
        while prompt[:shortest] != first[:shortest]:
            low, high = 0, shortest - 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if prompt[:middle] == first[:middle] else (low, middle - 1)
            shortest = low
    return max(0, shortest)


def longest_text(prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]]) -> int:
    """Tokens of the longest prompt with one of its options."""
    pairs = zip(prompts, options, strict=True)
    return max((len(prompt) + max(map(len, listed), default=0) for prompt, listed in pairs), default=0)


def is_calibrated(model: PreTrainedModel) -> bool:
    """Whether a block replaces the model's attention at the moment, for example to calibrate it."""
    name: str | None = model.config._attn_implementation
    return name is not None and name.startswith(REPLACEMENT_PREFIX)


def depends_on_length(model: PreTrainedModel) -> bool:
    """Whether a token's keys depend on how many tokens are read with it, because RoPE does."""
    found: dict[str, Any] = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [one.get("rope_type") for one in (found, *found.values()) if isinstance(one, dict)]
    for module in model.modules():
        own = getattr(module, "rope_type", None)
        kinds += own.values() if isinstance(own, dict) else [own]
    return any(word in kind for kind in kinds if isinstance(kind, str) for word in LENGTH_DEPENDENT)


@torch.no_grad()
def forget_length(model: PreTrainedModel) -> None:
    """Make RoPE of the kind "dynamic", which keeps the frequencies of the longest text so far, start anew.

    It does so for a short text; whoever reads a text with such a model calls this before.
    """
    if depends_on_length(model):
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)


def is_read_in_parts(model: PreTrainedModel) -> bool:
    """Whether a text's beginning may be read before the rest, and its cache be copied for several texts.

    No: calibrated attention, RoPE that depends on the length, a state beside keys and values, and models that compute
    something else from a cache.
    """
    return not (carries_state(model) or is_calibrated(model) or depends_on_length(model)) and continues(model)


def reads_prompt_first(model: PreTrainedModel, longest: int) -> bool:
    """Whether a prompt goes through the model before its answers; otherwise each answer is read together with it.

    Calibrated attention always does so, because the sinks are those of the prompt.

    Args:
        longest: tokens of the longest prompt with its answer.

    Raises:
        ValueError: the model is calibrated, and reads something else in parts than in one piece.
    """
    if not is_calibrated(model):
        return is_read_in_parts(model)
    check_no_state(model)
    kind, config = model.config.model_type, model.config.get_text_config()
    if not continues(model):
        raise ValueError(
            f"models of type {kind} compute something else from a cache, so calibrated attention cannot read a prompt "
            "before its answers; the model as it is can be measured"
        )
    found: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    ends = [one.get("original_max_position_embeddings") for one in (found, *found.values()) if isinstance(one, dict)]
    ends.append(getattr(config, "max_position_embeddings", None))
    most = min((end for end in ends if end), default=0)
    if depends_on_length(model) and longest > most:
        raise ValueError(
            f"positions of this {kind} model depend on the length beyond {most} tokens, so calibrated attention cannot "
            f"read a prompt before its answers; give prompts and answers of at most {most} tokens"
        )
    return True


def is_padded(model: PreTrainedModel) -> bool:
    """Whether texts of unequal lengths may be read in one batch.

    No: positions that count padding, also those of chunks and of ``attn_temperature_tuning`` (Llama 4), and RoPE that
    depends on the length, which is that of the longest text.
    """
    return not (depends_on_length(model) or _counts_from_start(model)) and takes_padding(model)


def _counts_from_start(model: PreTrainedModel) -> bool:
    """Whether attention changes with the number of tokens before, padding included, later than in a short probe."""
    config = model.config.get_text_config()
    is_chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    return is_chunked or bool(getattr(config, "attn_temperature_tuning", False))


def counts_padding(model: PreTrainedModel) -> bool:
    """Whether padding between tokens changes what a model computes for later ones.

    It counts as distance in windows and in MPT's ALiBi, and wherever a batch may not be padded at all.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windows = bool(getattr(config, "sliding_window", None)) and (not kinds or "sliding_attention" in kinds)
    local = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo
    by_index = bool(getattr(getattr(config, "attn_config", None), "alibi", False))  # MPT
    return windows or local or by_index or not is_padded(model)


def attends_fully(model: PreTrainedModel) -> bool:
    """Whether a token's attention, in every layer, depends on all tokens before it and on nothing else.

    No: calibrated attention, what counts padding, chunks, and attention that depends on the number of cached tokens
    (``attn_temperature_tuning`` of Llama 4).
    """
    config = model.config.get_text_config()
    is_full = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"} and not counts_padding(model)
    return is_full and is_read_in_parts(model) and not getattr(config, "attn_temperature_tuning", False)


def alike(model: PreTrainedModel, texts: Sequence[Sequence[int]], *, equal: bool = False) -> list[list[int]]:
    """Indices of the texts that may stand in one batch: of all, or of those of each length; ``equal`` as below."""
    by_length: dict[int, list[int]] = {}
    for index, text in enumerate(texts):
        by_length.setdefault(len(text), []).append(index)
    one = len(by_length) > 1 and not equal and is_padded(model)
    return [list(range(len(texts)))] if one else list(by_length.values())


def batches(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    most_tokens: int,
    *,
    filled: int | None = None,
    equal: bool = False,
) -> Iterator[list[int]]:
    """Indices of texts to read together; similar lengths are grouped in order to reduce padding.

    Args:
        filled: a group of so many tokens ends before its share of padding exceeds ``PADDING``; None: only when it is
            full.
        equal: whether only texts of one length are read together, whatever the model may read.
    """
    for group in alike(model, texts, equal=equal):
        batch: list[int] = []
        real = 0
        for row in sorted(group, key=lambda row: len(texts[row])):
            length = len(texts[row])
            size = (len(batch) + 1) * length
            is_sparse = filled is not None and real >= filled and size - real - length > PADDING * size
            if batch and (size > most_tokens or is_sparse):
                yield batch
                batch, real = [], 0
            batch.append(row)
            real += length
        if batch:
            yield batch
