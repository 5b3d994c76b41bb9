"""Log-likelihoods and predictions of any Hugging Face causal language model, in batches that fit in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from antiphase.attention.caches import cache_name
from antiphase.base.errors import NonFiniteError
from antiphase.lab.scoring.beginnings import (
    alike,
    batches,
    forget_length,
    is_calibrated,
    is_read_in_parts,
    longest_text,
    reads_prompt_first,
)
from antiphase.lab.scoring.division import Divide, alone
from antiphase.lab.scoring.padding import padded, padding
from antiphase.lab.scoring.probes import check_causal, generates
from antiphase.ops.layer import cross_entropies

Predict = Callable[[Tensor, Tensor], Tensor]
"""Takes token ids (B, L) and positions (B, P); returns greedy tokens (B, P), given all tokens before each position."""

TOKENS_AT_ONCE = 16384
"""Number of tokens in one forward pass."""
LOGITS_AT_ONCE = 1 << 28
"""Number of logits of one forward pass, 1 GiB in fp32; with large vocabularies fewer tokens are read at a time."""
FILLED_TOKENS = 512
"""From so many tokens on, a batch of prompts with options ends before its padding exceeds ``PADDING``."""
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
        forget_length(model)
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
        forget_length(model)
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
        chosen = arguments[0][rows, ..., columns, :]  # (P, hidden), or (P, n, hidden) of n predictions (ProphetNet)
        return (chosen.movedim(0, -2).unsqueeze(0),)

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

    A prompt goes through the model first, and its options' tokens afterwards with the cache, so that processing of a
    prompt (such as the choice of attention sinks) never sees an option. Only a model that may not read in parts
    (``is_read_in_parts``) for other reasons than calibration reads each option together with its prompt. Differentiable
    if gradients are enabled.

    Args:
        prompts: token ids.
        options: for each prompt, its options, each with at least one token.
        shared: number of tokens, less than any prompt has, that all prompts begin with, which go through the model
            once, if it may read them before the rest.
        stepwise: feed an option's tokens one at a time, as in decoding. This matters if a call's own queries determine
            its sinks, since later tokens would then affect earlier ones.

    Raises:
        ValueError: the model sees later tokens, or is calibrated and reads something else in parts.
    """
    check_causal(model, "log-likelihoods of options")
    if not reads_prompt_first(model, longest_text(prompts, options)):
        return _score_whole(model, prompts, options)
    shared = shared if is_read_in_parts(model) else 0
    cache: DynamicCache | None = None
    at_once = len(prompts)
    if shared:
        cache = DynamicCache(config=model.config)
        beginning = torch.tensor([prompts[0][:shared]], device=model.device)
        model(input_ids=beginning, use_cache=True, **{cache_name(model): cache}, logits_to_keep=1)
        at_once = copies_at_once(cache, rows=1)
    rests = [prompt[shared:] for prompt in prompts]
    found: dict[int, OptionScores] = {}
    # padding after a beginning would count
    for batch in batches(model, rests, TOKENS_AT_ONCE, filled=FILLED_TOKENS, equal=shared > 0):
        for start in range(0, len(batch), at_once):
            some = batch[start : start + at_once]
            before = DynamicCache(config=model.config) if cache is None else _repeated(cache, len(some))
            scored = _score_batch(
                model, [rests[row] for row in some], [options[row] for row in some], before, shared, stepwise
            )
            found |= dict(zip(some, scored, strict=True))
    return [found[row] for row in range(len(prompts))]


def _repeated(cache: DynamicCache, count: int) -> DynamicCache:
    """A cache of so many copies of the only text in another one, which is left as it is."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]  # their tensors are replaced, never changed
    copied.batch_repeat_interleave(count)
    return copied


def _score_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    cache: DynamicCache,
    shared: int,
    stepwise: bool,
) -> list[OptionScores]:
    """``cache``: of the ``shared`` tokens before each of the prompts, without padding."""
    forget_length(model)
    ids, mask = padded(prompts, model.device)
    mask = torch.cat([mask.new_ones(len(prompts), shared), mask], dim=1)
    output = model(
        input_ids=ids,
        use_cache=True,
        **{cache_name(model): cache},
        logits_to_keep=1,
        **padding(model, mask, before=shared),
    )
    first = output.logits[:, -1].float().log_softmax(-1)  # (B, vocabulary)
    begun = {
        (row, beginning): places
        for row, listed in enumerate(options) for beginning, places in _beginnings(listed).items() if beginning
    }  # fmt: skip
    fed = list(begun)
    longest = max((len(tokens) for _, tokens in fed), default=1)
    copies = copies_at_once(cache, rows=len(prompts))
    at_once = max(1, min(copies, LOGITS_AT_ONCE // (longest * first.shape[1])))
    if torch.is_grad_enabled():
        at_once = max(1, len(fed))
    pieces = [
        [fed[index] for index in group[start : start + at_once]]
        for group in alike(model, [tokens for _, tokens in fed]) for start in range(0, len(group), at_once)
    ]  # fmt: skip
    scores: list[dict[int, _Score]] = [
        {place: _score(first[row, None], option[:1]) for place, option in enumerate(listed)}
        for row, listed in enumerate(options)
    ]
    for number, some in enumerate(pieces, 1):
        own = cache if number == len(pieces) else copy.deepcopy(cache)
        chosen = torch.tensor([row for row, _ in some], device=ids.device)
        own.batch_select_indices(chosen)
        tokens, real = padded([tokens for _, tokens in some], ids.device, side="right")
        whole = torch.cat([mask[chosen], real], dim=1)
        before, width = mask.shape[1], tokens.shape[1]
        logits = [
            model(
                input_ids=tokens[:, start : start + size], use_cache=True, **{cache_name(model): own},
                **padding(model, whole[:, : before + start + size], before=before + start),
            ).logits
            for size in [1 if stepwise else width]
            for start in range(0, width, size)
        ]  # fmt: skip
        logs = torch.cat(logits, dim=1).float().log_softmax(-1)  # (some, width, vocabulary)
        for index, (row, beginning) in enumerate(some):
            for place in begun[row, beginning]:
                likely, is_greedy = _score(logs[index], options[row][place][1:])
                scores[row][place] = scores[row][place][0] + likely, scores[row][place][1] & is_greedy
    return [_joined(row) for row in scores]


def _score_whole(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]]
) -> list[OptionScores]:
    """Scores of options that are read together with their prompts."""
    begun = [
        (row, beginning, places)
        for row, listed in enumerate(options) for beginning, places in _beginnings(listed).items()
    ]  # fmt: skip
    texts = [[*prompts[row], *beginning] for row, beginning, _ in begun]
    longest = max((len(beginning) for _, beginning, _ in begun), default=0) + 1
    vocabulary = model.config.get_text_config().vocab_size
    at_once = len(texts) if torch.is_grad_enabled() else max(1, LOGITS_AT_ONCE // (longest * vocabulary))
    scores: list[dict[int, _Score]] = [{} for _ in prompts]
    for batch in batches(model, texts, TOKENS_AT_ONCE, filled=FILLED_TOKENS):
        for start in range(0, len(batch), at_once):
            some = batch[start : start + at_once]
            counts = [len(begun[index][1]) + 1 for index in some]
            parts = last_logits(model, [texts[index] for index in some], counts).float().log_softmax(-1).split(counts)
            for index, logs in zip(some, parts, strict=True):
                row, _, places = begun[index]
                scores[row] |= {place: _score(logs, options[row][place]) for place in places}
    return [_joined(row) for row in scores]


def last_logits(model: PreTrainedModel, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
    """Logits (sum of ``counts``, vocabulary) after the last ``counts`` tokens of texts that may stand in one batch."""
    forget_length(model)
    ids, mask = padded(texts, model.device)
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    columns = [ids.shape[1] - count + place for count in counts for place in range(count)]
    places = torch.tensor([rows, columns], device=ids.device)
    return logits_after(model, ids, *places, **padding(model, mask))


_Score = tuple[Tensor, Tensor]
"""Log-likelihood of an option, and whether greedy decoding would produce it."""


def _beginnings(options: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """The places of the options that are equal but for their last token, by their other tokens."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place, option in enumerate(options):
        found.setdefault(tuple(option[:-1]), []).append(place)
    return found


def _score(logs: Tensor, option: Sequence[int]) -> _Score:
    """``logs``: (at least the option's tokens, vocabulary), in front of each of them."""
    tokens = torch.tensor(option, device=logs.device)
    logs = logs[: len(option)]
    return logs.gather(1, tokens[:, None]).sum(), (logs.argmax(-1) == tokens).all()


def _joined(scores: dict[int, _Score]) -> OptionScores:
    likely, is_greedy = zip(*(scores[place] for place in range(len(scores))), strict=True)
    return OptionScores(torch.stack(likely).cpu(), torch.stack(is_greedy).cpu())


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
        ValueError: the model sees later tokens, or is calibrated and generates something else with a cache.
    """
    check_causal(model, "greedy answers")
    write = _generated if generates(model) else _written_whole
    if write is _written_whole and is_calibrated(model):
        raise ValueError(
            f"models of type {model.config.model_type} generate something else with a cache, so calibrated attention "
            "cannot continue texts; the model as it is can be measured"
        )
    found: list[list[int]] = [[]] * len(prompts)
    ends = model.generation_config.eos_token_id
    ends = set(stop) | set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    for rows in batches(model, prompts, TOKENS_AT_ONCE):
        written, finite = write(model, [prompts[row] for row in rows], longest, sorted(ends))
        for row, tokens, is_finite in zip(rows, written, finite, strict=True):
            if not is_finite:
                raise NonFiniteError(
                    f"the model's logits for prompt {row if numbers is None else numbers[row]} (from 0) are not numbers"
                )
            end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
            found[row] = tokens[:end]
    return found


def _generated(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], longest: int, ends: Sequence[int]
) -> tuple[list[list[int]], list[bool]]:
    """Tokens that the model's own generation writes after a batch, and whether the logits of each were finite."""
    forget_length(model)
    ids, mask = padded(prompts, model.device)
    chunk = CHUNK if ids.shape[1] > CHUNK and is_read_in_parts(model) else None
    watch = _Watch()
    with _greedy(model, ends, chunk=chunk):
        output = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=longest, logits_processor=LogitsProcessorList([watch])
        )
    return output[:, ids.shape[1] :].tolist(), watch.finite.tolist()


def _written_whole(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], longest: int, ends: Sequence[int]
) -> tuple[list[list[int]], list[bool]]:
    """As ``_generated``, where each token follows from the whole text before it, read anew."""
    written: list[list[int]] = [[] for _ in prompts]
    finite = [True] * len(prompts)
    going = list(range(len(prompts)))
    for _ in range(longest):
        logits = last_logits(model, [[*prompts[row], *written[row]] for row in going], [1] * len(going))
        for row, best in zip(going, logits.max(-1).values.isfinite().tolist(), strict=True):
            finite[row] = best
        for row, token in zip(going, logits.argmax(-1).tolist(), strict=True):
            written[row].append(token)
        going = [row for row in going if finite[row] and written[row][-1] not in ends]
        if not going:
            break
    return written, finite


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
