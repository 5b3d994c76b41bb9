"""Greedy continuations of held-out text, beside the text's own: how many of their n-grams have occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.errors import InputError
from antiphase.lab.measures.held_out import contents as contents
from antiphase.lab.measures.held_out import prepare as prepare
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.measures.repetition import LONGEST, Repeated, Repetition, RepetitionSettings
from antiphase.lab.pages.tables import mean_of_present
from antiphase.lab.scoring.likelihood import generated_tokens
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.text.prepare import PreparedData

AT_ONCE = 8
"""Number of texts in a part."""


def measure(
    loaded: LoadedModel, data: PreparedData, settings: RepetitionSettings, parts: Parts = UNSTORED
) -> Repetition:
    """Continue as many windows as requested, or all if the text has fewer."""
    return repetition(loaded.model, data.validation(settings.samples).input_ids, parts)


def repetition(model: PreTrainedModel, input_ids: Tensor, parts: Parts = UNSTORED) -> Repetition:
    """Repetition in a model's greedy continuations of the first halves of texts, and in their second halves.

    Args:
        input_ids: (B, N) without padding, N at least 8.

    Raises:
        InputError: the texts are too short.
        NonFiniteError: a logit is not finite.
        ValueError: the model sees later tokens.
    """
    half = input_ids.shape[1] // 2
    if half < LONGEST:
        raise InputError(f"the texts have {input_ids.shape[1]} tokens; {2 * LONGEST} or more can be measured")
    texts = input_ids.tolist()
    written: list[list[int]] = []
    for start in range(0, len(texts), AT_ONCE):
        numbers = list(range(len(texts)))[start : start + AT_ONCE]
        prompts = [texts[number][:half] for number in numbers]
        write = partial(generated_tokens, model, prompts, longest=len(texts[0]) - half, numbers=numbers)
        written += parts.stored(numbers, compute=write)
        parts.report(len(written), len(texts))
    return Repetition([repeated("model", written), repeated("text", [text[half:] for text in texts])])


def repeated(of: str, continuations: Sequence[Sequence[int]]) -> Repeated:
    """The shares of continuations of one kind."""
    shares = {n: [repeated_share(tokens, n) for tokens in continuations] for n in range(1, LONGEST + 1)}
    interval = mean_interval([share for share in shares[LONGEST] if share is not None])
    return Repeated(
        of=of, texts=len(continuations), tokens=sum(map(len, continuations)) / len(continuations),
        shares={str(n): mean_of_present(found) for n, found in shares.items()},
        interval=None if interval is None else list(interval),
    )  # fmt: skip


def repeated_share(tokens: Sequence[int], n: int) -> float | None:
    """1 - distinct n-grams / n-grams; None where there is no n-gram."""
    grams = [tuple(tokens[place : place + n]) for place in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None
