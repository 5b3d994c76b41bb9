"""Judges of a model's outputs, and how well they tell right texts from wrong ones.

An endpoint with OpenAI's chat completions API answers in text, where only a clear yes or no counts as a verdict. Of a
local model, the likelier of the two answers counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from antiphase.base.errors import NonFiniteError
from antiphase.lab.measures.hallucination import JudgeControl
from antiphase.lab.measures.hallucination.endpoints import ChatEndpoint
from antiphase.lab.scoring.beginnings import shared_beginning
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.likelihood import score_options
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.scoring.priors import area_under_curve
from antiphase.lab.statistics.intervals import area_interval, wilson_interval
from antiphase.lab.text.tokenization import in_chat, prompt_tokens, tokens_after

FAILURES_IN_A_ROW = 5
"""Number of consecutive questions without an answer after which an endpoint is abandoned."""
AT_ONCE = 8
"""Number of questions that a local model answers in one batch."""
YES, NO, UNDECIDED = "Yes", "No", "undecided"
"""Answers of a local model; ``UNDECIDED`` if both are equally likely, which is no verdict."""


ALIKE = 0.5
"""Share of questions about one text that is the same beginning, which a local model reads once."""
_Asked = tuple[list[int], list[tuple[int, ...]]]
"""The token ids of a question and of yes and no after it."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer to one question."""

    text: str | None
    """None if there is no answer; ``reason`` explains it."""
    reason: str = ""
    log_odds: float | None = None
    """log p(yes) - log p(no), of a judge that gives it."""


class Judge(Protocol):
    """Answers questions in text."""

    name: str
    identity: str
    """Identifies the judge; answers are stored by it and the question."""

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """Yield an answer to each question in order, as soon as it is available."""


def yes_or_no(text: str | None) -> bool | None:
    """Yes or no if the answer's first or last word says so and the other does not contradict it; else None."""
    found = re.findall(r"[^\W_]+", (text or "").lower())
    ends = {word for word in (found[0], found[-1]) if word in ("yes", "no")} if found else set()
    return ends.pop() == "yes" if len(ends) == 1 else None


class EndpointJudge(ChatEndpoint):
    """A model behind an OpenAI-compatible endpoint."""

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As for ``Judge``. After several consecutive questions without an answer, the remaining ones are not asked.

        Raises:
            InputError: the endpoint refuses the key or does not have the model.
        """
        failed = 0
        for question in questions:
            if failed == FAILURES_IN_A_ROW:
                yield Answer(None, f"not asked: {failed} questions in a row had no answer")
                continue
            answer = Answer(*self.ask(question))
            failed = failed + 1 if answer.text is None else 0
            yield answer


class LocalJudge:
    """A local causal language model, which chooses between yes and no, using its chat template if it has one.

    Small models often answer in a sentence without either word; their choice between the two is always defined.
    """

    def __init__(self, loaded: LoadedModel, *, fingerprint: str) -> None:
        """
        Args:
            fingerprint: fingerprint of the weights, so that stored answers of another model with the same name are not
                reused.
        """
        self.loaded, self.name = loaded, loaded.name
        self.identity = f"{fingerprint} {YES} or {NO}"

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As for ``Judge``: the answer with the higher log-probability, summed over its tokens.

        Successive questions about one text are answered fastest.

        Raises:
            NonFiniteError: the log-probabilities are not finite.
        """
        reads = context_length(self.loaded.model)
        for asked in _groups(map(self._tokens, questions)):
            sizes = [len(prompt) + max(map(len, options)) for prompt, options in asked]
            fitting = [one for one, size in zip(asked, sizes, strict=True) if reads is None or size <= reads]
            chosen = iter(self._chosen(fitting))
            for (prompt, _), size in zip(asked, sizes, strict=True):
                if reads is not None and size > reads:
                    yield Answer(None, f"the question has {len(prompt)} tokens, the judge reads {reads}")
                else:
                    yield next(chosen)

    @torch.no_grad()
    def _chosen(self, asked: Sequence[_Asked]) -> list[Answer]:
        """The answer to each prompt with its options, yes and no."""
        model, answers = self.loaded.model, []
        prompts, options = [prompt for prompt, _ in asked], [options for _, options in asked]
        shared = shared_beginning(prompts) if len(asked) > 1 else 0
        if any(shared < ALIKE * len(prompt) for prompt in prompts):
            shared = 0  # one batch of whole prompts is faster
        for scores in score_options(model, prompts, options, shared=shared):
            yes, no = scores.log_likelihood.double().tolist()
            if not math.isfinite(yes - no):
                raise NonFiniteError("its log-probabilities of yes and no are not numbers, so it cannot judge")
            answers.append(Answer(YES if yes > no else NO if no > yes else UNDECIDED, log_odds=yes - no))
        return answers

    def _tokens(self, question: str) -> _Asked:
        """The prompt, and yes and no as they are written after it: at the beginning of a message, or after a space."""
        tokenizer = self.loaded.tokenizer
        if tokenizer.chat_template is None:
            prompt = f"{question}\n\nAnswer:"
            options = [tokens_after(tokenizer, prompt, f" {answer}") for answer in (YES, NO)]
            return prompt_tokens(tokenizer, prompt), options
        options = [tokens_after(tokenizer, in_chat(tokenizer, question), answer) for answer in (YES, NO)]
        return prompt_tokens(tokenizer, question, chat=True), options


def _groups(asked: Iterable[_Asked]) -> Iterator[list[_Asked]]:
    """At most ``AT_ONCE`` successive questions, all about one text or each about another one than that before it."""
    group: list[_Asked] = []
    about_one = False
    for one in asked:
        alike = bool(group) and _are_alike(group[-1][0], one[0])
        if len(group) == AT_ONCE or (len(group) > 1 and alike != about_one):
            begun = [group.pop()] if alike and not about_one else []
            yield group
            group = begun
        group.append(one)
        about_one = alike
    if group:
        yield group


def _are_alike(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether ``ALIKE`` of two prompts is the same beginning."""
    return shared_beginning([one, other]) >= ALIKE * max(len(one), len(other))


def judge_control(right: Sequence[Answer], wrong: Sequence[Answer]) -> JudgeControl | None:
    """How well a judge tells right texts from the same number of wrong ones; None without texts.

    Args:
        right, wrong: its answers about texts that are right, and about wrong ones.
    """
    texts = len(right) + len(wrong)
    if not right or not wrong:
        return None
    hits = sum(yes_or_no(answer.text) is True for answer in right)
    hits += sum(yes_or_no(answer.text) is False for answer in wrong)
    area, interval = _area(right, wrong)
    return JudgeControl(
        texts=texts, accuracy=hits / texts, interval=list(wilson_interval(hits, texts)), auc=area, auc_interval=interval
    )


def _area(right: Sequence[Answer], wrong: Sequence[Answer]) -> tuple[float | None, list[float] | None]:
    """Area under the curve of the log-odds with its 95 % interval; None, None if no answer has any."""
    own, other = ([answer.log_odds for answer in part if answer.log_odds is not None] for part in (right, wrong))
    if not own or not other:
        return None, None
    odds = torch.tensor([*own, *other], dtype=torch.float64)
    odds /= odds.abs().max().clamp(min=1)  # the area depends on the order alone; probabilities of 1 would be ties
    targets = torch.tensor([1] * len(own) + [0] * len(other))
    area = area_under_curve(torch.stack([torch.zeros_like(odds), odds], dim=1), targets)
    assert area is not None
    return area, list(area_interval(area, len(own), len(other)))
