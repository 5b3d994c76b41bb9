"""Log-likelihoods and predictions of any Hugging Face causal language model, in batches that fit in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from antiphase.errors import NonFiniteError
from antiphase.interface import REPLACEMENT_PREFIX
from antiphase.layers.positions import count_positions
from antiphase.ops.layer import cross_entropies
from antiphase.scoring.beginnings import depends_on_length
from antiphase.scoring.division import Divide, alone
from antiphase.scoring.states import carries_state, check_no_state

Predict = Callable[[Tensor, Tensor], Tensor]
"""Takes token ids (B, L) and positions (B, P); returns greedy tokens (B, P), given all tokens before each position."""

TOKENS_AT_ONCE = 16384
"""Number of tokens in one forward pass."""
LOGITS_AT_ONCE = 1 << 28
"""Number of logits of one forward pass, 1 GiB in fp32; with large vocabularies fewer tokens are read at a time."""
FILLED_TOKENS = 512
"""From so many tokens on, a batch of prompts with options ends before its padding exceeds ``PADDING``."""
PADDING = 0.1
"""Share of a batch that may be padding."""
CHUNK = 4096
"""Tokens of a longer prompt that go through the model at a time, limited by the memory of masks and scores."""
CACHED_BYTES = 4 << 30
"""Size of the copies of a cache with which options are read, 4 GiB."""


@torch.no_grad()
def greedy_predictions(model: PreTrainedModel, input_ids: Tensor, positions: Tensor, divide: Divide = alone) -> Tensor:
    """The model's most likely token at each position, given the true tokens before it.

    Greedy decoding would produce a whole answer exactly if each of its tokens is the most likely here.

    Args:
        input_ids: (B, L).
        positions: (B, P), each at least 1; negative positions are skipped and give -1.
        divide: how several processes divide the forward passes.

    Returns:
        (B, P) int64 on the CPU.

    Raises:
        NonFiniteError: logits are not finite.
    """

    def predicted(rows: slice) -> Tensor:
        ids, places = input_ids[rows].to(model.device), positions[rows].to(model.device)
        real = places > 0
        row, column = real.nonzero(as_tuple=True)
        found = torch.full_like(places, -1)
        logits = logits_after(model, ids, row, places[row, column] - 1)
        check_logits(logits)
        found[row, column] = logits.argmax(-1)
        return found.flatten().cpu()

    return torch.cat(divide(_pieces(input_ids, TOKENS_AT_ONCE), predicted)).view_as(positions)


def _pieces(input_ids: Tensor, most_tokens: int) -> list[slice]:
    """The rows of (B, L) that go through the model together."""
    size = max(1, most_tokens // input_ids.shape[1])
    return [slice(start, min(start + size, len(input_ids))) for start in range(0, len(input_ids), size)]


@torch.no_grad()
def negative_log_likelihoods(
    model: PreTrainedModel,
    input_ids: Tensor,
    labels: Tensor,
    report: Callable[[int, int], None] = lambda done, count: None,
    divide: Divide = alone,
) -> Tensor:
    """-log p in nats of each predicted token, flat, in the order of rows and positions; fp32 on the CPU.

    Args:
        input_ids, labels: (B, L); positions with -100 in ``labels`` and the first token of a row are not predicted.
        report: called with the numbers of finished rows and of all.
        divide: how several processes divide the forward passes.

    Raises:
        NonFiniteError: a loss is not finite.
    """

    def losses(rows: slice) -> Tensor:
        targets = labels[rows, 1:].to(model.device)
        chosen = targets >= 0
        logits = logits_after(model, input_ids[rows].to(model.device), *chosen.nonzero(as_tuple=True))
        found = finite_losses(logits, targets[chosen])
        report(rows.stop, len(input_ids))
        return found

    at_once = min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
    return torch.cat(divide(_pieces(input_ids, at_once), losses))


def finite_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p in nats of targets (P,) under logits (P, vocabulary): fp32 on the CPU.

    Raises:
        NonFiniteError: a loss is not finite, for example because a logit is NaN.
    """
    losses = cross_entropies(logits, targets).float()
    if not bool(losses.isfinite().all()):
        raise NonFiniteError("its losses are NaN or infinite, so nothing can be measured")
    return losses.cpu()


def check_logits(logits: Tensor) -> None:
    """Check that the largest of the logits (..., vocabulary) is finite; -inf may forbid some tokens.

    Raises:
        NonFiniteError: the largest logit is NaN or infinite, so no token can be chosen.
    """
    if not bool(logits.amax(-1).isfinite().all()):  # NaN counts as larger than any number
        raise NonFiniteError("its logits are NaN or infinite, so nothing can be measured")


def logits_after(model: PreTrainedModel, input_ids: Tensor, rows: Tensor, columns: Tensor, **further: Any) -> Tensor:
    """Logits (P, vocabulary) after the tokens at ``rows`` and ``columns`` of (B, L) token ids, (P,) each.

    ``further``: arguments of the model.
    """
    with logits_at(model, rows, columns):
        return model(input_ids=input_ids, use_cache=False, **further).logits[0]


@contextmanager
def logits_at(model: PreTrainedModel, rows: Tensor, columns: Tensor) -> Iterator[None]:
    """Make the model return logits (1, P, vocabulary) after the tokens at ``rows``, ``columns``, (P,) each.

    Logits of every token would not fit in memory. Only the head's input is restricted, so the model's own processing of
    its logits (scaling, soft-capping) still applies.
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
    """Scores of the options of one prompt, on the CPU."""

    log_likelihood: Tensor
    """(options,) fp32, in nats, summed over an option's tokens."""
    is_greedy: Tensor
    """(options,) bool: whether greedy decoding would produce exactly this option."""


def score_options(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    *,
    shared: int = 0,
    stepwise: bool = False,
) -> list[OptionScores]:
    """Log-likelihood of each option after its prompt.

    The prompts go through the model first, and the options' tokens afterwards with the cache, so that processing of a
    prompt (such as the choice of attention sinks) never sees an option. Differentiable if gradients are enabled.

    Args:
        prompts: token ids.
        options: for each prompt, its options, each with at least one token.
        shared: number of tokens, less than any prompt has, that all prompts begin with, which go through the model
            once, if it may read them before the rest (``is_read_in_parts``).
        stepwise: feed an option's tokens one at a time, as in decoding. This matters if a call's own queries determine
            its sinks, since later tokens would then affect earlier ones.

    Raises:
        ValueError: the model carries a state.
    """
    check_no_state(model)
    cache: DynamicCache | None = None
    at_once = len(prompts)
    if shared:
        beginning = torch.tensor([prompts[0][:shared]], device=model.device)
        cache = model(input_ids=beginning, use_cache=True, logits_to_keep=1).past_key_values
        at_once = copies_at_once(cache, rows=1)
    alike: dict[int, list[int]] = {}  # padding after a beginning, and the length in some kinds of RoPE, would count
    for row, prompt in enumerate(prompts):
        alike.setdefault(len(prompt) if shared or depends_on_length(model) else 0, []).append(row)
    found: dict[int, OptionScores] = {}
    for group in alike.values():
        rests = [prompts[row][shared:] for row in group]
        for batch in batches(rests, TOKENS_AT_ONCE, filled=FILLED_TOKENS):
            for start in range(0, len(batch), at_once):
                some = batch[start : start + at_once]
                before = None if cache is None else _repeated(cache, len(some))
                scored = _score_batch(
                    model, [rests[place] for place in some], [options[group[place]] for place in some], before, stepwise
                )
                found |= dict(zip([group[place] for place in some], scored, strict=True))
    return [found[row] for row in range(len(prompts))]


def _repeated(cache: DynamicCache, count: int) -> DynamicCache:
    """A cache of so many copies of the only text in another one, which is left as it is."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]  # their tensors are replaced, never changed
    copied.batch_repeat_interleave(count)
    return copied


def batches(prompts: Sequence[Sequence[int]], most_tokens: int, *, filled: int | None = None) -> Iterator[list[int]]:
    """Groups of prompts to process together; similar lengths are grouped in order to reduce padding.

    ``filled``: a group of so many tokens ends before its share of padding exceeds ``PADDING``; None: only when it is
    full.
    """
    batch: list[int] = []
    real = 0
    for row in sorted(range(len(prompts)), key=lambda row: len(prompts[row])):
        length = len(prompts[row])
        size = (len(batch) + 1) * length
        is_padded = filled is not None and real >= filled and size - real - length > PADDING * size
        if batch and (size > most_tokens or is_padded):
            yield batch
            batch, real = [], 0
        batch.append(row)
        real += length
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    cache: DynamicCache | None,
    stepwise: bool,
) -> list[OptionScores]:
    """``cache``: of what stands before each of the prompts, without padding."""
    ids, mask = padded(prompts, model.device)
    shared = 0 if cache is None else cache.get_seq_length()
    mask = torch.cat([mask.new_ones(len(prompts), shared), mask], dim=1)
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=count_positions(mask)[:, shared:], past_key_values=cache,
        use_cache=True, logits_to_keep=1,
    )  # fmt: skip
    first = output.logits[:, -1].float().log_softmax(-1)  # (B, vocabulary)
    # feed each distinct beginning of an option once
    begun: dict[tuple[int, tuple[int, ...]], list[int]] = {}  # the places of the options that begin so
    for row, listed in enumerate(options):
        for place, option in enumerate(listed):
            if len(option) > 1:
                begun.setdefault((row, tuple(option[:-1])), []).append(place)
    fed = list(begun)
    longest = max((len(tokens) for _, tokens in fed), default=1)
    copies = copies_at_once(output.past_key_values, rows=len(prompts))
    at_once = max(1, min(copies, LOGITS_AT_ONCE // (longest * first.shape[1])))
    if torch.is_grad_enabled():
        at_once = max(1, len(fed))
    later: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # of an option's tokens after its first one
    for start in range(0, len(fed), at_once):
        some = fed[start : start + at_once]
        is_last = start + at_once >= len(fed)
        cache = output.past_key_values if is_last else copy.deepcopy(output.past_key_values)
        chosen = torch.tensor([row for row, _ in some], device=ids.device)
        cache.batch_select_indices(chosen)
        tokens, real = padded([tokens for _, tokens in some], ids.device, side="right")
        whole = torch.cat([mask[chosen], real], dim=1)
        before, width = mask.shape[1], tokens.shape[1]
        logits = [
            model(
                input_ids=tokens[:, first : first + size], attention_mask=whole[:, : before + first + size],
                position_ids=count_positions(whole)[:, before + first : before + first + size], past_key_values=cache,
                use_cache=True,
            ).logits
            for size in [1 if stepwise else width]
            for first in range(0, width, size)
        ]  # fmt: skip
        logs = torch.cat(logits, dim=1).float().log_softmax(-1)  # (fed, length, vocabulary)
        best = logs.argmax(-1)
        for index, (row, beginning) in enumerate(some):
            for place in begun[row, beginning]:
                following = torch.tensor(options[row][place][1:], device=ids.device)
                likely = logs[index, : len(following)].gather(1, following[:, None]).sum()
                later[row, place] = likely, (best[index, : len(following)] == following).all()
    scores = []
    for row, listed in enumerate(options):
        opening = torch.tensor([option[0] for option in listed], device=ids.device)
        likely, is_greedy = first[row, opening], first[row].argmax() == opening
        nothing = likely.new_zeros(()), is_greedy.new_ones(())
        rest, agree = zip(*(later.get((row, place), nothing) for place in range(len(listed))), strict=True)
        scores.append(OptionScores((likely + torch.stack(rest)).cpu(), (is_greedy & torch.stack(agree)).cpu()))
    return scores


def copies_at_once(cache: DynamicCache, *, rows: int) -> int:
    """How many copies of one of the ``rows`` of a cache take ``CACHED_BYTES``, at least 1."""
    kept = (getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values"))
    size = sum(tensor.nbytes for tensor in kept if tensor is not None)
    return max(1, CACHED_BYTES * rows // max(1, size))


@torch.no_grad()
def generated_tokens(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    longest: int,
    stop: Sequence[int] = (),
    numbers: Sequence[int] | None = None,
) -> list[list[int]]:
    """Greedy continuations of at most ``longest`` tokens, up to the end-of-text token or a token in ``stop``.

    ``numbers`` are the indices of the prompts in messages; None means from 0.

    Raises:
        NonFiniteError: a step's logits are not finite.
    """
    found: list[list[int]] = [[]] * len(prompts)
    ends = model.generation_config.eos_token_id
    ends = set(stop) | set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    for rows in batches(prompts, TOKENS_AT_ONCE):
        ids, mask = padded([prompts[row] for row in rows], model.device)
        chunk = CHUNK if ids.shape[1] > CHUNK and _takes_chunks(model) else None
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


def _takes_chunks(model: PreTrainedModel) -> bool:
    """Whether the parts of a prompt may go through the model one after the other.

    Changed attention, such as calibration, may depend on all queries of the prompt.
    """
    return not carries_state(model) and not model.config._attn_implementation.startswith(REPLACEMENT_PREFIX)


class _Watch(LogitsProcessor):
    """Changes nothing; ``finite`` (B,): whether a row's logits were finite in every step so far."""

    finite: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        found = scores.amax(-1).isfinite()
        self.finite = self.finite & found if hasattr(self, "finite") else found
        return scores


@contextmanager
def _greedy(model: PreTrainedModel, ends: Sequence[int], *, chunk: int | None) -> Iterator[None]:
    """Use greedy generation within the block, whatever the model's own generation settings, such as penalties."""
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
    """Token ids (B, L), padded with id 0, and an int64 mask (B, L) of real tokens."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        here = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[index, here] = torch.tensor(row)
        mask[index, here] = 1
    return ids.to(device), mask.to(device)
