"""Greedy decoding constrained to a few answers, for many prompts with a common beginning, which is processed once."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from antiphase.attention.caches import cache_name
from antiphase.attention.continuations import Beginning
from antiphase.lab.scoring.beginnings import (
    attends_fully,
    batches,
    counts_padding,
    is_read_in_parts,
    longest_text,
    reads_prompt_first,
    shared_beginning,
)
from antiphase.lab.scoring.likelihood import TOKENS_AT_ONCE, copies_at_once, last_logits, logits_at
from antiphase.lab.scoring.padding import padded, padding
from antiphase.lab.scoring.probes import check_causal

Option = Sequence[int]
"""Token ids of one allowed answer."""
LONG_BEGINNING = 32
"""A common beginning at least so many times as long as the longest rest of a prompt is stored once; otherwise each
prompt gets a copy of its keys and values, and more prompts are read together.
"""
LONG_PROMPT = 2048
"""Prompts with more different tokens than this are mostly processed without padding, and without the common beginning
if it is shorter. Both would need a mask, and transformers' attention with a mask costs more than it saves there.
"""


@torch.no_grad()
def choose_options(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Option]]
) -> list[int]:
    """The option that greedy decoding writes after each prompt, if only tokens that continue an option are allowed.

    If one option begins with another, the shorter one is chosen if the model's next token, over the whole vocabulary,
    does not continue the longer one.

    Args:
        prompts: token ids. Their common beginning goes through the model once, except a short beginning of long
            prompts, and where a text may not be read in parts (``is_read_in_parts``).
        options: options of each prompt, each with at least one token.

    Returns:
        0-based index of the chosen option for each prompt; -1 if logits are NaN.

    Raises:
        ValueError: the model sees later tokens, or is calibrated and reads something else in parts.
    """
    check_causal(model, "choices between options")
    if not reads_prompt_first(model, longest_text(prompts, options)):
        return _choose_whole(model, prompts, options)
    shared = shared_beginning(prompts) if is_read_in_parts(model) else 0
    if statistics.median(map(len, prompts)) - shared > max(shared, LONG_PROMPT):
        shared = 0
    longest = max(map(len, prompts)) - shared
    beginning = _stored(model, prompts[0][:shared]) if LONG_BEGINNING * longest <= shared <= TOKENS_AT_ONCE else None
    cache: DynamicCache | None = None
    if shared and beginning is None:
        cache = DynamicCache(config=model.config)
        for start in range(0, shared, TOKENS_AT_ONCE):
            part = torch.tensor([prompts[0][start : min(shared, start + TOKENS_AT_ONCE)]], device=model.device)
            with logits_at(model, torch.tensor([0]), torch.tensor([part.shape[1] - 1])):
                model(input_ids=part, use_cache=True, **{cache_name(model): cache})
    rests = [prompt[shared:] for prompt in prompts]
    found: dict[int, int] = {}
    rows_at_once = len(prompts) if cache is None else copies_at_once(cache, rows=1)
    tokens_at_once = TOKENS_AT_ONCE if beginning is None else beginning.tokens_at_once
    filled = None if beginning is None else tokens_at_once // 4
    together: dict[int, list[int]] = {}
    for row, rest in enumerate(rests):
        # padding would stand between a prompt and its answer
        together.setdefault(len(rest) if len(rest) > LONG_PROMPT or counts_padding(model) else 0, []).append(row)
    groups = [[alike[i] for i in rows] for alike in together.values() for rows in
              batches(model, [rests[row] for row in alike], tokens_at_once, filled=filled)]  # fmt: skip
    for rows in groups:
        for start in range(0, len(rows), rows_at_once):
            some = rows[start : start + rows_at_once]
            chosen = _choose_batch(
                model, beginning or cache, shared, [rests[row] for row in some], [options[row] for row in some]
            )
            found |= dict(zip(some, chosen, strict=True))
    if beginning is not None:  # a text whose values are NaN spoils those that were read with it
        for row in [row for row, option in found.items() if option == -1]:
            (found[row],) = _choose_batch(model, beginning, shared, [rests[row]], [options[row]])
    return [found[row] for row in range(len(prompts))]


def _choose_whole(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Option]]
) -> list[int]:
    """As ``choose_options``, with every token chosen from the whole text before it, read anew."""
    written: list[tuple[int, ...]] = [()] * len(prompts)
    chosen: dict[int, int] = {}
    going = list(range(len(prompts)))
    while going:
        texts = [[*prompts[row], *written[row]] for row in going]
        for batch in batches(model, texts, TOKENS_AT_ONCE):
            logits = last_logits(model, [texts[place] for place in batch], [1] * len(batch))
            for row, after in zip([going[place] for place in batch], logits, strict=True):
                is_done, chosen_here, written[row] = _step(after, written[row], options[row])
                if is_done:
                    chosen[row] = chosen_here
        going = [row for row in going if row not in chosen]
    return [chosen[row] for row in range(len(prompts))]


def _stored(model: PreTrainedModel, ids: Sequence[int]) -> Beginning | None:
    """The beginning of prompts, stored once.

    None if copies of a cache are needed: tokens do not see all earlier ones, or attention cannot be read.
    """
    if not attends_fully(model):
        return None
    try:
        return Beginning(model, ids)
    except ValueError:
        return None


def _choose_batch(
    model: PreTrainedModel,
    before: Beginning | DynamicCache | None,
    shared: int,
    rests: Sequence[Sequence[int]],
    options: Sequence[Sequence[Option]],
) -> list[int]:
    count = len(rests)
    own = copy.deepcopy(before) if isinstance(before, DynamicCache) else DynamicCache(config=model.config)
    if isinstance(before, DynamicCache):
        own.batch_repeat_interleave(count)

    def read(ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Logits after the tokens (B, n), which follow those in the cache."""
        further = {"input_ids": ids, cache_name(model): own, "use_cache": True}
        if not isinstance(before, Beginning):
            told = padding(model, mask, before=mask.shape[1] - ids.shape[1])
            return cast(Tensor, model(**further, **told).logits)
        with before.continued(mask.bool()):
            return cast(Tensor, model(**further, position_ids=places).logits)

    ids, real = padded(rests, model.device, side="right")
    mask = real if isinstance(before, Beginning) else torch.cat([real.new_ones(count, shared), real], dim=1)
    lengths = real.sum(1)  # (B,)
    places = shared + (real.cumsum(1) - 1).clamp(min=0)
    rows = torch.arange(count, device=ids.device)
    with logits_at(model, rows, lengths - 1):
        logits = read(ids, mask, places)[0]  # (B, vocabulary)
    written: list[tuple[int, ...]] = [()] * count
    chosen: dict[int, int] = {}
    going = list(range(count))  # rows of the batch that are still undecided
    position = shared + lengths
    while True:
        kept: list[int] = []
        for place, row in enumerate(going):
            is_done, chosen_here, written[row] = _step(logits[place], written[row], options[row])
            if is_done:
                chosen[row] = chosen_here
            else:
                kept.append(place)
        if not kept:
            return [chosen[row] for row in range(count)]
        if len(kept) < len(going):
            rows = torch.tensor(kept, device=ids.device)
            own.batch_select_indices(rows)
            mask, position, going = mask[rows], position[rows], [going[place] for place in kept]
        step = torch.tensor([[written[row][-1]] for row in going], device=ids.device)  # (B', 1)
        mask = torch.cat([mask, torch.ones_like(step)], dim=1)
        logits = read(step, mask, position[:, None])[:, -1]
        position = position + 1


def _step(logits: Tensor, written: tuple[int, ...], options: Sequence[Option]) -> tuple[bool, int, tuple[int, ...]]:
    """Whether the choice is made, the option (-1: the logits are NaN), and what is written with the next token."""
    if not bool(logits.amax().isfinite()):
        return True, -1, written
    option, token = _advance(logits, written, options)
    return (True, option, written) if token is None or option >= 0 else (False, option, (*written, token))


def _advance(logits: Tensor, written: tuple[int, ...], options: Sequence[Option]) -> tuple[int, int | None]:
    """The next token, and the only option left after it (-1 if several are left); no token if an option is complete.

    The model is not run for tokens that follow from the only option left.
    """
    length = len(written)
    going_on = [tuple(option) for option in options if tuple(option[:length]) == written and len(option) > length]
    whole = next((index for index, option in enumerate(options) if tuple(option) == written), -1)
    if whole >= 0 and int(logits.argmax()) not in {option[length] for option in going_on}:
        return whole, None
    allowed = sorted({option[length] for option in going_on})
    token = allowed[int(logits[torch.tensor(allowed, device=logits.device)].argmax())]
    left = {option for option in going_on if option[length] == token}
    if len(left) > 1:
        return -1, token
    return next(index for index, option in enumerate(options) if tuple(option) in left), token
