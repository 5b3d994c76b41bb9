"""Likelihoods of references after their own document, after another row's and after none.

A model that ignores its context has a gain of 0. The other document has nearly the same length, so that length and
form alone give no gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError, NonFiniteError, named
from antiphase.lab.measures.document_gain import DocumentGain, DocumentGainSettings, Gain
from antiphase.lab.measures.hallucination.items import Item, Prompted, draw, load_items
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.likelihood import score_options
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.statistics.intervals import mean_interval, wilson_interval
from antiphase.lab.text.corpora import fingerprint
from antiphase.lab.text.tokenization import check_chat_template, in_chat, prompt_tokens, tokens_after

SPARE = 4
"""Tokens by which a prompt may be longer than the sum of its parts."""
AT_ONCE = 8
"""Number of texts in a part."""


@dataclass(frozen=True)
class Scored:
    """Prompts of one data set with the reference that each is followed by."""

    drawn: Prompted
    prompts: list[list[int]]
    """Token ids: each row with its own document, then each with another one, then each with none."""
    references: list[tuple[int, ...]]
    """Token ids, in the same order."""


def contents(settings: DocumentGainSettings) -> dict[str, Any]:
    """A digest of the data."""
    return {"what --data names": fingerprint(settings.data)}


def prepare(
    loaded: LoadedModel, settings: DocumentGainSettings, output: Path, say: Callable[[str], None]
) -> dict[str, Scored]:
    """Draw the rows of all files and form their prompts.

    Raises:
        InputError: a file cannot be used, or too few of its rows fit in the model's context.
    """
    if settings.chat_template:
        check_chat_template(loaded.tokenizer, named("model", loaded.name))
    data = {Path(path).stem: load_items(path) for path in settings.data}
    return _prepared(loaded.model, loaded.tokenizer, data, settings.samples, settings.seed, chat=settings.chat_template)


def measure(
    loaded: LoadedModel, scored: dict[str, Scored], settings: DocumentGainSettings, parts: Parts = UNSTORED
) -> DocumentGain:
    """Score all prompts."""
    return _measured(loaded.model, scored, parts)


def document_gain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Mapping[str, Sequence[Item]],
    *,
    samples: int = 200,
    seed: int = 0,
    chat: bool = False,
    parts: Parts = UNSTORED,
) -> DocumentGain:
    """The gain in likelihood of references from their own document, for each data set.

    Args:
        data: items by name of the data, for example from ``hallucination.items.load_items``; of several references of
            an item, the first is scored.
        samples: number of items per data set, drawn at random: those that ``hallucination`` draws.
        chat: whether to ask through the model's chat template.
        parts: a part is a few texts.

    Raises:
        InputError: too few items fit in the model's context, or all have the same document.
        NonFiniteError: a log-likelihood is not finite.
    """
    return _measured(model, _prepared(model, tokenizer, data, samples, seed, chat=chat), parts)


def _prepared(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Mapping[str, Sequence[Item]],
    samples: int,
    seed: int,
    *,
    chat: bool,
) -> dict[str, Scored]:
    reads = context_length(model)
    found = {}
    for name, items in data.items():
        room = None if reads is None else reads - SPARE
        drawn = draw(
            items, tokenizer, name=name, samples=samples, seed=seed, room=room, chat=chat,
            beside=lambda item: len(tokenizer(item.references[0])["input_ids"]),
        )  # fmt: skip
        asked, answered = (
            [len(tokenizer(text)["input_ids"]) for text in texts]
            for texts in zip(*((item.question, item.references[0]) for item in drawn.items), strict=True)
        )
        sizes = [len(prompt) - question for prompt, question in zip(drawn.prompts, asked, strict=True)]
        rooms = None if room is None else [room - sum(own) for own in zip(asked, answered, strict=True)]
        changed = other_documents(name, drawn.items, sizes, rooms)
        changed += [replace(item, context="") for item in drawn.items]
        prompts = [*drawn.prompts, *(prompt_tokens(tokenizer, item.prompt, chat=chat) for item in changed)]
        references = [reference_tokens(tokenizer, item, chat=chat) for item in drawn.items]
        found[name] = Scored(drawn, prompts, references * 3)
    return found


def other_documents(
    name: str, items: Sequence[Item], sizes: Sequence[int], rooms: Sequence[int] | None = None
) -> list[Item]:
    """Each item with the document of another one instead, of those that differ and fit the one of the nearest length.

    Args:
        sizes: of each item's prompt without its question, tokens.
        rooms: largest such size beside each item's question and reference.

    Raises:
        InputError: all items of the data ``name`` have the same document, or no other one fits beside a question.
    """
    found = []
    for index, (item, length) in enumerate(zip(items, sizes, strict=True)):
        others = [
            (abs(size - length), other.context, size)
            for size, other in zip(sizes, items, strict=True)
            if other.context != item.context
        ]
        if not others:
            raise InputError(f"all rows drawn from {name} have the same document; give more rows, or raise --samples")
        others = [other for other in others if rooms is None or other[2] <= rooms[index]]
        if not others:
            raise InputError(f"{item.place}: no other document of {name} fits beside its question and reference; "
                             "remove the row, raise --samples, or use a model with a longer context")  # fmt: skip
        found.append(replace(item, context=min(others)[1]))
    return found


def reference_tokens(tokenizer: PreTrainedTokenizerBase, item: Item, *, chat: bool) -> tuple[int, ...]:
    """Token ids of an item's first reference after its prompt, in the chat template without a space between them."""
    prompt = in_chat(tokenizer, item.prompt) if chat else item.prompt
    return tokens_after(tokenizer, prompt, ("" if chat else " ") + item.references[0])


def _measured(model: PreTrainedModel, scored: Mapping[str, Scored], parts: Parts) -> DocumentGain:
    count = sum(len(one.prompts) for one in scored.values())
    found, done = {}, 0
    for name, one in scored.items():
        losses = torch.empty(len(one.prompts))
        order = sorted(range(len(one.prompts)), key=lambda index: len(one.prompts[index]))
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            losses[some] = torch.tensor(parts.stored(name, some, compute=partial(_losses, model, one, some)))
            done += len(some)
            parts.report(done, count)
        own, other, none = losses.double().chunk(3)
        gains = (other - own).tolist()
        above = sum(gain > 0 for gain in gains)
        interval = mean_interval(gains)
        found[name] = Gain(
            kind=one.drawn.items[0].kind, samples=len(gains), left_out=one.drawn.left_out, own_loss=float(own.mean()),
            other_loss=float(other.mean()), no_loss=float(none.mean()), gain=sum(gains) / len(gains),
            interval=None if interval is None else list(interval), above=above, below=sum(gain < 0 for gain in gains),
            above_interval=list(wilson_interval(above, len(gains))), gains=gains,
        )  # fmt: skip
    return DocumentGain(found)


@torch.no_grad()
def _losses(model: PreTrainedModel, scored: Scored, some: Sequence[int]) -> list[float]:
    """Mean -log p of the tokens of some references after their prompts."""
    rows = [[scored.references[index]] for index in some]
    scores = score_options(model, [scored.prompts[index] for index in some], rows)
    found = [
        float(-score.log_likelihood[0]) / len(scored.references[index])
        for index, score in zip(some, scores, strict=True)
    ]
    if not all(map(math.isfinite, found)):
        raise NonFiniteError("its log-likelihoods are NaN or infinite, so nothing can be measured")
    return found
