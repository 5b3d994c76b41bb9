"""Log-likelihoods and predictions of any causal language model of Hugging Face, in batches that fit in memory."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from antiphase.errors import NonFiniteError
from antiphase.layers.positions import count_positions

Predict = Callable[[Tensor, Tensor], Tensor]
"""Token ids (B, L) and positions (B, P) to the greedy token (B, P) for each position, given all tokens before it."""

TOKENS_AT_ONCE = 16384
"""Tokens of one forward pass."""
CHUNK = 4096
"""Of a longer prompt, tokens that go through the model at a time: masks and scores of more would not fit."""
CACHED_TOKENS = 1 << 17
"""Tokens of the copies of a cache that options of one batch are scored with."""


@torch.no_grad()
def greedy_predictions(model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> Tensor:
    """The model's first choice for the token at each position, given the true tokens before it.

    A whole answer is what greedy decoding would produce exactly if every one of its tokens is the first choice here.

    Args:
        input_ids: (B, L).
        positions: (B, P), each at least 1; below 0 means none, and gives -1.

    Returns:
        (B, P) int64 on the CPU.

    Raises:
        NonFiniteError: logits that are not finite.
    """
    chosen = torch.full_like(positions, -1)
    size = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
    for start in range(0, len(input_ids), size):
        rows = slice(start, start + size)
        ids, places = input_ids[rows].to(model.device), positions[rows].to(model.device)
        real = places > 0
        row, column = real.nonzero(as_tuple=True)
        found = torch.full_like(places, -1)
        logits = _logits(model, ids, row, places[row, column] - 1)
        check_logits(logits)
        found[row, column] = logits.argmax(-1)
        chosen[rows] = found.cpu()
    return chosen


@torch.no_grad()
def negative_log_likelihoods(model: PreTrainedModel, input_ids: Tensor, labels: Tensor) -> Tensor:
    """-log p in nats of each predicted token, flat, in the order of rows and positions; fp32 on the CPU.

    Args:
        input_ids, labels: (B, L); -100 in ``labels`` is not predicted, nor is a row's first token.

    Raises:
        NonFiniteError: a loss that is not finite.
    """
    found = []
    size = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
    for start in range(0, len(input_ids), size):
        rows = slice(start, start + size)
        targets = labels[rows, 1:].to(model.device)
        chosen = targets >= 0
        logits = _logits(model, input_ids[rows].to(model.device), *chosen.nonzero(as_tuple=True))
        found.append(finite_losses(logits, targets[chosen]))
    return torch.cat(found)


def finite_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p in nats of targets (P,) by logits (P, vocabulary): fp32 on the CPU.

    Raises:
        NonFiniteError: one is not finite, as where a logit is NaN.
    """
    losses = cross_entropy(logits.float(), targets, reduction="none")
    if not bool(losses.isfinite().all()):
        raise NonFiniteError("its losses are NaN or infinite, so nothing can be measured")
    return losses.cpu()


def check_logits(logits: Tensor) -> None:
    """Logits (..., vocabulary) of which one is the largest; -inf may forbid some tokens.

    Raises:
        NonFiniteError: NaN or infinity is the largest, which no choice may rest on.
    """
    if not bool(logits.amax(-1).isfinite().all()):  # NaN counts as larger than any number
        raise NonFiniteError("its logits are NaN or infinite, so nothing can be measured")


def _logits(model: PreTrainedModel, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Logits (P, vocabulary) after the tokens at ``rows``, ``columns``, (P,) each."""
    with logits_at(model, rows, columns):
        return model(input_ids=input_ids, use_cache=False).logits[0]


@contextmanager
def logits_at(model: PreTrainedModel, rows: Tensor, columns: Tensor) -> Iterator[None]:
    """Within the block the model's logits are (1, P, vocabulary), after the tokens at ``rows``, ``columns``, (P,) each.

    Those of every token would not fit. The head is handed these tokens alone, so that what a model does to its logits
    (scaling, soft-capping) is done.
    """

    def choose(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        return (arguments[0][rows, columns].unsqueeze(0),)  # (1, P, hidden)

    handle = model.get_output_embeddings().register_forward_pre_hook(choose)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class OptionScores:
    """Of the options of one prompt, on the CPU."""

    log_likelihood: Tensor
    """(options,) fp32, in nats, summed over an option's tokens."""
    is_greedy: Tensor
    """(options,) bool: greedy decoding would write exactly this."""


def score_options(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    *,
    stepwise: bool = False,
) -> list[OptionScores]:
    """How likely each option is after its prompt.

    The prompts go through the model alone, and the options' tokens after them with the cache: nothing that reads a
    prompt (such as the choice of attention sinks) sees an option. Differentiable where gradients are on.

    Args:
        prompts: token ids.
        options: for each prompt, options of at least one token each.
        stepwise: feed an option's tokens one at a time, as decoding would: where a call's own queries choose the
            sinks, its later tokens would change what its earlier ones see.
    """
    found: dict[int, OptionScores] = {}
    for rows in batches(prompts, TOKENS_AT_ONCE):
        scored = _score_batch(model, [prompts[row] for row in rows], [options[row] for row in rows], stepwise)
        found |= dict(zip(rows, scored, strict=True))
    return [found[row] for row in range(len(prompts))]


def batches(prompts: Sequence[Sequence[int]], most_tokens: int) -> Iterator[list[int]]:
    """Numbers of prompts that go together: those of like length, so that little of a batch is padding."""
    batch: list[int] = []
    for row in sorted(range(len(prompts)), key=lambda row: len(prompts[row])):
        if batch and (len(batch) + 1) * len(prompts[row]) > most_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    stepwise: bool,
) -> list[OptionScores]:
    ids, mask = padded(prompts, model.device)
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=count_positions(mask), use_cache=True, logits_to_keep=1
    )
    first = output.logits[:, -1].float().log_softmax(-1)  # (B, vocabulary)
    # what is fed: each different beginning of an option once
    begun = [(row, tuple(option[:-1])) for row, listed in enumerate(options) for option in listed if len(option) > 1]
    fed = list(dict.fromkeys(begun))
    later: dict[tuple[int, tuple[int, ...]], tuple[Tensor, int]] = {}
    at_once = max(1, len(fed) if torch.is_grad_enabled() else CACHED_TOKENS // ids.shape[1])
    for start in range(0, len(fed), at_once):
        some = fed[start : start + at_once]
        is_last = start + at_once >= len(fed)
        cache = output.past_key_values if is_last else copy.deepcopy(output.past_key_values)
        chosen = torch.tensor([row for row, _ in some], device=ids.device)
        cache.batch_select_indices(chosen)
        tokens, real = padded([tokens for _, tokens in some], ids.device, side="right")
        whole = torch.cat([mask[chosen], real], dim=1)
        before, width = ids.shape[1], tokens.shape[1]
        logits = [
            model(
                input_ids=tokens[:, first : first + size], attention_mask=whole[:, : before + first + size],
                position_ids=count_positions(whole)[:, before + first : before + first + size], past_key_values=cache,
                use_cache=True,
            ).logits
            for size in [1 if stepwise else width]
            for first in range(0, width, size)
        ]  # fmt: skip
        found = torch.cat(logits, dim=1).float().log_softmax(-1)  # (fed, length, vocabulary)
        later |= {beginning: (found, index) for index, beginning in enumerate(some)}
    scores = []
    for row, listed in enumerate(options):
        likely, greedy = [], []
        for option in listed:
            logs = first[row : row + 1]  # (1, vocabulary)
            if len(option) > 1:
                found, index = later[row, tuple(option[:-1])]
                logs = torch.cat([logs, found[index, : len(option) - 1]])  # (tokens, vocabulary)
            tokens = torch.tensor(option, device=ids.device)
            likely.append(logs.gather(1, tokens[:, None]).sum())
            greedy.append((logs.argmax(-1) == tokens).all())
        scores.append(OptionScores(torch.stack(likely).cpu(), torch.stack(greedy).cpu()))
    return scores


@torch.no_grad()
def generated_tokens(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    longest: int,
    stop: Sequence[int] = (),
    numbers: Sequence[int] | None = None,
) -> list[list[int]]:
    """Greedy continuations of at most ``longest`` tokens, up to the end of the text or a token of ``stop``.

    ``numbers``: of the prompts, for messages; None: from 0.

    Raises:
        NonFiniteError: a step's logits are not finite.
    """
    found: list[list[int]] = [[]] * len(prompts)
    ends = model.generation_config.eos_token_id
    ends = set(stop) | set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    for rows in batches(prompts, TOKENS_AT_ONCE):
        ids, mask = padded([prompts[row] for row in rows], model.device)
        # Models that carry a state and no cache of keys (LSTM, Mamba) read a prompt whole; it costs them little memory.
        cached = "past_key_values" in inspect.signature(model.forward).parameters
        chunk = CHUNK if ids.shape[1] > CHUNK and cached else None
        watch = _Watch()
        with _greedy(model, sorted(ends), chunk=chunk):
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=longest,
                logits_processor=LogitsProcessorList([watch]),
            )
        for row, tokens, is_finite in zip(rows, output[:, ids.shape[1] :].tolist(), watch.finite.tolist(), strict=True):
            if not is_finite:
                raise NonFiniteError(
                    f"the model's logits for prompt {row if numbers is None else numbers[row]} (from 0) are not numbers"
                )
            end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
            found[row] = tokens[:end]
    return found


class _Watch(LogitsProcessor):
    """Changes nothing; ``finite`` (B,): whether a row's logits were finite in every step so far."""

    finite: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        found = scores.amax(-1).isfinite()
        self.finite = self.finite & found if hasattr(self, "finite") else found
        return scores


@contextmanager
def _greedy(model: PreTrainedModel, ends: Sequence[int], *, chunk: int | None) -> Iterator[None]:
    """Within the block the model generates greedily: its own settings may ask for penalties, which is not greedy."""
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        eos_token_id=list(ends) or None,
        pad_token_id=min(ends, default=0),
        prefill_chunk_size=chunk,
    )
    try:
        yield
    finally:
        model.generation_config = own


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, *, side: Literal["left", "right"] = "left"
) -> tuple[Tensor, Tensor]:
    """Token ids (B, L), filled with id 0, and which of them are real, int64 (B, L)."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        here = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[index, here] = torch.tensor(row)
        mask[index, here] = 1
    return ids.to(device), mask.to(device)
