"""Judges of a model's outputs: they answer a question in text, and only a clear yes or no counts as a verdict.

A judge is an endpoint with OpenAI's chat completions API, or a local model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphase.data.tokenization import prompt_tokens
from antiphase.reading.endpoints import ChatEndpoint
from antiphase.scoring.likelihood import generated_tokens
from antiphase.scoring.loading import LoadedModel

FAILURES_IN_A_ROW = 5
"""Number of consecutive questions without an answer after which an endpoint is abandoned."""
AT_ONCE = 8
"""Number of questions that a local model answers in one batch."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer to one question."""

    text: str | None
    """None if there is no answer; ``reason`` explains it."""
    reason: str = ""


class Judge(Protocol):
    """Answers questions in text."""

    name: str
    identity: str
    """Identifies the judge; answers are stored by it and the question."""

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """Yield an answer to each question in order, as soon as it is available."""


def verdict(text: str | None) -> bool | None:
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
    """A local causal language model, which answers greedily, using its chat template if it has one."""

    def __init__(self, loaded: LoadedModel, *, fingerprint: str, longest: int = 16) -> None:
        """
        Args:
            fingerprint: fingerprint of the weights, so that stored answers of another model with the same name are not
                reused.
            longest: largest number of tokens in an answer.
        """
        self.loaded, self.name, self.longest = loaded, loaded.name, longest
        self.identity = f"{fingerprint} {longest}"

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As for ``Judge``.

        Raises:
            ValueError: logits are NaN.
        """
        reads = getattr(self.loaded.model.config.get_text_config(), "max_position_embeddings", None)
        for start in range(0, len(questions), AT_ONCE):
            some = [self._tokens(question) for question in questions[start : start + AT_ONCE]]
            fitting = [ids for ids in some if reads is None or len(ids) + self.longest <= reads]
            written = iter(generated_tokens(self.loaded.model, fitting, longest=self.longest) if fitting else [])
            for ids in some:
                if reads is not None and len(ids) + self.longest > reads:
                    yield Answer(None, f"the question has {len(ids)} tokens, the judge reads {reads}")
                else:
                    yield Answer(self.loaded.tokenizer.decode(next(written), skip_special_tokens=True))

    def _tokens(self, question: str) -> list[int]:
        tokenizer = self.loaded.tokenizer
        if tokenizer.chat_template is None:
            return prompt_tokens(tokenizer, f"{question}\n\nAnswer:")
        return prompt_tokens(tokenizer, question, chat=True)
