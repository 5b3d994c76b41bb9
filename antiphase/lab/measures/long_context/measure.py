"""Loss by position over long texts, and the gain from context at their ends.

All windows have the full length, so all points of the curve are measured on the same texts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from antiphase.attention.caches import cache_name
from antiphase.lab.measures.held_out import contents as contents
from antiphase.lab.measures.held_out import prepare as prepare
from antiphase.lab.measures.long_context import LongContext, LongContextSettings, LossAt, Tail
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.scoring.beginnings import forget_length, is_read_in_parts
from antiphase.lab.scoring.likelihood import finite_losses
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.scoring.probes import check_causal
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.text.prepare import PreparedData

CHUNK = 1024
"""Number of tokens in one forward pass with the cache, limited by the memory of logits."""
TAIL = 8
"""The controls score the last 1/8 of each window; the short context has the same length as this tail."""


def measure(
    loaded: LoadedModel, data: PreparedData, settings: LongContextSettings, parts: Parts = UNSTORED
) -> LongContext:
    """Measure held-out windows, with bits per byte if they are text whose bytes its tokens say."""

    def bytes_of(ids: Tensor) -> int:
        return len(data.tokenizer.decode(ids, skip_special_tokens=True).encode())

    windows = data.validation(settings.samples).input_ids
    of_text = None if data.validation_text is None or has_unknown(data.tokenizer, windows) else bytes_of
    return long_context(loaded.model, windows, bytes_of=of_text, opening=len(data.opening), parts=parts)


def has_unknown(tokenizer: Any, ids: Tensor) -> bool:
    """Whether a token of ``ids`` stands for text that the tokenizer does not know.

    A tokenizer that knows every text may have its end of text as unknown token, as GPT-2's has.
    """
    unknown = tokenizer.unk_token_id
    is_other = unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return unknown is not None and not is_other and bool((ids == unknown).any())


@torch.no_grad()
def losses_by_position(model: PreTrainedModel, input_ids: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """-log p in nats of every token except the first, (B, N - 1) fp32 on the CPU; memory is linear in N.

    Sequences go through the model one at a time, in chunks with a cache, or whole if the model may not read them in
    parts.

    Raises:
        NonFiniteError: a loss is not finite.
        ValueError: the model sees later tokens.
    """
    check_causal(model, "losses by position")
    rows = []
    is_whole = not is_read_in_parts(model)
    chunk = input_ids.shape[1] if is_whole else chunk
    for ids in input_ids.to(model.device):
        forget_length(model)
        cache, found = DynamicCache(config=model.config), []
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            further = {"use_cache": False} if is_whole else {cache_name(model): cache, "use_cache": True}
            logits = model(input_ids=part[None], **further).logits[0]
            targets = ids[start + 1 : start + 1 + len(part)]
            found.append(finite_losses(logits[: len(targets)], targets))
        rows.append(torch.cat(found))
    return torch.stack(rows)


def long_context(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    bytes_of: Callable[[Tensor], int] | None = None,
    opening: int = 0,
    parts: Parts = UNSTORED,
) -> LongContext:
    """Cumulative loss at increasing positions, and the gain from a window's own context at its end.

    Two controls score the last eighth of each window again. The first gives it only a short context, as many tokens of
    its own text; the difference is the gain from context on the same tokens. The second gives it another window's
    beginning, which keeps the effect of length without the text's own past; a model that is confused by unrelated text
    has a large difference there, which is not a gain.

    Args:
        input_ids: (B, N), windows of full length.
        bytes_of: returns the number of UTF-8 bytes of tokens (n,), for bits per byte; None omits them.
        opening: number of tokens that open a window and are no text; a short context begins with them too.
        parts: a part is one forward pass, of a window or of one of its controls.
    """
    count, length = input_ids.shape
    whole = count if count == 1 else 3 * count
    losses = []
    for index in range(count):
        compute = partial(_losses, model, input_ids[index])
        losses.append(torch.tensor(parts.stored("window", index, compute=compute)))
        parts.report(index + 1, whole)
    own = torch.stack(losses).double()  # (B, N - 1)
    cumulative = own.cumsum(1) / torch.arange(1, length, dtype=torch.float64)
    curve = []
    for position in points(length):
        at = cumulative[:, position - 2]  # after tokens 2 .. position
        bits = None
        if bytes_of is not None:
            sizes = torch.tensor([bytes_of(ids[1:position]) for ids in input_ids], dtype=torch.float64)
            bits = float((own[:, : position - 1].sum(1) / sizes).mean() / torch.log(torch.tensor(2.0)))
        curve.append(LossAt(position, float(at.mean()), _listed(mean_interval(at.tolist())), bits))
    tail = None if count == 1 else _tail(model, input_ids, own, opening, parts)
    return LongContext(windows=count, length=length, curve=curve, tail=tail)


def _losses(model: PreTrainedModel, ids: Tensor) -> list[float]:
    """Losses of a window (N,) by position."""
    found: list[float] = losses_by_position(model, ids[None])[0].tolist()
    return found


def _loss_at_end(model: PreTrainedModel, ids: Tensor, tail: int) -> float:
    """Mean loss of the last ``tail`` tokens of ``ids`` (N,)."""
    return float(losses_by_position(model, ids[None])[0, -tail:].double().mean())


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def points(length: int) -> list[int]:
    """Positions of the curve: halves of the length down to 16 tokens, ascending."""
    found = [length]
    while found[0] // 2 >= 16:
        found.insert(0, found[0] // 2)
    return found


def _tail(model: PreTrainedModel, input_ids: Tensor, own: Tensor, opening: int, parts: Parts) -> Tail:
    count, length = input_ids.shape
    tail = max(1, length // TAIL)
    before = torch.cat([input_ids[1:], input_ids[:1]])  # each window gets the beginning of the next one
    foreign, little = [], []
    for index in range(count):
        mixed = torch.cat([before[index, : length - tail], input_ids[index, length - tail :]])
        short = torch.cat([input_ids[index, :opening], input_ids[index, -2 * tail :]])
        foreign.append(parts.stored("foreign", index, compute=partial(_loss_at_end, model, mixed, tail)))
        parts.report(count + 2 * index + 1, 3 * count)
        little.append(parts.stored("little", index, compute=partial(_loss_at_end, model, short, tail)))
        parts.report(count + 2 * index + 2, 3 * count)
    here = own[:, -tail:].mean(1)
    foreign_losses, little_losses = (torch.tensor(losses, dtype=torch.float64) for losses in (foreign, little))
    gain = (foreign_losses - here).tolist()
    context_gains = (little_losses - here).tolist()
    return Tail(
        tokens=tail,
        loss=float(here.mean()),
        foreign_loss=float(foreign_losses.mean()),
        gain=sum(gain) / count,
        gain_interval=_listed(mean_interval(gain)),
        little_loss=float(little_losses.mean()),
        context_gain=sum(context_gains) / count,
        context_gain_interval=_listed(mean_interval(context_gains)),
        context_gains=context_gains,
    )
